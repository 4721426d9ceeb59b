"""The schemas that a topic's messages were written with, by version; each is fetched once, when it is first met.

Messages of a version that is not here yet wait, and with them what came after: order goes before speed, and it is
once a version.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final, Protocol

from quire.client.connection import Connection
from quire.client.schema import Schema
from quire.runtime.errors import QuireError, Unavailable
from quire.runtime.tasks import Tasks
from quire.wire import commands
from quire.wire import pulsar_pb2 as pb

PAUSE_S: Final = 0.5

_log = logging.getLogger(__name__)


class Attached(Protocol):
    """The consumer that asks."""

    topic: str

    async def attached(self) -> Connection: ...


class Writers:
    """`found` is called when one is here."""

    def __init__(self, end: Attached, schema: Schema[Any], tasks: Tasks, found: Callable[[], None]) -> None:
        self._end = end
        self._needs_writer = schema.needs_writer
        self._tasks = tasks
        self._found = found
        self._known: dict[bytes, pb.Schema | None] = {}
        self._asked: set[bytes] = set()

    def has(self, version: bytes) -> bool:
        """Whether messages of the version can be decoded now; if not, it is being asked for."""
        if not self._needs_writer or not version or version in self._known:
            return True
        if version not in self._asked:
            self._asked.add(version)
            self._tasks.start(self._fetch(version), f"the schema of {self._end.topic}")
        return False

    def get(self, version: bytes) -> pb.Schema | None:
        """None: the messages were written without one, or the broker does not know it any more."""
        return self._known.get(version)

    async def _fetch(self, version: bytes) -> None:
        while True:
            try:
                self._known[version] = await self._ask(version)
                break
            except Unavailable as error:
                _log.debug("%s", error)
                await asyncio.sleep(PAUSE_S)
            except QuireError as error:
                _log.warning("%s; its messages are read with the consumer's own schema", error)
                self._known[version] = None
                break
        self._found()

    async def _ask(self, version: bytes) -> pb.Schema:
        answer = await (await self._end.attached()).request(
            f"asking for schema version {version.hex()} of {self._end.topic}",
            lambda request_id: commands.ask_schema(request_id, self._end.topic, version),
            pb.CommandGetSchemaResponse,
        )
        return answer.schema
