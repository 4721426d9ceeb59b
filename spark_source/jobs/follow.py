"""The Iceberg tables that policies of topics prescribe, kept fresh by a worker: what `quire spark follow-iceberg` does.

    round:  policies of all topics (one request) ─▶ those that name this worker's catalog
            each ─▶ `iceberg.copy` of what the archive has and its table lacks, a slice a commit

A worker is given the catalog, and policies only say which topics go there: so no policy, which anybody may write who
reaches a broker, has it send a token elsewhere. A warehouse that it is given counts before a policy's, too.

It keeps nothing. How far a topic is copied lies in its table, and is moved with the same commit that adds a slice; so
it may be killed at any step, and two workers that run at once copy each slice once (`iceberg_table`). There is no
lease: the slower one drops its file.

A topic that fails keeps no other from its own; it is tried again after a pause that grows. A table lacks what is not
archived yet.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from quire.runtime.errors import QuireError
from quire.runtime.rest import Admin
from quire.spark_source.jobs.iceberg import Copied, Into, copy
from quire.wire import topic_name

PAUSE_FIRST_S: Final = 30.0
PAUSE_MAX_S: Final = 900.0

_NOT_IN_A_NAME: Final = re.compile(r"\W")

log = logging.getLogger(__name__)


@dataclass
class Round:
    """What one round did. `errors` are of the topics whose tables are not fresh, those tried in former rounds too."""

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
    """`options` are those of pyiceberg for the catalog, `reading` those of reading that are for all topics."""

    def __init__(
        self,
        admin: Admin,
        catalog: str,
        options: Mapping[str, str],
        reading: Mapping[str, str] | None = None,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._admin = admin
        self._catalog = catalog
        self._options = options
        self._reading = reading or {}
        self._clock_s = clock_s
        self._incidents: dict[str, _Incident] = {}
        self._told: dict[str, str] = {}
        """Of each topic why its values are bytes only, as it was said last."""

    def round(self) -> Round:
        """Bring every table up to what is archived now. Raises nothing: what fails is among the errors."""
        done = Round()
        try:
            policies = self._admin.get("/quire/v1/iceberg")
        except QuireError as error:
            log.warning("the policies of topics cannot be read now: %s", error)
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
            log.info("%s: works again", topic)
        done.commits += copied.slices
        done.rows += copied.rows
        if copied.slices:
            log.info(
                "copied %d messages of %s into %s: %d commits",
                copied.rows,
                topic,
                copied.table,
                copied.slices,
            )
        if copied.untyped != self._told.get(topic, ""):
            self._told[topic] = copied.untyped
            log.warning("values of %s are bytes only: %s", topic, copied.untyped or "not any more")

    def _copy(self, policy: Mapping[str, Any]) -> Copied:
        where = {"warehouse": policy["warehouse"]} if policy["warehouse"] else {}
        options = where | dict(self._options)
        reading = {"service_url": self._admin.url, "topic": policy["topic"], **self._reading}
        return copy(reading, Into(self._catalog, table_of(policy), options), archived=True)

    def _failed(self, topic: str, error: Exception) -> None:
        before = self._incidents.get(topic)
        pause_s = PAUSE_FIRST_S if before is None else min(2 * before.pause_s, PAUSE_MAX_S)
        self._incidents[topic] = _Incident(str(error), self._clock_s() + pause_s, pause_s)
        if not isinstance(error, QuireError):
            log.exception("a mistake of ours, while %s was copied", topic)
        elif before is None or before.error != str(error):
            log.warning("the table of %s is not fresh, trying again: %s", topic, error)


def table_of(policy: Mapping[str, Any]) -> str:
    """NAMESPACE.TABLE: as the policy says, or else by the topic's names, with _ for what not every engine takes."""
    _, tenant, namespace, local = topic_name.split(policy["topic"])
    of = policy["namespace"] or _NOT_IN_A_NAME.sub("_", f"{tenant}_{namespace}")
    return f"{of}.{policy['table'] or _NOT_IN_A_NAME.sub('_', local)}"


def _same(one: str, other: str) -> bool:
    return one.rstrip("/") == other.rstrip("/")
