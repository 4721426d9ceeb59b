"""Who serves narrow ledgers goes on whatever one of them does."""

from __future__ import annotations

import pytest

from quire.ledger import narrow
from quire.ledger.narrow import Narrow
from quire.testing.cluster import turns_until


class Fragile:
    """A writer whose widening may end others, as a state log that fails abandons both its ledgers."""

    def __init__(self, line: Narrow) -> None:
        self._line = line
        self.ends: tuple[Fragile, ...] = ()
        self.widened = 0
        line.watch(self)

    def widen(self) -> None:
        self.widened += 1
        for each in self.ends:
            self._line.forget(each)


async def test_widening_one_may_end_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(narrow, "INTERVAL_S", 0.0)
    line = Narrow()
    first, second, third = Fragile(line), Fragile(line), Fragile(line)
    first.ends = (first, second)
    await turns_until(lambda: third.widened == 3)
    line.stop()
    assert (first.widened, second.widened) == (1, 0)
