"""The topics whose names match a pattern, as they come and go.

A broker that can tells what changes (WATCH_TOPIC_LIST); another one is asked now and then. Either way the names are
matched here as well, so it does not matter what the broker makes of the pattern. A partitioned topic is known by its
own name, whichever of its partitions are listed.

A pattern is Python's, and is about the whole name without its domain; the namespace in it is taken literally:

    orders-.*                         in public/default
    acme/shop/orders-.*               in acme/shop, as is persistent://acme/shop/orders-.*
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
    """Raises `ConfigurationError` for what names no namespace."""

    def __init__(self, given: re.Pattern[str]) -> None:
        text = given.pattern.removeprefix(_DOMAIN)
        if text.count("/") not in (0, 2) or "://" in text:
            raise ConfigurationError(
                f"{given.pattern!r} is no pattern of topics, such as tenant/namespace/name-.*"
            )
        self.text = text if "/" in text else _HOME + text
        self.namespace = self.text.rpartition("/")[0]
        self._compiled = re.compile(self.text, given.flags)

    def matching(self, names: Iterable[str]) -> set[str]:
        """Of full names, those of topics that match; partitions count as their topic."""
        parents = {parent_name(name) for name in names}
        return {name for name in parents if self._compiled.fullmatch(name.partition("://")[2])}


class Follower:
    """Tells `changed` which topics match, whenever that has changed."""

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
        """Until a broker has refused to."""

    async def first(self) -> set[str]:
        """The topics that match now. Raises what the broker answers."""
        listed = await self._client.lookup.topics(self._pattern.namespace)
        self._told = self._pattern.matching(listed)
        return self._told

    async def run(self) -> None:
        """Follow for ever."""
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
                _log.debug("following %s: %s", self._pattern.text, error)
            await asyncio.sleep(backoff.next_s())

    async def _watch(self, connection: Connection) -> None:
        """Be told on this connection until it ends."""
        self._ended = None
        connection.watchers[self._id] = self
        try:
            answer = await connection.request(
                f"watching the topics of {self._pattern.text}",
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
            connection.watchers.pop(self._id, None)
            self._names.clear()

    async def _tell(self, names: Iterable[str]) -> None:
        matching = self._pattern.matching(names)
        if matching != self._told:
            self._told = None  # until it is done: who cannot follow is told again
            await self._changed(matching)
            self._told = matching

    def tell_again(self) -> None:
        """What was told is not so any more, whether or not the list changes."""
        self._told = None
        self._news.set()

    # -- What the connection says --

    def topics_changed(self, body: pb.CommandWatchTopicUpdate) -> None:
        self._names.difference_update(body.deleted_topics)
        self._names.update(body.new_topics)
        self._news.set()

    def detached(self, reason: QuireError) -> None:
        self._ended = reason
        self._news.set()
