"""JSON body that creates a namespace: its policies and its bundles.

Pulsar's tools send all fields that they know, most of them empty. Empty fields are ignored. For an unsupported field
the request is rejected with the field's name, and nothing is created.
"""

from __future__ import annotations

import re
from typing import Any, Final

from msgspec.structs import replace

from quire.metadata.records import Policies
from quire.runtime.errors import ConfigurationError
from quire.serving.admin.permissions import granted_of, mode_of, subscription_roles_of
from quire.serving.admin.policy_json import AUTO_UPDATE, POLICIES, QUOTAS, PolicyJson
from quire.serving.admin.requests import fields_of, properties_of
from quire.serving.admin.values import asks_for_nothing
from quire.serving.policy.strategy import UNDEFINED
from quire.serving.registry.bundles import split_evenly

_BY_NAME: Final = {
    word: policy for policy in (*POLICIES, AUTO_UPDATE) for word in (policy.name, policy.word) if word
}
_QUOTA_NAMES: Final = ("backlog_quota_map", "backlogQuota", "backlogQuotaMap")
_EMPTY: Final = {
    "schema_validation_enforced": False,
    "schema_auto_update_compatibility_strategy": "Full",
    "schema_compatibility_strategy": UNDEFINED,
    "encryption_required": False,
    "subscription_auth_mode": "None",
}
"""Defaults that Pulsar's tools send for fields that the user did not set."""

_EMPTY_IF_ZERO: Final = frozenset(("inactive_topic_policies", "persistence"))
_LIMITS: Final = frozenset(policy.name for policy in POLICIES if policy.is_limit)
_BOUNDARY: Final = re.compile(r"0x[0-9a-f]{8}")
BUNDLES_MAX: Final = 4096


def namespace_of(
    value: Any, cluster: str, *, is_authorizing: bool = False
) -> tuple[Policies, tuple[str, ...] | None]:
    """Parse the JSON that creates a namespace: policies, and the bundles' boundaries if given.

    Raises `ConfigurationError`, whose text contains the names of unknown fields. Unless `is_authorizing` (authorization
    is enabled), restrictions of roles are rejected, because they would not be enforced.
    """
    policies, boundaries = Policies(), None
    if value is None:
        return policies, None
    if not isinstance(value, dict):
        raise ConfigurationError("the request's body must be a JSON object with the namespace's policies")
    for name, one in value.items():
        if one is None or (name in _EMPTY and one == _EMPTY[name]):
            continue
        if name in _EMPTY_IF_ZERO | _LIMITS and asks_for_nothing(one):
            continue
        if name == "auth_policies":
            policies = _with_permissions(policies, one, is_authorizing=is_authorizing)
        elif name == "subscription_auth_mode":
            policies = replace(policies, subscription_prefix=mode_of(one))
            _require_authorization(name, is_authorizing=is_authorizing)
        elif name == "bundles":
            boundaries = _boundaries(one)
        elif name == "replication_clusters":
            _refuse_other_clusters(one, cluster)
        elif name == "properties":
            policies = replace(policies, properties=properties_of(one))
        elif name in _QUOTA_NAMES:
            policies = _with_quotas(policies, one)
        elif name in _BY_NAME:
            policies = _with(policies, _BY_NAME[name], one, cluster)
        elif not asks_for_nothing(one):
            raise ConfigurationError(f"{name[:100]!r} is not a supported policy of a namespace: omit it")
    return policies, boundaries


def _with(policies: Policies, policy: PolicyJson, value: Any, cluster: str) -> Policies:
    if policy.is_by_cluster and isinstance(value, dict) and value.keys() <= {cluster}:
        if not value:
            return policies
        value = value[cluster]
    return policy.put(policies, policy.shape.parse(value))


def _with_permissions(policies: Policies, value: Any, *, is_authorizing: bool) -> Policies:
    parts = fields_of(value, namespace_auth=dict, destination_auth=dict, subscription_auth_roles=dict)
    for name in value.keys() - parts.keys():
        if not asks_for_nothing(value[name]):
            raise ConfigurationError(f"unknown field {name[:100]!r} in auth_policies")
    if any(parts.get("destination_auth", {}).values()):
        raise ConfigurationError(
            "destination_auth in auth_policies is for topics, but a new namespace has none: grant permissions on a "
            "topic after it is created"
        )
    roles = subscription_roles_of(parts.get("subscription_auth_roles", {}))
    if roles:
        _require_authorization("subscription_auth_roles", is_authorizing=is_authorizing)
    granted = granted_of(parts.get("namespace_auth", {}))
    return replace(policies, permissions=granted, subscription_permissions=roles)


def _require_authorization(name: str, *, is_authorizing: bool) -> None:
    if not is_authorizing:
        raise ConfigurationError(
            f"{name} would not be enforced, because authorization is disabled in this cluster: omit it"
        )


def _with_quotas(policies: Policies, value: Any) -> Policies:
    if not isinstance(value, dict) or not value.keys() <= QUOTAS.keys():
        raise ConfigurationError(f"backlog quotas must be a JSON object with keys among {', '.join(QUOTAS)}")
    parsed = {
        QUOTAS[kind].field: QUOTAS[kind].shape.parse(one) for kind, one in value.items() if one is not None
    }
    return replace(policies, **parsed)


def _refuse_other_clusters(value: Any, cluster: str) -> None:
    if not isinstance(value, list) or any(one != cluster for one in value):
        raise ConfigurationError(
            f"replication_clusters can only contain this cluster, {cluster}: geo-replication is not supported"
        )


def _boundaries(value: Any) -> tuple[str, ...] | None:
    found = fields_of(value, numBundles=int, boundaries=list)
    edges = found.get("boundaries") or []
    if not edges:
        count = found.get("numBundles", 0)
        if not 0 <= count <= BUNDLES_MAX:
            raise ConfigurationError(f"numBundles must be 1 to {BUNDLES_MAX}, or 0 for the broker's default")
        return split_evenly(count) if count else None
    ends = edges[0] == "0x00000000" and edges[-1] == "0xffffffff"
    if not ends or not all(isinstance(one, str) and _BOUNDARY.fullmatch(one) for one in edges):
        raise ConfigurationError(
            "boundaries of bundles must be such hexadecimal numbers, from 0x00000000 to 0xffffffff"
        )
    if edges != sorted(set(edges)) or len(edges) > BUNDLES_MAX + 1:
        raise ConfigurationError(f"boundaries of bundles must be ascending, and at most {BUNDLES_MAX + 1}")
    return tuple(one.removeprefix("0x") for one in edges)
