"""Tracker of the topics that match a name pattern, while topics are created and deleted.

If the broker supports it, it reports changes to the list of topics ([PIP-145], WATCH_TOPIC_LIST); otherwise the list is
polled. The client matches the names itself in both cases, so the broker's regular expression engine does not matter. A
partitioned topic is treated as one name.

A pattern is a Python regular expression for the whole name without its domain; its namespace is literal:

    orders-.*                         in public/default
    acme/shop/orders-.*               in acme/shop, as is persistent://acme/shop/orders-.*

[PIP-145]: https://github.com/apache/pulsar/issues/14505
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from quire.client.backoff import Backoff
from quire.client.connection import Connection
from quire.client.context import Context
from quire.client.errors import Refused
from quire.client.routing import parent_name
from quire.runtime.errors import ConfigurationError, QuireError
from quire.wire import commands
from quire.wire import pulsar_pb2 as pb

_DOMAIN: Final = "persistent://"
_HOME: Final = "public/default/"

_log = logging.getLogger(__name__)


class Pattern:
    """Pattern of topic names. Raises `ConfigurationError` if its namespace is malformed."""

    def __init__(self, given: re.Pattern[str]) -> None:
        text = given.pattern.removeprefix(_DOMAIN)
        if text.count("/") not in (0, 2) or "://" in text:
            raise ConfigurationError(
                f"{given.pattern!r} is not a topic pattern such as tenant/namespace/name-.*"
            )
        self.text = text if "/" in text else _HOME + text
        self.namespace = self.text.rpartition("/")[0]
        self._compiled = re.compile(self.text, given.flags)

    def matching(self, names: Iterable[str]) -> set[str]:
        """Return the matching topics among full names; a partition counts as its partitioned topic."""
        parents = {parent_name(name) for name in names}
        return {name for name in parents if self._compiled.fullmatch(name.partition("://")[2])}


class Follower:
    """Calls `changed` with the matching topics whenever they have changed."""

    def __init__(
        self, client: Context, pattern: Pattern, changed: Callable[[set[str]], Awaitable[None]]
    ) -> None:
        self._client = client
        self._pattern = pattern
        self._changed = changed
        self._id = client.next_id()
        self._names: set[str] = set()
        self._news = asyncio.Event()
        self._ended: QuireError | None = None
        self._told: set[str] | None = None
        self._watches = True
        """True until a broker refuses to report changes; then the list of topics is polled."""

    async def first(self) -> set[str]:
        """Return the topics that match now. Raises the broker's error."""
        listed = await self._client.lookup.topics(self._pattern.namespace)
        self._told = self._pattern.matching(listed)
        return self._told

    async def run(self) -> None:
        """Watch or poll the topics until cancelled."""
        settings = self._client.settings
        backoff = Backoff(settings.backoff_first_ms, settings.backoff_max_ms, self._client.rng)
        while True:
            try:
                connection = await self._client.lookup.service()
                if self._watches and connection.tells_topics:
                    await self._watch(connection)
                    backoff.reset()
                else:
                    await asyncio.sleep(settings.partitions_poll_ms / 1000)
                    await self._tell(await self._client.lookup.topics(self._pattern.namespace))
                    continue
            except Refused as error:
                _log.debug("%s", error)
                self._watches = False
            except QuireError as error:
                _log.debug("following the topics of %s failed: %s", self._pattern.text, error)
            await asyncio.sleep(backoff.next_s())

    async def _watch(self, connection: Connection) -> None:
        """Watch the topics on this connection until it ends."""
        self._ended = None
        connection.members.watchers[self._id] = self
        try:
            answer = await connection.request(
                f"watching the topics that match {self._pattern.text}",
                lambda request_id: commands.watch_topics(
                    request_id, self._id, self._pattern.namespace, self._pattern.text
                ),
                pb.CommandWatchTopicListSuccess,
            )
            self._names |= set(answer.topic)
            while self._ended is None:
                await self._tell(self._names)
                await self._news.wait()
                self._news.clear()
        finally:
            connection.members.watchers.pop(self._id, None)
            self._names.clear()

    async def _tell(self, names: Iterable[str]) -> None:
        matching = self._pattern.matching(names)
        if matching != self._told:
            self._told = None  # until `changed` succeeds, so that a failed call is repeated
            await self._changed(matching)
            self._told = matching

    def tell_again(self) -> None:
        """Call `changed` again even if the list of topics does not change."""
        self._told = None
        self._news.set()

    # -- Callbacks of the connection --

    def topics_changed(self, body: pb.CommandWatchTopicUpdate) -> None:
        self._names.difference_update(body.deleted_topics)
        self._names.update(body.new_topics)
        self._news.set()

    def detached(self, reason: QuireError) -> None:
        self._ended = reason
        self._news.set()
