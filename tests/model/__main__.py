"""`python -m tests.model`: search the larger bounds, or given ones: `python -m tests.model entries=2 recoveries=2`.

With `without="fencing reads"` a rule is left out, and the counter-example told; `without=all` tells them all.
"""

from __future__ import annotations

import sys
import time
from dataclasses import fields
from typing import Any

from tests.model.omissions import OMISSIONS, Omission
from tests.model.search import search
from tests.model.world import Bounds, World

LARGE = (
    Bounds(entries=1, recoveries=2),
    Bounds(entries=2, recoveries=1),
    Bounds(bookies=4, entries=1, recoveries=1, timeouts=1),
    Bounds(bookies=4, entries=1, recoveries=2, timeouts=1, prompt=True),
    Bounds(bookies=4, entries=2, recoveries=0, timeouts=2, prompt=True),
    Bounds(bookies=3, entries=1, recoveries=1, timeouts=1, wipes=1, prompt=True),
)
STATES_MAX = 20_000_000


def _show(bounds: Bounds, omission: Omission | None = None) -> bool:
    began = time.monotonic()
    name = f"without {omission.name!r} (rule {omission.rule})" if omission else "all rules"
    if omission is None:
        found = search(World(bounds), STATES_MAX)
    else:
        with omission.applied():
            found = search(World(bounds, omission.words), STATES_MAX)
    print(f"{name}; {bounds}: {found} ({time.monotonic() - began:.0f} s)", flush=True)
    return bool(found.wrong) is (omission is not None)


def _bounds(words: dict[str, str]) -> Bounds:
    unknown = words.keys() - {field.name for field in fields(Bounds)}
    if unknown:
        sys.exit(f"no such bound: {', '.join(sorted(unknown))}; there are {', '.join(vars(Bounds()))}")
    numbers: dict[str, Any] = {name: int(value) for name, value in words.items()}
    return Bounds(**numbers)


def main(arguments: list[str]) -> int:
    words = dict(each.partition("=")[::2] for each in arguments)
    without = words.pop("without", "")
    chosen = [each for each in OMISSIONS if without in (each.name, "all")]
    if without and not chosen:
        sys.exit(f"no such rule: {without}; there are: {', '.join(each.name for each in OMISSIONS)}")
    if chosen:
        good = [_show(_bounds(words) if words else each.bounds, each) for each in chosen]
    else:
        good = [_show(bounds) for bounds in ([_bounds(words)] if words else LARGE)]
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
