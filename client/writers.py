"""Schemas that a topic's messages were written with, by version; each is fetched once, on its first use.

Messages whose schema is being fetched wait, and so do all messages after them, to keep the order.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final

from quire.client.acknowledging import Attached
from quire.client.schema import Schema
from quire.runtime.errors import QuireError, Unavailable
from quire.runtime.tasks import Tasks
from quire.wire import commands
from quire.wire import pulsar_pb2 as pb

PAUSE_S: Final = 0.5

_log = logging.getLogger(__name__)


class Writers:
    """Schemas of one topic's messages, by version. `found` is called after each fetch."""

    def __init__(self, end: Attached, schema: Schema[Any], tasks: Tasks, found: Callable[[], None]) -> None:
        self._end = end
        self._needs_writer = schema.needs_writer
        self._tasks = tasks
        self._found = found
        self._known: dict[bytes, pb.Schema | None] = {}
        self._asked: set[bytes] = set()

    def has(self, version: bytes) -> bool:
        """Return whether messages of the version can be decoded now; if not, start fetching its schema."""
        if not self._needs_writer or not version or version in self._known:
            return True
        if version not in self._asked:
            self._asked.add(version)
            self._tasks.start(self._fetch(version), f"the schema of {self._end.topic}")
        return False

    def get(self, version: bytes) -> pb.Schema | None:
        """Return the schema of a version; None if messages have no schema, or the broker no longer has it."""
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
                _log.warning("%s; messages of this version are decoded with the consumer's own schema", error)
                self._known[version] = None
                break
        self._found()

    async def _ask(self, version: bytes) -> pb.Schema:
        answer = await (await self._end.attached()).request(
            f"getting schema version {version.hex()} of {self._end.topic}",
            lambda request_id: commands.ask_schema(request_id, self._end.topic, version),
            pb.CommandGetSchemaResponse,
        )
        return answer.schema
