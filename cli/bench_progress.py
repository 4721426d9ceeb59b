"""Progress of a run of `quire bench` on a terminal, each second."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from quire.cli import progress

if TYPE_CHECKING:
    from collections.abc import Callable

    from quire.cli.bench_options import Plan
    from quire.perf.fleet import Measured

EACH_S: Final = 1.0

_WORDS: Final = {"open": "opened", "publish": "published", "consume": "consumed"}


@contextmanager
def shown(measured: Measured, plan: Plan) -> Iterator[None]:
    """Show what was measured during the `with` block."""
    with progress.phases("starting") as show:
        task = asyncio.create_task(_show_each_second(measured, plan, show))
        try:
            yield
        finally:
            task.cancel()


async def _show_each_second(measured: Measured, plan: Plan, show: Callable[[str, int, int], None]) -> None:
    total = round(plan.warm_up_s + plan.duration_s) if plan.duration_s else 0
    before: dict[str, int] = {}
    for second in range(1, 1 << 31):
        await asyncio.sleep(EACH_S)
        if time.time_ns() < measured.begin_ns:
            show("s: warming up", second, total)
            continue
        show(f"s: {_figures(measured, before)}", second, total)


def _figures(measured: Measured, before: dict[str, int]) -> str:
    """Return the rates of the last second, and the latencies so far."""
    parts = []
    for name, tally in measured.tallies.items():
        rate, before[name] = (tally.messages - before.get(name, 0)) / EACH_S, tally.messages
        if tally.messages:
            latency = f", p99 {tally.latencies.percentile(99) / 1e6:.1f} ms" if tally.latencies.count else ""
            parts.append(f"{_WORDS[name]} {rate:,.0f}/s{latency}")
    return "; ".join(parts) or "waiting"
