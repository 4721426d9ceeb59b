"""How much went out, and how fast: counters, and rates that are made when somebody asks.

Nothing runs in the background. A rate is what was counted since the last look that is at least `SPAN_S` old, so
it covers between one and two spans of a caller who looks often.
"""

from __future__ import annotations

SPAN_S = 10.0


class Meter:
    """Messages and bytes that went out, messages that went out again, and messages that were acknowledged."""

    __slots__ = ("_before", "_last", "acked", "bytes_out", "messages_out", "redelivered")

    def __init__(self) -> None:
        self.messages_out = 0
        self.bytes_out = 0
        self.redelivered = 0
        self.acked = 0
        self._before: tuple[float, int, int, int, int] | None = None
        self._last: tuple[float, int, int, int, int] | None = None

    def count(self, messages: int, bytes_out: int, *, redelivered: bool) -> None:
        self.messages_out += messages
        self.bytes_out += bytes_out
        if redelivered:
            self.redelivered += messages

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
