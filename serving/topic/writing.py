"""The ledger that a topic writes to: begun, rolled, and replaced when it fails.

| state | leaves it when |
|---|---|
| ended (at first, and between two ledgers) | a new ledger is in the list: *writing*, or *full* |
| full (the bookies' disks are, nothing is written) | there is room: *writing*; somebody publishes: *lost* |
| writing | `roll` (size, age, by hand): *about to roll*; `failed`: *ending* |
| about to roll (still writing) | the metadata store answers, or `failed`: *ending* |
| ending | the old ledger is closed or recovered, and what it kept is answered: *ended* |
| lost | never: the list was changed by another broker, or the clients are to come anew |

The order is always: end the old ledger, make the new one and add it to the list by version, only then write to it.
While there is no ledger the publisher gathers, and the byte budget holds the clients back. So a full ledger is left
only when the metadata store is known to answer; while it is silent the ledger grows beyond its size. A ledger is
made in the transaction that lists it, and on unloading closed in the one that seals its segment: half the requests when
thousands of topics change hands, and nothing is left behind by whoever is refused.

A failed write does not tell where the ledger ends, and the protocol has no reply for "unknown". So the topic recovers
its own ledger as any successor would: what it kept is answered with receipts, the rest is cut anew in order for the
next ledger. The clients see a pause. Only when the list shows another owner are the producers closed.

Where the disks of too many bookies are full a ledger is begun all the same, for what is stored is to be read,
acknowledged and deleted; it stays empty until there is room. New producers are refused by what is full. Those that
publish are sent away, with what they have no receipt for, and are refused when they come back: a client that merely
waits knows nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Container, Sequence
from typing import Final, TypeVar

from quire.ledger.writer import LedgerWriter
from quire.metadata.records import LedgerRecord, SegmentRecord
from quire.metadata.store import Step
from quire.runtime.errors import CorruptionError, Fenced, NotFound, QuireError, Unavailable
from quire.serving.policy.applied import AppliedPolicies
from quire.serving.topic.meta_store import MetaStore
from quire.serving.topic.publish import Publisher
from quire.serving.topic.segments import Active
from quire.serving.topic.services import Services
from quire.wire import block as blocks

RETRY_FIRST_S: Final = 0.1
RETRY_LAST_S: Final = 10.0
ROOM_LOOK_S: Final = 1.0
END_S: Final = 5.0
"""How long unloading waits for a ledger; longer than a bookie that does not answer is borne with."""

T = TypeVar("T")
_log = logging.getLogger(__name__)


class Writing:
    """One per loaded topic; a `WriterListener`."""

    def __init__(
        self,
        name: str,
        services: Services,
        meta_store: MetaStore,
        publisher: Publisher,
        applied: AppliedPolicies,
    ) -> None:
        self._name = name
        self._services = services
        self._meta_store = meta_store
        self._segments = meta_store.segments
        self._publisher = publisher
        self.confirmed = publisher.confirmed
        self._applied = applied
        self.on_lost: Callable[[], None] = lambda: None
        self._writer: LedgerWriter | None = None
        self._rolling: asyncio.Task[None] | None = None
        self._switching: asyncio.Task[None] | None = None
        self._waiting_for_room: asyncio.Task[None] | None = None

    # -- what the ledger's writer tells ----------------------------------------------------------------

    def failed(self, error: QuireError) -> None:
        self._publisher.detach()
        if (
            self._switching is None and self._writer is not None
        ):  # else it is being ended, and `end` will hear it
            _log.warning("%s: ledger failed, recovering it: %s", self._name, error)
            self._switch(clean=False)

    # -- what the topic asks ---------------------------------------------------------------------------

    async def begin(self) -> None:
        """On load: end what a former owner left open, and begin an own ledger. Raises what stops that."""
        left = self._segments.unsealed
        sealed = None if left is None else await self._recover_left(left)
        await self._begin_next(sealed)

    def roll(self) -> asyncio.Task[None] | None:
        """Seal the active segment and go on in a new one; None when there is nothing to seal."""
        active = self._segments.active
        return self._roll() if active is not None and active.last_entry >= 0 else None

    def roll_if_old(self) -> None:
        active, age_ms_max = self._segments.active, self._services.settings.segment_age_ms_max
        if active is not None and self._services.clock.now_ms() - active.created_ms >= age_ms_max:
            self.roll()

    def roll_if_writing_to(self, ledger_ids: Container[int]) -> None:
        """Begin another ledger when the active one is among `ledger_ids`, even if it is empty."""
        active = self._segments.active
        if active is not None and active.ledger_id in ledger_ids:
            self._roll()

    def _roll(self) -> asyncio.Task[None] | None:
        """End the ledger and go on in a new one. Returns the task that does it; None when there is no ledger."""
        if self._rolling is None and self._switching is None and self._writer is not None:
            self._rolling = self._services.tasks.start(
                self._roll_when_reachable(self._writer), f"roll {self._name}"
            )
        return self._rolling or self._switching

    async def _roll_when_reachable(self, writer: LedgerWriter) -> None:
        try:
            await self._stubborn("roll", self._meta_store.reach)
            if self._writer is writer and self._switching is None:
                self._switch(clean=True)
        except Fenced as error:
            _log.warning("%s: does not roll: %s", self._name, error)
        finally:
            self._rolling = None
        if self._switching is not None:
            await asyncio.wait([self._switching])

    async def end(self) -> None:
        """For unloading: end the ledger and write down how it ended. Nothing is written afterwards.

        An empty one goes without a trace where the list can do without it; else the next load drops it.

        Raises `Unavailable` when it takes no writes: then it is left to whoever loads the topic next, for until this
        ends nobody can.
        """
        writer = await self._settle()
        active = self._segments.active
        if active is None or writer is None:
            return
        if active.last_entry >= 0:
            await self._close_and_seal(writer, active)
        elif self._segments.can_drop_active and not writer.was_given_blocks:
            await self._meta_store.drop_active(writer.discard)
        else:
            await writer.close()
        self._publisher.take_back(active.last_entry)

    async def _settle(self) -> LedgerWriter | None:
        """Cut no more, and wait for what is pending. Answers the writer, which is ours no longer."""
        writer: LedgerWriter | None = None
        try:
            async with asyncio.timeout(END_S):
                if self._switching is not None:
                    await asyncio.wait([self._switching])
                writer, self._writer = self._writer, None
                self._publisher.detach()
                if writer is not None:
                    await writer.drain()
        except TimeoutError:
            self.abandon()
            if writer is not None:
                writer.abandon()
            raise Unavailable(f"topic {self._name} has a ledger that takes no writes now") from None
        return writer

    async def _close_and_seal(self, writer: LedgerWriter, active: Active) -> None:
        async def close(steps: Sequence[Step]) -> None:
            closed = await writer.close(steps)
            assert closed.last_entry == active.last_entry

        await self._meta_store.seal(active.sealed(self._services.clock.now_ms()), close)

    def abandon(self) -> None:
        """Write nothing more and close nothing: the topic may be another broker's already."""
        for task in (self._rolling, self._switching, self._waiting_for_room):
            if task is not None and task is not asyncio.current_task():
                task.cancel()
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.abandon()

    # -- from one ledger to the next -------------------------------------------------------------------

    def _switch(self, *, clean: bool) -> None:
        self._publisher.detach()
        self._switching = self._services.tasks.start(self._switch_ledger(clean), f"switch {self._name}")

    async def _switch_ledger(self, clean: bool) -> None:
        writer, active = self._writer, self._segments.active
        assert writer is not None and active is not None
        self._writer = None
        try:
            closed = await self._end(writer, clean)
            self._publisher.take_back(closed.last_entry)
            sealed = active.sealed(self._services.clock.now_ms())
            await self._stubborn("begin a ledger", lambda: self._begin_next(sealed))
        except Fenced as error:
            _log.warning("%s: stopped: %s", self._name, error)
            self.on_lost()
        except Exception:
            # Without a ledger it would gather for ever; whoever loads it again finds what is confirmed.
            _log.exception("%s: stopped by a mistake of ours", self._name)
            self.on_lost()
        finally:
            self._switching = None

    async def _end(self, writer: LedgerWriter, clean: bool) -> LedgerRecord:
        if clean:
            try:
                return await writer.close()
            except QuireError as error:
                _log.warning("%s: ledger %d cannot be closed: %s", self._name, writer.ledger_id, error)
        return await self._stubborn(
            "recover its ledger", lambda: self._services.ledgers.recover(writer.ledger_id)
        )

    async def _stubborn(self, what: str, attempt: Callable[[], Awaitable[T]]) -> T:
        """Try until it works or the topic is lost; one line in the log per incident."""
        delay_s = RETRY_FIRST_S
        while True:
            try:
                result = await attempt()
            except NotFound as error:
                # Only another owner deletes the ledger, or the record, of a topic; trying on would never find it.
                raise Fenced(f"topic {self._name} cannot {what}: {error}") from error
            except QuireError as error:
                if self._meta_store.lost:
                    raise Fenced(f"topic {self._name} is another broker's now") from error
                if delay_s == RETRY_FIRST_S:
                    _log.error("%s: cannot %s, trying on: %s", self._name, what, error)
                await asyncio.sleep(delay_s)
                delay_s = min(2 * delay_s, RETRY_LAST_S)
            else:
                if delay_s > RETRY_FIRST_S:
                    _log.warning("%s: could %s after all", self._name, what)
                return result

    async def _begin_next(self, sealed: SegmentRecord | None) -> None:
        """Create a ledger, put it into the list behind `sealed`, and let the publisher write to it."""
        segments = self._segments
        next_index = segments.next_index() if sealed is None else sealed.first_index + sealed.messages
        last_clock_ms = segments.last_clock_ms() if sealed is None else sealed.last_clock_ms
        opened = Active(await self._reserve(), next_index, self._services.clock.now_ms())
        made: list[LedgerWriter] = []

        async def create(steps: Sequence[Step]) -> None:
            made.append(await self._create(opened.ledger_id, steps))

        await self._meta_store.begin(sealed, opened, create)
        [writer] = made
        self._writer = writer
        clock_ms = max(last_clock_ms, segments.last_clock_ms())
        if self.why_full():
            waiting = self._attach_when_there_is_room(writer, opened, clock_ms)
            self._waiting_for_room = self._services.tasks.start(waiting, f"wait for room for {self._name}")
        else:
            self._publisher.attach(writer, opened, clock_ms)
        if sealed is not None and sealed.last_entry < 0:
            self._delete_later(sealed.ledger_id)

    def why_full(self) -> str:
        """Why nothing can be written now, if it is for want of room; empty when there is some."""
        return self._services.ledgers.why_full(self._applied.policies.persistence)

    async def _attach_when_there_is_room(self, writer: LedgerWriter, opened: Active, clock_ms: int) -> None:
        _log.info("%s: takes no messages now: %s", self._name, self.why_full())
        while self._writer is writer and self.why_full():
            if self._publisher.held_bytes:
                _log.warning("%s: its clients are sent away: %s", self._name, self.why_full())
                self.on_lost()
                return
            await asyncio.sleep(ROOM_LOOK_S)
        if self._writer is writer and self._switching is None:
            self._publisher.attach(writer, opened, clock_ms)
            _log.info("%s: takes messages again", self._name)

    def _delete_later(self, ledger_id: int) -> None:
        deletion = self._services.ledgers.delete(ledger_id)
        self._services.tasks.start(deletion, f"delete empty ledger {ledger_id}")

    async def _reserve(self) -> int:
        """An id above all others of the topic, because positions compare by it."""
        return await self._services.ledgers.reserve(self._segments.greatest_id)

    async def _create(self, ledger_id: int, atomically_with: Sequence[Step]) -> LedgerWriter:
        return await self._services.ledgers.create(
            f"topic:{self._name}",
            self,
            self._applied.policies.persistence,
            ledger_id=ledger_id,
            generation=self._segments.record.generation,
            atomically_with=atomically_with,
        )

    # -- a former owner's ledger -----------------------------------------------------------------------

    async def _recover_left(self, left: SegmentRecord) -> SegmentRecord:
        """End the ledger of a former owner, and count what it holds. The last block knows it all."""
        closed = await self._services.ledgers.recover(left.ledger_id)
        now_ms = self._services.clock.now_ms()
        active = Active(left.ledger_id, left.first_index, left.created_ms, bytes=closed.bytes)
        if closed.last_entry < 0:
            return active.sealed(now_ms)
        reader = self._services.ledgers.reader(closed)
        last = (await reader.read(closed.last_entry, 1))[0]
        header = blocks.peek(last)
        active.last_entry = closed.last_entry
        active.messages = header.first_index + sum(blocks.message_counts(last, header)) - left.first_index
        active.last_clock_ms = header.clock_ms
        try:
            first = header if header.first_entry == 0 else blocks.peek((await reader.read(0, 1))[0])
            active.first_clock_ms = first.clock_ms
        except CorruptionError as error:
            # One damaged block is no reason not to take new ones; no block is older than its ledger.
            _log.error(
                "%s: the first block of ledger %d cannot be read: %s", self._name, left.ledger_id, error
            )
            active.first_clock_ms = left.created_ms
        return active.sealed(now_ms)
