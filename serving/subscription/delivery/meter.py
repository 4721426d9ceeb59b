"""How much went out, and how fast: counters, and rates that are made when somebody asks.

Nothing runs in the background. A rate is what was counted since the last look that is at least `SPAN_S` old, so
it covers between one and two spans of a caller who looks often.
"""

from __future__ import annotations

from quire.serving.model.rates import Totals

SPAN_S = 10.0


class Meter:
    """Messages and bytes that went out, messages that went out again, and messages that were acknowledged.

    A subscription's counts for its bundle as well: `totals`.
    """

    __slots__ = ("_before", "_last", "_totals", "acked", "bytes_out", "messages_out", "redelivered")

    def __init__(self, totals: Totals | None = None) -> None:
        self._totals = totals
        self.messages_out = 0
        self.bytes_out = 0
        self.redelivered = 0
        self.acked = 0
        self._before: tuple[float, int, int, int, int] | None = None
        self._last: tuple[float, int, int, int, int] | None = None

    def count_for(self, totals: Totals) -> None:
        """The subscription is of another bundle from now on."""
        self._totals = totals

    def count(self, messages: int, bytes_out: int, *, redelivered: bool) -> None:
        self.messages_out += messages
        self.bytes_out += bytes_out
        if redelivered:
            self.redelivered += messages

    def count_block(self, messages: int, messages_again: int, bytes_out: int, waited_ms: int) -> None:
        """What was sent of one block, `messages_again` of them not for the first time.

        `waited_ms`: since the broker took it; negative when nothing tells.
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

    def stats(self, now_s: float) -> dict[str, float]:
        """Totals and rates per second, by Pulsar's names. `now_s` is monotonic."""
        now = (now_s, self.messages_out, self.bytes_out, self.redelivered, self.acked)
        if self._last is None or now_s - self._last[0] >= SPAN_S:
            self._before, self._last = self._last or now, now
        assert self._before is not None
        elapsed_s = now_s - self._before[0]
        rates = [(a - b) / elapsed_s if elapsed_s else 0.0 for a, b in zip(now, self._before, strict=True)]
        return {
            "msgRateOut": rates[1],
            "msgThroughputOut": rates[2],
            "msgRateRedeliver": rates[3],
            "messageAckRate": rates[4],
            "msgOutCounter": self.messages_out,
            "bytesOutCounter": self.bytes_out,
        }
