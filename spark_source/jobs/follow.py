"""Worker that keeps the Iceberg tables of topics' policies fresh, for `quire spark follow-iceberg`.

    round:  policies of all topics (one request) ─▶ policies with this worker's catalog
            each ─▶ `iceberg.copy` of archived slices that the topic's table lacks, one commit per slice

Policies are written by tenants' administrators, who need not be trusted. So a worker accepts only these values
(`Allowed`):

    field of a policy   accepted
    catalog             only the worker's own catalog, so that no token is sent elsewhere
    warehouse           if the worker has no warehouse of its own, and allows this one
    namespace           the topic's own, one that cannot be another topic's own, or an allowed one
    table               any name in that namespace

The worker has no state of its own. A table contains the progress of its topic's copy. The commit that adds a slice also
updates the progress. So the worker may be killed at any step, and concurrent workers copy each slice once
(`iceberg_table`). There is no lease: if two workers copy a slice, the slower one deletes its file.

A topic that fails does not affect others. It is retried with exponential back-off. Messages that are not archived yet
are not in the table.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

from quire.runtime.errors import ConfigurationError, QuireError
from quire.runtime.rest import Admin
from quire.spark_source.jobs.iceberg import Copied, Into, copy
from quire.spark_source.jobs.iceberg_table import is_copy_of, open_catalog
from quire.wire import topic_name

PAUSE_FIRST_S: Final = 30.0
PAUSE_MAX_S: Final = 900.0

_NOT_IN_A_NAME: Final = re.compile(r"\W")
_NAMESPACE: Final = re.compile(r"[\w-]+(\.[\w-]+)*")
_TABLE: Final = re.compile(r"[\w-]+")
_PLAIN: Final = re.compile(r"[^\W_]+")

log = logging.getLogger(__name__)


class Allowed(NamedTuple):
    """Warehouses (or their prefixes) and Iceberg namespaces that policies may contain."""

    warehouses: tuple[str, ...] = ()
    namespaces: tuple[str, ...] = ()

    def check_warehouse(self, warehouse: str) -> None:
        """Raise `ConfigurationError` unless `warehouse` is allowed, or is below an allowed one."""
        is_plain = ".." not in unquote(warehouse).replace("\\", "/").split("/")
        if not is_plain or not any(_is_within(warehouse, one) for one in self.warehouses):
            raise ConfigurationError(
                f"the warehouse {warehouse} of the topic's policy is not allowed: omit it in the policy, or start the "
                "worker with --allow-warehouse and this warehouse, or a prefix of it"
            )


def _is_within(warehouse: str, allowed: str) -> bool:
    return f"{warehouse.rstrip('/')}/".startswith(f"{allowed.rstrip('/')}/")


@dataclass
class Round:
    """Result of one round.

    `errors` contains the latest error of each topic whose table is not current, also if it is from an earlier round.
    """

    topics: int = 0
    commits: int = 0
    rows: int = 0
    errors: list[str] = field(default_factory=list)


@dataclass
class _Incident:
    error: str
    again_at: float
    pause_s: float = PAUSE_FIRST_S


class Follower:
    """Worker for one catalog. `options` are pyiceberg's, `reading` are the source's options for all topics.

    `allowed` contains the values that policies may have.
    """

    def __init__(
        self,
        admin: Admin,
        catalog: str,
        options: Mapping[str, str],
        reading: Mapping[str, str] | None = None,
        allowed: Allowed = Allowed(),  # noqa: B008  frozen
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._admin = admin
        self._catalog = catalog
        self._options = options
        self._reading = reading or {}
        self._allowed = allowed
        self._clock_s = clock_s
        self._incidents: dict[str, _Incident] = {}
        self._reported_untyped: dict[str, str] = {}
        """Last logged reason why values are untyped bytes, by topic."""

    def round(self) -> Round:
        """Copy all archived messages that the tables lack. Never raises: failures are in the result's `errors`."""
        done = Round()
        try:
            policies = self._admin.get("/quire/v1/iceberg")
        except QuireError as error:
            log.warning("cannot read the topics' policies: %s", error)
            done.errors.append(str(error))
            return done
        wanted = {one["topic"]: one for one in policies if _same(one["catalog"], self._catalog)}
        self._incidents = {topic: one for topic, one in self._incidents.items() if topic in wanted}
        for topic, policy in sorted(wanted.items()):
            done.topics += 1
            incident = self._incidents.get(topic)
            if incident is None or self._clock_s() >= incident.again_at:
                self._attempt(policy, done)
            if topic in self._incidents:
                done.errors.append(f"{topic}: {self._incidents[topic].error}")
        return done

    def _attempt(self, policy: Mapping[str, Any], done: Round) -> None:
        topic = policy["topic"]
        try:
            copied = self._copy(policy)
        except Exception as error:
            self._failed(topic, error)
            return
        if self._incidents.pop(topic, None) is not None:
            log.info("topic %s: copying succeeded again", topic)
        done.commits += copied.slices
        done.rows += copied.rows
        if copied.slices:
            log.info(
                "copied %d messages of %s into %s in %d commits",
                copied.rows,
                topic,
                copied.table,
                copied.slices,
            )
        if copied.untyped != self._reported_untyped.get(topic, ""):
            self._reported_untyped[topic] = copied.untyped
            if copied.untyped:
                log.warning(
                    "topic %s: values are copied as bytes, without a schema: %s", topic, copied.untyped
                )
            else:
                log.warning("topic %s: values are copied with their schema again", topic)

    def _copy(self, policy: Mapping[str, Any]) -> Copied:
        options = dict(self._options)
        if policy["warehouse"] and "warehouse" not in options:
            self._allowed.check_warehouse(policy["warehouse"])
            options["warehouse"] = policy["warehouse"]
        name = table_of(policy, self._allowed)
        former = former_table_of(policy)
        if former != name and is_copy_of(open_catalog(self._catalog, options), former, policy["topic"]):
            name = former
        reading = {"service_url": self._admin.url, "topic": policy["topic"], **self._reading}
        return copy(reading, Into(self._catalog, name, options), archived=True)

    def _failed(self, topic: str, error: Exception) -> None:
        before = self._incidents.get(topic)
        pause_s = PAUSE_FIRST_S if before is None else min(2 * before.pause_s, PAUSE_MAX_S)
        self._incidents[topic] = _Incident(str(error), self._clock_s() + pause_s, pause_s)
        if not isinstance(error, QuireError):
            log.exception("topic %s: copying failed: internal error", topic)
        elif before is None or before.error != str(error):
            log.warning("topic %s: copying failed, its table is not current, trying again: %s", topic, error)


def table_of(policy: Mapping[str, Any], allowed: Allowed = Allowed()) -> str:  # noqa: B008  frozen
    """Return NAMESPACE.TABLE, each part from the policy or else from the topic's name.

    In names from the topic, `_` replaces characters that some engines refuse. Raises `ConfigurationError` for a name in
    the policy with such characters, and for a namespace that may belong to other topics.
    """
    _, tenant, namespace, local = topic_name.split(policy["topic"])
    own, table = own_namespace(tenant, namespace), policy["table"] or _NOT_IN_A_NAME.sub("_", local)
    of = policy["namespace"] or own
    if not _NAMESPACE.fullmatch(of) or not _TABLE.fullmatch(table):
        raise ConfigurationError(f"{of}.{table} is not a table name: use letters, digits, - and _")
    if of != own and "_" in of and of not in allowed.namespaces:
        raise ConfigurationError(
            f"the namespace {of} may be another tenant's: omit it (the default is {own}), choose one without _, or "
            f"start the worker with --allow-namespace {of}"
        )
    return f"{of}.{table}"


def own_namespace(tenant: str, namespace: str) -> str:
    """Return the unique Iceberg namespace of a topic's namespace: TENANT_NAMESPACE.

    If the names have other characters than lower-case letters and digits, a hash distinguishes `a_b/c` from `a/b_c`.
    """
    name = _NOT_IN_A_NAME.sub("_", f"{tenant}_{namespace}")
    if _PLAIN.fullmatch(tenant) and _PLAIN.fullmatch(namespace) and name == name.lower():
        return name
    return f"{name}_{sha256(f'{tenant}/{namespace}'.encode()).hexdigest()[:8]}"


def former_table_of(policy: Mapping[str, Any]) -> str:
    """Return the table's name as in older versions, without a hash. The worker continues a table of that name."""
    _, tenant, namespace, local = topic_name.split(policy["topic"])
    of = policy["namespace"] or _NOT_IN_A_NAME.sub("_", f"{tenant}_{namespace}")
    return f"{of}.{policy['table'] or _NOT_IN_A_NAME.sub('_', local)}"


def _same(one: str, other: str) -> bool:
    return one.rstrip("/") == other.rstrip("/")
