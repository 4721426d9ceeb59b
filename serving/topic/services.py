"""What every topic of a broker shares: stores, clock, cache, budget. One object, so that a topic takes one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from quire.metadata.records import ArchivePointer, LedgerRecord
from quire.metadata.store import MetadataStore, Step
from quire.runtime.budget import ByteBudget
from quire.runtime.clock import Clock
from quire.runtime.errors import LostForGood, QuireError
from quire.runtime.tasks import Tasks
from quire.runtime.threads import DaemonThreads
from quire.serving.policy.throttle import BrokerThrottles
from quire.serving.settings import BrokerSettings
from quire.serving.topic.publish import Turn
from quire.serving.topic.reading import LedgerOpener, SegmentReader
from quire.serving.topic.tail_cache import TailCache
from quire.wire.block import Buffer

HELPERS: Final = 2
"""Threads for what clients can make long. More would only take the interpreter from the event loop more often."""


class WriterListener(Protocol):
    """Called on the loop, in order, by a ledger's writer."""

    def confirmed(self, last_entry: int) -> None: ...

    def failed(self, error: QuireError) -> None: ...


class LedgerWriter(Protocol):
    """See docs/architecture.md."""

    ledger_id: int

    @property
    def was_given_blocks(self) -> bool: ...

    def add(self, block: Buffer, header_last_entry: int) -> None: ...

    async def drain(self) -> None: ...

    async def close(self, beside: Sequence[Step] = ()) -> LedgerRecord: ...

    async def discard(self, beside: Sequence[Step]) -> None: ...

    def abandon(self) -> None: ...


class Ledgers(LedgerOpener, Protocol):
    """The door of the room `ledger`, as far as topics use it."""

    def why_full(self, ack_quorum: int | None = None) -> str: ...

    async def reserve(self, above: int) -> int: ...

    async def create(
        self,
        purpose: str,
        listener: WriterListener,
        *,
        write_quorum: int | None = None,
        ack_quorum: int | None = None,
        ledger_id: int | None = None,
        beside: Sequence[Step] = (),
    ) -> LedgerWriter: ...

    def reader(self, closed: LedgerRecord) -> SegmentReader: ...

    async def recover(self, ledger_id: int) -> LedgerRecord: ...

    async def info(self, ledger_id: int) -> LedgerRecord: ...

    def lost(self) -> Mapping[int, LostForGood]: ...

    async def delete(self, ledger_id: int) -> None: ...

    async def is_flushed(self, ledger_id: int) -> bool: ...


class Archive(Protocol):
    """The door of the room `tiering`, as far as topics use it."""

    @property
    def damaged(self) -> Mapping[str, str]: ...

    def open(self, pointer: ArchivePointer) -> SegmentReader: ...

    def note_damage(self, pointer: ArchivePointer, segment: str, error: QuireError) -> str: ...

    async def delete(self, pointer: ArchivePointer) -> None: ...


@dataclass(slots=True)
class Services:
    """See the top of the file. `archive` is None where none is configured."""

    store: MetadataStore
    ledgers: Ledgers
    archive: Archive | None
    clock: Clock
    settings: BrokerSettings
    turn: Turn
    budget: ByteBudget
    tail_cache: TailCache
    tasks: Tasks
    throttles: BrokerThrottles
    shed_at: float = 0.0
    """When the last of the topics that were dropped comes apart, by the loop's time."""
    helpers: DaemonThreads = field(default_factory=lambda: DaemonThreads(HELPERS, "quire-helper"))
    """They do all that decodes what clients sent, or may take long."""
