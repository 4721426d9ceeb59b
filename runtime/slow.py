"""Operations that take too long are named in the log: what it was, for how long, and which part of it took how long.

    slow publish: persistent://public/default/orders to entry 17:4201 took 1.424 s (waiting 0.011 s, bookies 1.413 s)
    slow answer of a bookie: 10.0.0.7:3181 with 3 blocks from entry 17:4200 on took 1.401 s
    slow sync: the journal /disk1/journal with 5 blocks from entry 17:4200 on took 1.379 s

What follows a message through broker, ledger and bookie is its ledger and entry: they stand in all three lines, so one
`grep` has them all. Nothing is carried along, and nothing is measured that was not measured before: who knows a time
compares it with `BOUND.s`, once for a group, a request or a turn. With nothing slow that is all.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Final

_log: Final = logging.getLogger("quire.slow")


class _Bound:
    """Of this process, as its log is; `log.configure` sets it."""

    __slots__ = ("s",)

    def __init__(self) -> None:
        self.s = math.inf


BOUND: Final = _Bound()


class _Parts(dict[str, float]):
    """Seconds by part: fields in JSON, words elsewhere."""

    def __str__(self) -> str:
        told = ", ".join(f"{part} {seconds:g} s" for part, seconds in self.items())
        return f" ({told})" if told else ""


def tell(
    kind: str, what: str, took_s: float, parts: Mapping[str, float] | None = None, **fields: Any
) -> None:
    """Name an operation that took longer than `BOUND.s`. `kind` is one of few; `fields` are for lines in JSON."""
    told = _Parts({part: round(seconds, 3) for part, seconds in (parts or {}).items()})
    values = {"what": what, "took_s": round(took_s, 3), "parts": told, **fields}
    _log.warning(f"slow {kind}: %(what)s took %(took_s)g s%(parts)s", values)


class Stopwatch:
    """For an operation in parts: `with Stopwatch("load", topic, clock.monotonic) as watch: …; watch.part("recovery")`.

    What raises is told of, too, when it took long: that is when somebody asks.
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
        """What came since the last part is `name`."""
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
