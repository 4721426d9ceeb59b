"""Log of slow operations: the operation, its duration, and the duration of its parts.

    slow publish: persistent://public/default/orders to entry 17:4201 took 1.424 s (waiting 0.011 s, bookies 1.413 s)
    slow answer of a bookie: 10.0.0.7:3181 with 3 blocks from entry 17:4200 on took 1.401 s
    slow sync: the journal /disk1/journal with 5 blocks from entry 17:4200 on took 1.379 s

All lines of a message contain its ledger and entry, so one `grep` finds those of the broker and of the bookies. Code
that has measured a duration anyway compares it with `BOUND.s`, once for a group, a request or an iteration of the event
loop, so fast operations have no further cost.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Final

_log: Final = logging.getLogger("quire.slow")


class _Bound:
    """Duration in seconds above which this process logs an operation as slow; `log.configure` sets it."""

    __slots__ = ("s",)

    def __init__(self) -> None:
        self.s = math.inf


BOUND: Final = _Bound()


class _Parts(dict[str, float]):
    """Seconds by part; formatted as fields in JSON lines, and as words in text lines."""

    def __str__(self) -> str:
        told = ", ".join(f"{part} {seconds:g} s" for part, seconds in self.items())
        return f" ({told})" if told else ""


def tell(
    kind: str, what: str, took_s: float, parts: Mapping[str, float] | None = None, **fields: Any
) -> None:
    """Log an operation that took longer than `BOUND.s`. `kind` is from a fixed set; `fields` are for JSON lines."""
    told = _Parts({part: round(seconds, 3) for part, seconds in (parts or {}).items()})
    values = {"what": what, "took_s": round(took_s, 3), "parts": told, **fields}
    _log.warning(f"slow {kind}: %(what)s took %(took_s)g s%(parts)s", values)


class Stopwatch:
    """Stopwatch of an operation: `with Stopwatch("load", topic, clock.monotonic) as watch: …; watch.part("recovery")`.

    Slow failures are logged as well.
    """

    __slots__ = ("_began_s", "_fields", "_kind", "_last_s", "_now_s", "_parts", "_what")

    def __init__(self, kind: str, what: str, now_s: Callable[[], float], **fields: Any) -> None:
        self._kind = kind
        self._what = what
        self._now_s = now_s
        self._fields = fields
        self._parts: dict[str, float] = {}
        self._began_s = self._last_s = now_s()

    def part(self, name: str) -> None:
        """End the part `name`, which began at the end of the last one."""
        now_s = self._now_s()
        self._parts[name] = self._parts.get(name, 0.0) + now_s - self._last_s
        self._last_s = now_s

    def __enter__(self) -> Stopwatch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        took_s = self._now_s() - self._began_s
        if took_s <= BOUND.s:
            return
        self.part("failing" if error is not None else "the rest")
        tell(self._kind, self._what, took_s, self._parts, **self._fields)
