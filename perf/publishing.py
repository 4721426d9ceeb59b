"""Publishing on a schedule, or as fast as the client can, with the latency of each receipt."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from quire.client import Producer, PublishFailed, PublishUnknown
from quire.perf.job import Publishing
from quire.perf.pacer import NS_PER_S, TICK_NS, Pacer, Window, now_ns
from quire.perf.payload import STAMP_BYTES, body, stamp
from quire.perf.tally import Tally

if TYPE_CHECKING:
    from quire.client.batch import Batch

PUBLISH: Final = "publish"

YIELD_EACH: Final = 100
"""Number of messages after which a producer without a schedule lets the client read receipts."""


class Publisher:
    """Producer of a run. It publishes `share` messages after the warm-up, or until the window's end if that is None."""

    def __init__(
        self,
        producer: Producer[bytes],
        tallies: dict[str, Tally],
        pacer: Pacer,
        window: Window,
        how: Publishing,
        share: int | None,
    ) -> None:
        self._producer = producer
        self._tallies = tallies
        self._pacer = pacer
        self._window = window
        self._how = how
        self._left = share
        self._has_stamp = how.size >= STAMP_BYTES
        self._body = body(how.payload, how.size, seed=7)
        self._batch: Batch | None = None
        self._dues: list[int] = []
        """Times at which the messages of `_batch` were due."""

    async def run(self, phase: float) -> None:
        """Publish, and wait for all receipts. `phase` shifts the schedule by a fraction of its interval."""
        await self._pacer.until(self._window.begin)
        try:
            await (self._on_schedule(phase) if self._how.rate else self._as_fast_as_possible())
        except PublishFailed as error:
            # The producer has ended, for example because the topic was deleted; other messages fail by their batch.
            self._tallies[PUBLISH].fail(1, now_ns(), str(error))
        await self.settle()

    async def settle(self) -> None:
        """Wait until each message has a receipt or an error, which `_settled` counts."""
        with suppress(PublishFailed, PublishUnknown):
            await self._producer.flush()

    def give_up(self) -> None:
        """Count the messages without a receipt as failed, at the end of an interrupted run."""
        if self._producer.in_flight:
            self._tallies[PUBLISH].fail(self._producer.in_flight, now_ns(), "interrupted before the receipt")

    async def _on_schedule(self, phase: float) -> None:
        interval, sent = NS_PER_S / self._how.rate, 0
        while self._goes_on(due := self._window.begin + round((sent + phase) * interval)):
            if due > (now := now_ns()):
                await self._pacer.until(max(due, now + TICK_NS))
            elif sent % YIELD_EACH == 0:
                await asyncio.sleep(0)
            await self._publish(due)
            sent += 1

    async def _as_fast_as_possible(self) -> None:
        sent = 0
        while self._goes_on(now := now_ns()):
            await self._publish(now)
            sent += 1
            if sent % YIELD_EACH == 0:
                await asyncio.sleep(0)

    def _goes_on(self, due: int) -> bool:
        if due >= self._window.end:
            return False
        if self._left is not None and due >= self._window.measured:
            self._left -= 1
            return self._left >= 0
        return True

    async def _publish(self, due: int) -> None:
        payload = stamp(due) + self._body if self._has_stamp else self._body
        publication = await self._producer.enqueue(payload)
        batch = publication.batch
        if batch is not self._batch:
            self._batch, self._dues = batch, []
            settled = partial(self._settled, batch, self._dues)
            if batch.is_settled:  # the client could not encode it
                asyncio.get_running_loop().call_soon(settled)
            else:
                batch.waiter().add_done_callback(settled)
        self._dues.append(due)

    def _settled(self, batch: Batch, dues: list[int], _: object = None) -> None:
        """Count the messages of a batch that has its receipt, or an error."""
        now, tally = now_ns(), self._tallies[PUBLISH]
        batch.was_observed = True
        if batch.error is not None:
            tally.fail(len(dues), now, str(batch.error))
            return
        measured, size = self._window.measured, self._how.size
        for due in dues:
            if due >= measured:
                tally.count(size, now, now - due)
            else:
                tally.all_messages += 1
