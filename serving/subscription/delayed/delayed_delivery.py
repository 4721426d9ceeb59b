"""Delayed delivery of one subscription: the shell of `delays`.

The shell has the clock and a timer, which fires when the next entry is due. It writes snapshots (`delayed_snapshot`),
so that a new dispatcher need not read the same backlog again:

- after `SNAPSHOT_ENTRIES` delayed entries, or `SNAPSHOT_BYTES` read while any entry is delayed;
- whenever the dispatcher is discarded, because the last consumer is closed or the topic is unloaded.

Subscriptions without delayed entries, non-durable ones and those that read compacted data write no snapshots.

The timer waits at most an hour, because the wall clock may be adjusted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from quire.metadata.records import DelayedDeliveryPolicy
from quire.runtime.clock import Clock
from quire.serving.subscription.cursor.cursor import Cursor
from quire.serving.subscription.cursor.cursor_store import CursorStore
from quire.serving.subscription.delayed.delayed_entries import DelayedEntries
from quire.serving.subscription.delayed.delays import Delays
from quire.serving.subscription.dispatch.dispatcher import Dispatcher
from quire.serving.subscription.dispatch.multi_consumer import MultiConsumer

SNAPSHOT_ENTRIES: Final = 50_000
SNAPSHOT_BYTES: Final = 64 << 20
"""Bytes read after which a snapshot is written; at most this many are read again after a crash."""

SNAPSHOT_HELD_BYTES_MAX: Final = 32 << 20
"""Maximum memory of a snapshot, in bytes. A larger snapshot is not continued, so entries after it are read again."""

TIMER_S_MAX: Final = 3600.0


class DelayedDelivery:
    """Timer and snapshots of one subscription. Calls `due` when delayed entries have become due.

    `delays` is None while delivery times are ignored.
    """

    def __init__(self, cursor: Cursor, store: CursorStore, clock: Clock, due: Callable[[], None]) -> None:
        self.delays: Delays | None = None
        self._entries: DelayedEntries | None = None
        self._cursor = cursor
        self._store = store
        self._clock = clock
        self._due = due
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        """Time at which the timer fires, in ms since 1970; 0 if it is not set."""
        self._is_kept = False
        """True if snapshots are to be written."""

    def move_to(self, store: CursorStore) -> None:
        """Write to another store from now on; see `Subscriptions.move_to`."""
        self._store = store

    def __len__(self) -> int:
        """Return the number of entries that were read and are not due yet."""
        return 0 if self.delays is None else len(self.delays)

    def apply_policy(self, dispatcher: Dispatcher, policy: DelayedDeliveryPolicy, *, is_kept: bool) -> bool:
        """Apply the policy: honour or ignore delivery times. Return whether more entries are due now.

        Only Shared and Key_Shared subscriptions honour delivery times, because the others deliver in order.
        """
        self._is_kept = is_kept and self._cursor.id != 0
        self._entries = dispatcher.delayed if isinstance(dispatcher, MultiConsumer) else None
        if self._entries is None or not policy.active:
            self.delays = None
            return self._entries is not None and self._entries.release_all()
        if self._entries.delays is None or not dispatcher.consumers:
            self.delays = self._entries.delays = Delays(policy.tick_ms, policy.delay_ms_max)
            self.look_at_clock()
            if self._is_kept and not dispatcher.consumers:
                self._entries.restore(self._cursor.delayed_snapshot)
        return False

    def look_at_clock(self) -> None:
        """Read the clock, so that entries due by now are not delayed. The caller does this before dispatching."""
        if self.delays is not None:
            self.delays.now_ms = self._clock.now_ms()

    def dispatched(self) -> None:
        """Set the timer for newly found delayed entries, and write a snapshot if there are many."""
        if self.delays:
            self._set_timer(self.delays.next_ms())
            entries = self._entries
            assert entries is not None
            if entries.found_count >= SNAPSHOT_ENTRIES or entries.bytes_read >= SNAPSHOT_BYTES:
                self.write()

    def write(self) -> None:
        """Write a snapshot of the entries read since the last one, if an entry is still delayed."""
        if not self.delays or not self._is_kept or self._entries is None:
            return
        if self._has_room():
            for segment in self._entries.delayed_snapshot():
                self._store.found(self._cursor, segment)
        else:
            self._entries.found_count = self._entries.bytes_read = 0

    def _has_room(self) -> bool:
        snapshot = self._cursor.delayed_snapshot
        if snapshot.held_bytes() > SNAPSHOT_HELD_BYTES_MAX:
            snapshot.prune(self._cursor.mark_delete, self._cursor.unacknowledged)
        return snapshot.held_bytes() <= SNAPSHOT_HELD_BYTES_MAX

    def _set_timer(self, due_ms: int | None) -> None:
        """Set the timer to `due_ms` since 1970; None leaves it unchanged."""
        if due_ms is None or due_ms == self._timer_ms:
            return
        self._stop_timer()
        delay_s = min(max(0, due_ms - self._clock.now_ms()) / 1000, TIMER_S_MAX)
        self._timer_ms = due_ms
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer_ms = 0
        if self._entries is not None and self.delays is not None:
            self.look_at_clock()
            self._entries.release()
            self._due()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def stop(self) -> None:
        """Stop the timer, and drop the reference to the subscription."""
        self._stop_timer()
        self.delays, self._due = None, _nothing


def _nothing() -> None:
    """Do nothing, because the subscription has ended."""
