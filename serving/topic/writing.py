"""Open ledger of a topic: creation, roll, and replacement after a failed write.

| state | left when |
|---|---|
| ended (initially, and between two ledgers) | a new ledger is in the list: *writing*, or *full* |
| full (the bookies' disks are full, no writes) | the disks have room: *writing*; a client publishes: *lost* |
| writing | `roll` (size, age, or request): *about to roll*; `failed`: *ending* |
| about to roll (still writing) | the metadata store answers, or `failed`: *ending* |
| ending | the old ledger is closed or recovered, and its entries are answered: *ended* |
| lost | never: another broker changed the list, or the clients have to reconnect |

The order is always the same: end the old ledger, create the new one and add it to the list (compare-and-set), then
write to it. Without a ledger the publisher queues, and the byte budget makes clients wait. So a ledger is rolled only
after the metadata store has answered; until then, the ledger grows beyond its maximum size. A ledger is created in the
transaction that adds it to the list. At unloading, it is closed in the transaction that seals its segment. This halves
the number of metadata requests when thousands of topics move, and a rejected transaction leaves no ledger behind.

After a failed write the broker does not know where the ledger ends, and Pulsar's protocol has no reply for an unknown
outcome. So the topic recovers its own ledger as a new owner would. Entries in the recovered ledger get receipts, and
the others are cut again, in order, for the next ledger. Clients only see a delay; their producers are closed only if
the list shows another owner. If the bookies have blocks of an earlier ledger with the same id, and no entry was
confirmed, the ledger is closed as empty without recovery: all its messages are written to the next ledger.

If the disks of too many bookies are full, a ledger is created nevertheless, so that stored messages can still be read,
acknowledged and deleted. It stays empty until there is room. New producers are rejected with the reason. If a connected
producer publishes, the topic is unloaded with its unanswered messages, and its producers are rejected when they
reconnect. So their clients report an error instead of waiting silently.
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
"""Time, in seconds, that unloading waits for a ledger's pending writes.

It is longer than the time-out of a bookie's response.
"""

T = TypeVar("T")
_log = logging.getLogger(__name__)


class Writing:
    """Writing side of one loaded topic's log; a `WriterListener`."""

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

    # -- called by the ledger's writer -----------------------------------------------------------------

    def failed(self, error: QuireError) -> None:
        self._publisher.detach()
        # Otherwise the ledger is already being ended, and the task that ends it gets the error.
        if self._switching is None and self._writer is not None:
            _log.warning(
                "write to ledger failed, recovering the ledger: topic=%s error=%s", self._name, error
            )
            self._switch(clean=False)

    # -- called by the topic ---------------------------------------------------------------------------

    async def begin(self) -> None:
        """Recover the ledger that a former owner left open, and create a new one. Raises the errors of both steps."""
        left = self._segments.unsealed
        sealed = None if left is None else await self._recover_left(left)
        await self._begin_next(sealed)

    def roll(self) -> asyncio.Task[None] | None:
        """Seal the active segment and begin a new one; return the task, or None if there is nothing to seal."""
        active = self._segments.active
        return self._roll() if active is not None and active.last_entry >= 0 else None

    def roll_if_old(self) -> None:
        active, age_ms_max = self._segments.active, self._services.settings.segment_age_ms_max
        if active is not None and self._services.clock.now_ms() - active.created_ms >= age_ms_max:
            self.roll()

    def roll_if_writing_to(self, ledger_ids: Container[int]) -> None:
        """Begin a new ledger if the active one is among `ledger_ids`, even if it is empty."""
        active = self._segments.active
        if active is not None and active.ledger_id in ledger_ids:
            self._roll()

    def _roll(self) -> asyncio.Task[None] | None:
        """End the ledger and begin a new one. Return the task that does this, or None if there is no ledger."""
        if self._rolling is None and self._switching is None and self._writer is not None:
            self._rolling = self._services.tasks.start(
                self._roll_when_reachable(self._writer), f"roll {self._name}"
            )
        return self._rolling or self._switching

    async def _roll_when_reachable(self, writer: LedgerWriter) -> None:
        try:
            await self._retry_until_lost("roll", self._meta_store.reach)
            if self._writer is writer and self._switching is None:
                self._switch(clean=True)
        except Fenced as error:
            _log.warning("cannot roll the ledger: topic=%s error=%s", self._name, error)
        finally:
            self._rolling = None
        if self._switching is not None:
            await asyncio.wait([self._switching])

    async def end(self) -> None:
        """End the ledger and record its end, at unloading. Nothing is written afterwards.

        An empty ledger is deleted with its segment if the list permits it; otherwise, the next load deletes it. Raises
        `Unavailable` if the ledger accepts no writes. Then the broker that loads the topic next recovers the ledger. No
        broker can load the topic before this method returns.
        """
        writer = await self._detach_and_drain()
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

    async def _detach_and_drain(self) -> LedgerWriter | None:
        """Stop cutting blocks and wait for pending writes. Return the writer, which the caller owns from then on."""
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
            raise Unavailable(
                f"the ledger of topic {self._name} did not confirm its pending writes in time"
            ) from None
        return writer

    async def _close_and_seal(self, writer: LedgerWriter, active: Active) -> None:
        async def close(steps: Sequence[Step]) -> None:
            closed = await writer.close(steps)
            assert closed.last_entry == active.last_entry

        await self._meta_store.seal(active.sealed(self._services.clock.now_ms()), close)

    def abandon(self) -> None:
        """Stop writing without closing the ledger, because another broker may own the topic already."""
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
            await self._retry_until_lost("begin a ledger", lambda: self._begin_next(sealed))
        except Fenced as error:
            _log.warning("topic lost: topic=%s error=%s", self._name, error)
            self.on_lost()
        except Exception:
            # Without a ledger the publisher would queue forever; the next load recovers all confirmed entries.
            _log.exception("unloading a topic after an internal error: topic=%s", self._name)
            self.on_lost()
        finally:
            self._switching = None

    async def _end(self, writer: LedgerWriter, clean: bool) -> LedgerRecord:
        if clean:
            try:
                return await writer.close()
            except QuireError as error:
                _log.warning(
                    "cannot close the ledger: topic=%s ledger=%d error=%s",
                    self._name,
                    writer.ledger_id,
                    error,
                )
        ledgers = self._services.ledgers
        return await self._retry_until_lost(
            "recover its ledger", lambda: ledgers.recover(writer.ledger_id, writer)
        )

    async def _retry_until_lost(self, what: str, attempt: Callable[[], Awaitable[T]]) -> T:
        """Retry with exponential back-off until `attempt` succeeds or the topic is lost.

        Log the first error, and the success after errors.
        """
        delay_s = RETRY_FIRST_S
        while True:
            try:
                result = await attempt()
            except NotFound as error:
                # Only another owner deletes a topic's ledger or record, so a retry cannot succeed.
                raise Fenced(f"topic {self._name} cannot {what}: {error}") from error
            except QuireError as error:
                if self._meta_store.lost:
                    raise Fenced(f"topic {self._name} is owned by another broker now") from error
                if delay_s == RETRY_FIRST_S:
                    _log.error(
                        "operation failed, retrying: topic=%s operation=%s error=%s", self._name, what, error
                    )
                await asyncio.sleep(delay_s)
                delay_s = min(2 * delay_s, RETRY_LAST_S)
            else:
                if delay_s > RETRY_FIRST_S:
                    _log.warning("operation succeeded after retries: topic=%s operation=%s", self._name, what)
                return result

    async def _begin_next(self, sealed: SegmentRecord | None) -> None:
        """Create a ledger, append it to the list after `sealed`, and attach the publisher to it."""
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
        """Return why the bookies' disks are too full to write to; an empty string if they are not."""
        return self._services.ledgers.why_full(self._applied.policies.persistence)

    async def _attach_when_there_is_room(self, writer: LedgerWriter, opened: Active, clock_ms: int) -> None:
        _log.info("topic does not accept messages: topic=%s reason=%s", self._name, self.why_full())
        while self._writer is writer and self.why_full():
            if self._publisher.held_bytes:
                _log.warning(
                    "unloading the topic, so its clients get the error: topic=%s reason=%s",
                    self._name,
                    self.why_full(),
                )
                self.on_lost()
                return
            await asyncio.sleep(ROOM_LOOK_S)
        if self._writer is writer and self._switching is None:
            self._publisher.attach(writer, opened, clock_ms)
            _log.info("topic accepts messages again: topic=%s", self._name)

    def _delete_later(self, ledger_id: int) -> None:
        deletion = self._services.ledgers.delete(ledger_id)
        self._services.tasks.start(deletion, f"delete empty ledger {ledger_id}")

    async def _reserve(self) -> int:
        """Reserve a ledger id above all earlier ledger ids of the topic, because positions are ordered by ledger id."""
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

    # -- recovery of a former owner's ledger -----------------------------------------------------------

    async def _recover_left(self, left: SegmentRecord) -> SegmentRecord:
        """Recover the ledger of a former owner, and return its sealed segment.

        The number of messages is computed from the ledger's last block.
        """
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
            # A damaged block must not prevent the load. No block is older than its ledger's creation.
            _log.error(
                "cannot read the first block of a recovered ledger: topic=%s ledger=%d error=%s",
                self._name,
                left.ledger_id,
                error,
            )
            active.first_clock_ms = left.created_ms
        return active.sealed(now_ms)
