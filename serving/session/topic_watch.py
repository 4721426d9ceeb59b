"""Topic watchers (WATCH_TOPIC_LIST, PIP-145): a client receives the topics that match its pattern, and later changes.

    opening    lane busy     the namespace's topics are listed and matched, SUCCESS is written
    open       lane free     changes are collected (`_came`), matched, and written as one WATCH_TOPIC_UPDATE
    closed                   CLOSE was answered, or the connection is closed

Changes are collected while names are being matched, and while the client does not read. Only the last state of each
name is kept, so a client that does not read costs at most a list of names. Names are matched in small groups, so that
no pattern delays other connections for long (`matching`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from quire.runtime.clock import Clock
from quire.runtime.errors import ConfigurationError, LimitExceeded, QuireError
from quire.runtime.limits import (
    MIB,
    TOPICS_MATCH_S_MAX,
    WATCHED_NAME_BYTES,
)
from quire.serving.model.ports import NotAllowed
from quire.serving.model.topics_pattern import TopicsPattern, topics_hash
from quire.serving.names import check_name
from quire.serving.session.connection import Connection
from quire.serving.session.lane import Lane
from quire.serving.session.permissions import permit_in_namespace
from quire.wire import commands
from quire.wire import pulsar_pb2 as pb

NAMES_A_TURN: Final = 100
NAMES_BYTES_PER_FRAME: Final = MIB
"""Maximum bytes of names in a frame, because clients reject frames that are much larger than a message."""


async def matching(pattern: TopicsPattern, names: Iterable[str], clock: Clock) -> list[str]:
    """Return those of `names` that match `pattern`, in order. Raises `LimitExceeded` if the matching takes too long."""
    wanted, found, spent_s = list(names), [], 0.0
    for start in range(0, len(wanted), NAMES_A_TURN):
        began = clock.monotonic()
        found += [name for name in wanted[start : start + NAMES_A_TURN] if pattern.matches(name)]
        spent_s += clock.monotonic() - began
        if spent_s > TOPICS_MATCH_S_MAX:
            raise LimitExceeded(
                f"matching topics with {pattern.text!r} takes too long; use a simpler pattern"
            )
        await asyncio.sleep(0)
    return found


def namespace_of(text: str) -> tuple[str, str]:
    """Parse a namespace as (tenant, namespace). Raises `ConfigurationError` if it is invalid."""
    check_name("the namespace", text)
    tenant, _, namespace = text.partition("/")
    if not tenant or not namespace:
        raise ConfigurationError(f"{text!r} is not a namespace; write tenant/namespace")
    return tenant, namespace


class TopicWatcher:
    """Topic watcher of a connection."""

    def __init__(self, connection: Connection, watcher_id: int) -> None:
        self.lane = Lane(connection)
        self._connection = connection
        self._id = watcher_id
        self.namespace = "", ""
        """Watched (tenant, namespace)."""
        self._pattern: TopicsPattern | None = None
        """Pattern of the watched topic names; None until SUCCESS was written."""
        self._told: set[str] = set()
        self._came: dict[str, bool] = {}
        """Names of created (True) and deleted (False) topics that were not written yet."""
        self._is_matching = False
        self._stop: Callable[[], None] = _nothing

    async def open(self, body: pb.CommandWatchTopicList) -> None:
        """Start watching, and answer WATCH_TOPIC_LIST exactly once. An earlier watcher of the same id is replaced."""
        self.detach()
        try:
            pattern = TopicsPattern(body.topics_pattern)
            tenant, namespace = self.namespace = namespace_of(body.namespace)
            await permit_in_namespace(
                self._connection, pb.BaseCommand.WATCH_TOPIC_LIST, body, tenant, namespace
            )
            context = self._connection.context
            watched = await context.topics.watch(tenant, namespace, self._changed)
            self._stop = watched.stop
            found = sorted(await matching(pattern, watched.names, context.clock))
            if not context.kept.has_room(self._connection.peer.owner, len(found) * WATCHED_NAME_BYTES):
                raise LimitExceeded(
                    f"cannot watch {len(found)} topics: their names exceed the memory budget of this broker"
                )
        except QuireError as error:
            if isinstance(error, LimitExceeded):
                error = NotAllowed(str(error))
            self._connection.refuse_request("WATCH_TOPIC_LIST", body.request_id, error)
            self._end()
            return
        if self._connection.is_closed:
            self.detach()
            return
        self._pattern, self._told = pattern, set(found)
        self.lane.keep(len(self._told) * WATCHED_NAME_BYTES)
        self._succeed(body, found)
        self._digest()

    def _succeed(self, body: pb.CommandWatchTopicList, found: Sequence[str]) -> None:
        """Write SUCCESS with the topic names, or without them if the client's hash matches.

        Names that do not fit into its frame follow as updates.
        """
        now = topics_hash(found)
        first, *more = list(_frames(found if now != body.topics_hash else ())) or [()]
        self._connection.write(commands.topics_watched(body.request_id, self._id, first, now))
        for some in more:
            self._connection.write(commands.topics_changed(self._id, some, (), now))

    def close_on_request(self, request_id: int) -> None:
        """Handle WATCH_TOPIC_LIST_CLOSE."""
        self._connection.write(commands.success(request_id))
        self._end()

    def _end(self) -> None:
        self.detach()
        self._connection.forget_watcher(self._id)
        self.lane.close()

    def detach(self) -> None:
        """Stop watching; the client receives no more updates."""
        self._stop()
        self._stop, self._pattern = _nothing, None
        self._came.clear()
        self._told = set()
        self.lane.keep(0)

    @property
    def is_open(self) -> bool:
        """True from SUCCESS until the watcher ends."""
        return self._pattern is not None

    def revoke(self) -> None:
        """Stop watching, because the role lost the permission to list topics. The protocol has no message for that."""
        self.detach()

    def resumed(self) -> None:
        """Write collected changes, because the client reads again."""
        self._digest()

    # -- changes of topics -----------------------------------------------------------------------------

    def _changed(self, came: frozenset[str], went: frozenset[str]) -> None:
        self._came.update(dict.fromkeys(went, False))
        self._came.update(dict.fromkeys(came, True))
        self._digest()

    def _digest(self) -> None:
        if (
            self._pattern is not None
            and self._came
            and self._connection.outbound.is_writable
            and not self._is_matching
        ):
            self._is_matching = True
            self._connection.context.tasks.start(self._tell(self._pattern), "WATCH_TOPIC_UPDATE")

    async def _tell(self, pattern: TopicsPattern) -> None:
        came, self._came = self._came, {}
        try:
            matches = set(await matching(pattern, came, self._connection.context.clock))
        except LimitExceeded as error:
            self._connection.refuse(error)
            return
        finally:
            self._is_matching = False
        if pattern is not self._pattern:
            return  # the watcher ended meanwhile
        there = {name for name in matches if came[name]}
        self._write(sorted(there - self._told), sorted((matches - there) & self._told))
        self._digest()

    def _write(self, new: Sequence[str], deleted: Sequence[str]) -> None:
        if not new and not deleted:
            return
        self._told.update(new)
        self._told.difference_update(deleted)
        self.lane.keep(len(self._told) * WATCHED_NAME_BYTES)
        now = topics_hash(self._told)
        for some in _frames(deleted):
            self._connection.write(commands.topics_changed(self._id, (), some, now))
        for some in _frames(new):
            self._connection.write(commands.topics_changed(self._id, some, (), now))


def _frames(names: Sequence[str]) -> Iterator[Sequence[str]]:
    """Yield `names` in parts that fit into one frame each."""
    start = size = 0
    for at, name in enumerate(names):
        if size > 0 and size + len(name) > NAMES_BYTES_PER_FRAME:
            yield names[start:at]
            start, size = at, 0
        size += len(name.encode()) + 8
    if start < len(names):
        yield names[start:]


def _nothing() -> None:
    """Do nothing, because the watcher watches no namespace yet."""
