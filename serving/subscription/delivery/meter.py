"""Counters of dispatched messages, and their rates."""

from __future__ import annotations

from quire.serving.model.rates import Rate, Totals
from quire.serving.model.statistics import DispatchStats


class Meter:
    """Counters of dispatched messages and bytes, of redelivered messages, and of acknowledged messages.

    A subscription's meter also increases the `totals` of its bundle.
    """

    __slots__ = (
        "_rate",
        "_totals",
        "acked",
        "bytes_out",
        "flowed_ms",
        "messages_out",
        "redelivered",
    )

    def __init__(self, totals: Totals | None = None) -> None:
        self._totals = totals
        self.messages_out = 0
        self.bytes_out = 0
        self.redelivered = 0
        self.acked = 0
        self.flowed_ms = 0
        """Time of the last FLOW, in ms since 1970; 0 if there was none."""
        self._rate = Rate()

    def count_for(self, totals: Totals) -> None:
        """Count in the totals of another bundle from now on, because the topic was moved to it."""
        self._totals = totals

    def count(self, messages: int, bytes_out: int, *, redelivered: bool) -> None:
        self.messages_out += messages
        self.bytes_out += bytes_out
        if redelivered:
            self.redelivered += messages

    def count_block(self, messages: int, messages_again: int, bytes_out: int, waited_ms: int) -> None:
        """Count `messages` that were dispatched from one block, including `messages_again` that were redelivered.

        `waited_ms` is the time since the broker received the block, in ms; negative if that is unknown.
        """
        self.messages_out += messages
        self.bytes_out += bytes_out
        self.redelivered += messages_again
        totals = self._totals
        if totals is None:
            return
        totals.messages_out += messages
        totals.bytes_out += bytes_out
        totals.redelivered += messages_again
        if waited_ms >= 0 and messages > messages_again:
            totals.dispatch_s.observe(waited_ms / 1000, messages - messages_again)

    def count_acked(self, messages: int) -> None:
        self.acked += messages
        if self._totals is not None:
            self._totals.acked += messages

    def stats(self, now_s: float) -> DispatchStats:
        """Return totals and rates. `now_s` is monotonic time in seconds."""
        counts = self.messages_out, self.bytes_out, self.redelivered, self.acked
        rate, throughput, redelivered, acked = self._rate.per_second(now_s, *counts)
        return DispatchStats(
            msg_rate_out=rate,
            msg_throughput_out=throughput,
            msg_rate_redeliver=redelivered,
            message_ack_rate=acked,
            msg_out_counter=self.messages_out,
            bytes_out_counter=self.bytes_out,
            last_consumed_flow_timestamp=self.flowed_ms,
        )
