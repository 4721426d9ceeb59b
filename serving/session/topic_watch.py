"""WATCH_TOPIC_LIST: a client is told the topics that match its pattern, and from then on what comes and goes.

    opening    lane busy     the namespace's list is taken, its names are matched, SUCCESS is written
    told       lane free     what changes is gathered (`_came`), matched, and written as one WATCH_TOPIC_UPDATE
    closed                   CLOSE was answered, or the connection is gone

What changes is gathered while names are being matched, and while the client does not read; then only the last state
of each name counts, so a client that does not read costs no more than a list of names. Names are matched a few at a
time: whatever the pattern, nobody else waits long (`matching`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from quire.runtime.clock import Clock
from quire.runtime.errors import ConfigurationError, LimitExceeded, QuireError
from quire.runtime.limits import MIB, TOPIC_WATCHERS_PER_CONNECTION_MAX, TOPICS_MATCH_S_MAX
from quire.serving.model.ports import NotAllowed
from quire.serving.model.topics_pattern import TopicsPattern, topics_hash
from quire.serving.names import check_name
from quire.serving.session.connection import Connection, Handler
from quire.serving.session.lane import Lane
from quire.serving.session.permissions import permit_in_namespace
from quire.wire import commands
from quire.wire import pulsar_pb2 as pb

NAMES_A_TURN: Final = 100
NAMES_BYTES_PER_FRAME: Final = MIB
"""Clients refuse frames that are much larger than a message."""


async def matching(pattern: TopicsPattern, names: Iterable[str], clock: Clock) -> list[str]:
    """Those that match, in order. Raises `LimitExceeded` when it takes too long."""
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
    """(tenant, namespace). Raises `ConfigurationError`."""
    check_name("the namespace", text)
    tenant, _, namespace = text.partition("/")
    if not tenant or not namespace:
        raise ConfigurationError(f"{text!r} is no namespace; write tenant/namespace")
    return tenant, namespace


class TopicWatcher:
    def __init__(self, connection: Connection, watcher_id: int) -> None:
        self.lane = Lane(connection)
        self._connection = connection
        self._id = watcher_id
        self.namespace = "", ""
        """(tenant, namespace) that is watched."""
        self._pattern: TopicsPattern | None = None
        """None until SUCCESS is written."""
        self._told: set[str] = set()
        self._came: dict[str, bool] = {}
        """Names that have changed since, and whether they are there."""
        self._is_matching = False
        self._stop: Callable[[], None] = _nothing

    async def open(self, body: pb.CommandWatchTopicList) -> None:
        """Answer the request: once, whatever happens. A watcher of that id that was there before ends."""
        self.detach()
        try:
            pattern = TopicsPattern(body.topics_pattern)
            tenant, namespace = self.namespace = namespace_of(body.namespace)
            await permit_in_namespace(
                self._connection, pb.BaseCommand.WATCH_TOPIC_LIST, body, tenant, namespace
            )
            host = self._connection.host
            watched = await host.topics.watch(tenant, namespace, self._changed)
            self._stop = watched.stop
            found = sorted(await matching(pattern, watched.names, host.clock))
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
        self._succeed(body, found)
        self._digest()

    def _succeed(self, body: pb.CommandWatchTopicList, found: Sequence[str]) -> None:
        """Nothing when it is what the client knows; what does not fit in one frame follows as updates."""
        now = topics_hash(found)
        first, *more = list(_frames(found if now != body.topics_hash else ())) or [()]
        self._connection.write(commands.topics_watched(body.request_id, self._id, first, now))
        for some in more:
            self._connection.write(commands.topics_changed(self._id, some, (), now))

    def close_on_request(self, request_id: int) -> None:
        """WATCH_TOPIC_LIST_CLOSE."""
        self._connection.write(commands.success(request_id))
        self._end()

    def _end(self) -> None:
        self.detach()
        self._connection.watchers.pop(self._id, None)
        self.lane.close()

    def detach(self) -> None:
        """Nobody is told anything any more."""
        self._stop()
        self._stop, self._pattern = _nothing, None
        self._came.clear()

    @property
    def is_open(self) -> bool:
        """It was let in, and has not ended."""
        return self._pattern is not None

    def revoke(self) -> None:
        """Its role may not list the topics any more; clients know no word for that, and just hear nothing."""
        self.detach()

    def resumed(self) -> None:
        """The client reads again."""
        self._digest()

    # -- what changes ----------------------------------------------------------------------------------

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
            self._connection.host.tasks.start(self._tell(self._pattern), "WATCH_TOPIC_UPDATE")

    async def _tell(self, pattern: TopicsPattern) -> None:
        came, self._came = self._came, {}
        try:
            matches = set(await matching(pattern, came, self._connection.host.clock))
        except LimitExceeded as error:
            self._connection.refuse(error)
            return
        finally:
            self._is_matching = False
        if pattern is not self._pattern:
            return  # it ended meanwhile
        there = {name for name in matches if came[name]}
        self._write(sorted(there - self._told), sorted((matches - there) & self._told))
        self._digest()

    def _write(self, new: Sequence[str], deleted: Sequence[str]) -> None:
        if not new and not deleted:
            return
        self._told.update(new)
        self._told.difference_update(deleted)
        now = topics_hash(self._told)
        for some in _frames(deleted):
            self._connection.write(commands.topics_changed(self._id, (), some, now))
        for some in _frames(new):
            self._connection.write(commands.topics_changed(self._id, some, (), now))


def _frames(names: Sequence[str]) -> Iterator[Sequence[str]]:
    """`names` in parts that fit a frame each."""
    start = size = 0
    for at, name in enumerate(names):
        if size > 0 and size + len(name) > NAMES_BYTES_PER_FRAME:
            yield names[start:at]
            start, size = at, 0
        size += len(name.encode()) + 8
    if start < len(names):
        yield names[start:]


def _nothing() -> None:
    """There is nothing to stop."""


def watch(connection: Connection, body: pb.CommandWatchTopicList) -> None:
    watcher = connection.watchers.get(body.watcher_id)
    if watcher is None:
        if len(connection.watchers) >= TOPIC_WATCHERS_PER_CONNECTION_MAX:
            refusal = NotAllowed(
                f"a connection has {TOPIC_WATCHERS_PER_CONNECTION_MAX} topic watchers at most"
            )
            connection.refuse_request("WATCH_TOPIC_LIST", body.request_id, refusal)
            return
        watcher = connection.watchers[body.watcher_id] = TopicWatcher(connection, body.watcher_id)
    watcher.lane.run_exclusively(watcher.open(body), "WATCH_TOPIC_LIST")


def watch_no_more(connection: Connection, body: pb.CommandWatchTopicListClose) -> None:
    watcher = connection.watchers.get(body.watcher_id)
    if watcher is None:
        connection.write(commands.success(body.request_id))
    else:
        watcher.close_on_request(body.request_id)


HANDLERS: Final[dict[int, Handler]] = {
    pb.BaseCommand.WATCH_TOPIC_LIST: watch,
    pb.BaseCommand.WATCH_TOPIC_LIST_CLOSE: watch_no_more,
}
