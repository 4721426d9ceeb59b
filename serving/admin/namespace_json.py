"""The JSON that makes a namespace: its policies, and its bundles.

Pulsar's tools send all the fields that they know, most of them empty. What says nothing is left out; what asks for
something that is not here is refused by its name, and nothing is made.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from msgspec.structs import replace

from quire.metadata.records import Policies
from quire.runtime.errors import ConfigurationError
from quire.serving.admin.policy_json import POLICIES, QUOTAS, PolicyJson
from quire.serving.admin.requests import fields_of
from quire.serving.cluster.bundles import split_evenly

_BY_NAME: Final = {word: policy for policy in POLICIES for word in (policy.name, policy.word) if word}
_QUOTA_NAMES: Final = ("backlog_quota_map", "backlogQuota", "backlogQuotaMap")
_EMPTY: Final = {
    "schema_validation_enforced": False,
    "schema_auto_update_compatibility_strategy": "Full",
    "subscription_auth_mode": "None",
}
"""What Pulsar's tools send of these when their user said nothing."""

_EMPTY_IF_ZERO: Final = frozenset(("inactive_topic_policies", "persistence"))
_LIMITS: Final = frozenset(policy.name for policy in POLICIES if policy.is_limit)
_BOUNDARY: Final = re.compile(r"0x[0-9a-f]{8}")
BUNDLES_MAX: Final = 4096


def namespace_of(value: Any, cluster: str) -> tuple[Policies, tuple[str, ...] | None]:
    """Policies, and the bundles' boundaries if they are prescribed, of the JSON that makes a namespace.

    Raises `ConfigurationError`, which names what is not known.
    """
    policies, boundaries = Policies(), None
    if value is None:
        return policies, None
    if not isinstance(value, dict):
        raise ConfigurationError("the request's body must be a JSON object with the namespace's policies")
    for name, one in value.items():
        if one is None or (name in _EMPTY and one == _EMPTY[name]):
            continue
        if name in _EMPTY_IF_ZERO | _LIMITS and _says_nothing(one):
            continue
        if name == "bundles":
            boundaries = _boundaries(one)
        elif name == "replication_clusters":
            _refuse_other_clusters(one, cluster)
        elif name in _QUOTA_NAMES:
            policies = _with_quotas(policies, one)
        elif name in _BY_NAME:
            policies = _with(policies, _BY_NAME[name], one, cluster)
        elif not _says_nothing(one):
            raise ConfigurationError(
                f"{name[:100]!r} is not among the policies of a namespace here: leave it out"
            )
    return policies, boundaries


def _with(policies: Policies, policy: PolicyJson, value: Any, cluster: str) -> Policies:
    if policy.is_by_cluster and isinstance(value, dict) and value.keys() <= {cluster}:
        if not value:
            return policies
        value = value[cluster]
    return replace(policies, **{policy.field: policy.shape.parse(value)})


def _with_quotas(policies: Policies, value: Any) -> Policies:
    if not isinstance(value, dict) or not value.keys() <= QUOTAS.keys():
        raise ConfigurationError(f"backlog quotas are a JSON object with the keys {', '.join(QUOTAS)}")
    parsed = {
        QUOTAS[kind].field: QUOTAS[kind].shape.parse(one) for kind, one in value.items() if one is not None
    }
    return replace(policies, **parsed)


def _says_nothing(value: Any) -> bool:
    """Nobody wants anything by it; tools send such values for all that they know."""
    if isinstance(value, Mapping):
        return all(map(_says_nothing, value.values()))
    return value in (None, False, 0, -1, "", "UNDEFINED", "None") or value == []


def _refuse_other_clusters(value: Any, cluster: str) -> None:
    if not isinstance(value, list) or any(one != cluster for one in value):
        raise ConfigurationError(
            f"replication_clusters can only be this cluster, {cluster}: nothing is replicated to others"
        )


def _boundaries(value: Any) -> tuple[str, ...] | None:
    found = fields_of(value, numBundles=int, boundaries=list)
    edges = found.get("boundaries") or []
    if not edges:
        count = found.get("numBundles", 0)
        if not 0 <= count <= BUNDLES_MAX:
            raise ConfigurationError(
                f"numBundles must be 1 to {BUNDLES_MAX}, or 0 for what the broker prefers"
            )
        return split_evenly(count) if count else None
    ends = edges[0] == "0x00000000" and edges[-1] == "0xffffffff"
    if not ends or not all(isinstance(one, str) and _BOUNDARY.fullmatch(one) for one in edges):
        raise ConfigurationError("boundaries of bundles run from 0x00000000 to 0xffffffff, as such numbers")
    if edges != sorted(set(edges)) or len(edges) > BUNDLES_MAX + 1:
        raise ConfigurationError(f"boundaries of bundles ascend, and there are {BUNDLES_MAX + 1} at most")
    return tuple(one.removeprefix("0x") for one in edges)
