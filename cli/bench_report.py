"""Report of `quire bench`: rates, percentiles and a histogram for people, or one JSON object for programs.

| field in JSON | contains |
|---|---|
| `publish`, `consume`, `open` | messages (or topics) after the warm-up: their number, bytes, rates and latencies |
| `….latency_ms` | the smallest, mean, largest, and percentiles; at most 0.1 % too high (`perf/histogram`) |
| `….histogram` | pairs of an upper bound in ms, and the number of latencies up to it and above the bound before |
| `client_cores` | share of one core that each client process used |
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from quire.cli.output import Answer, Shown, Table, size
from quire.perf.histogram import NS_PER_MS, PERCENTILES, LatencyHistogram
from quire.runtime.errors import QuireError

if TYPE_CHECKING:
    from quire.cli.bench_options import Plan
    from quire.perf.fleet import Measured
    from quire.perf.tally import Tally

BUSY_CORE: Final = 0.85
"""Share of a core above which the client may be the limit of a run."""

BAR_CHARS: Final = 40


class _Section(NamedTuple):
    """A kind of measurement: the words of its rate, and of its latency."""

    done: str
    what: str
    latency: str


SECTIONS: Final = {
    "open": _Section("opened", "topic", "until a topic has a producer"),
    "publish": _Section("published", "message", "publish to receipt"),
    "consume": _Section("consumed", "message", "publish to arrival"),
}


def report(what: str, plan: Plan, measured: Measured, interrupted: bool, kept: Sequence[str]) -> Answer:
    """Return the report of a run."""
    found = {name: measured.tallies[name] for name in SECTIONS if name in measured.tallies}
    found = {name: tally for name, tally in found.items() if tally.messages or tally.failed}
    value = {
        "benchmark": what,
        "options": _options(plan),
        "interrupted": interrupted,
        **{name: _section(tally, measured.seconds(name)) for name, tally in found.items()},
        "client_cores": [round(share, 3) for _, share in sorted(measured.cores.items())],
        "topics_kept": list(kept),
    }
    rows = {SECTIONS[name].latency: tally.latencies for name, tally in found.items() if tally.latencies.count}
    shown: list[Shown] = [_load(what, plan)]
    shown += [_line(name, tally, measured.seconds(name)) for name, tally in found.items()]
    if rows:
        shown += ["", _table(rows)]
        for title, latencies in rows.items():
            shown += ["", f"{title}, by latency", _histogram(latencies)]
    error = None if interrupted else _failure(found) or _missing(what, plan, found)
    return Answer(value, *shown, notes=_notes(what, plan, measured, kept), error=error)


def _options(plan: Plan) -> dict[str, Any]:
    return {
        "service_url": plan.connect["service_url"],
        "topics": len(plan.given_topics) or plan.count,
        "partitions": plan.partitions,
        "size": plan.size,
        "rate": plan.rate or None,
        "messages": plan.messages or None,
        "duration_seconds": plan.duration_s or None,
        "warm_up_seconds": plan.warm_up_s,
        "producers_per_topic": plan.producers_each,
        "subscriptions": plan.subscriptions,
        "consumers_per_subscription": plan.consumers_each,
        "batching": plan.settings.batching,
        "compression": plan.settings.compression,
        "processes": plan.processes,
    }


def _section(tally: Tally, seconds: float) -> dict[str, Any]:
    found: dict[str, Any] = {
        "messages": tally.messages,
        "bytes": tally.bytes,
        "failed": tally.failed,
        "seconds": round(seconds, 6),
        "messages_per_second": round(tally.messages / seconds, 1) if seconds else 0.0,
        "mib_per_second": round(tally.bytes / seconds / (1 << 20), 3) if seconds else 0.0,
    }
    if tally.latencies.count:
        found["latency_ms"] = tally.latencies.summary_ms()
        found["histogram"] = [[bound / NS_PER_MS, count] for bound, count in _rows(tally.latencies)]
    return found


def _load(what: str, plan: Plan) -> str:
    """Return one line that describes the load."""
    count = len(plan.given_topics) or plan.count
    parts = [
        f"{count:,} topic{'s' * (count > 1)}",
        f"payloads of {size(plan.size)}",
        f"{plan.rate:,g} messages/s" if plan.rate else "",
        "batches" if plan.settings.batching else "one message per entry",
        plan.settings.compression if plan.settings.compression != "none" else "",
        f"{plan.processes} processes" if plan.processes > 1 else "",
    ]
    return f"{what}: {', '.join(filter(None, parts))}"


def _line(name: str, tally: Tally, seconds: float) -> str:
    section = SECTIONS[name]
    noun = section.what if tally.messages == 1 else f"{section.what}s"
    rates = f"{tally.messages / seconds:,.0f} {section.what}s/s" if seconds else ""
    if seconds and tally.bytes:
        rates += f", {size(round(tally.bytes / seconds))}/s"
    failed = f"; {tally.failed:,} failed" if tally.failed else ""
    return f"{section.done} {tally.messages:,} {noun} in {seconds:.2f} s: {rates}{failed}"


def _table(rows: dict[str, LatencyHistogram]) -> Table:
    columns = ["latency in ms", "mean", *(f"p{percent:g}" for percent in PERCENTILES), "max"]
    cells = []
    for title, latencies in rows.items():
        found = latencies.summary_ms()
        cells.append([title, *(f"{found[one]:,.3f}" for one in columns[1:])])
    return Table(columns, cells, right=columns[1:])


def _rows(latencies: LatencyHistogram) -> list[tuple[int, int]]:
    """Return upper bounds of 1, 2 or 5 times a power of ten, and the number of latencies below each."""
    bounds = [*_bounds(latencies.max)]
    counts = [*latencies.between(bounds)]
    first = next((at for at, count in enumerate(counts) if count), 0)
    return [*zip(bounds, counts, strict=True)][first:]


def _bounds(largest: int) -> Iterator[int]:
    unit = 1_000
    while True:
        for bound in (unit, 2 * unit, 5 * unit):
            yield bound
            if bound >= largest:
                return
        unit *= 10


def _histogram(latencies: LatencyHistogram) -> Table:
    rows = _rows(latencies)
    most = max(count for _, count in rows)
    cells = [
        [
            f"<= {bound / NS_PER_MS:g} ms",
            "█" * round(BAR_CHARS * count / most) or ("▏" if count else ""),
            f"{count:,}",
            f"{100 * count / latencies.count:.2f} %",
        ]
        for bound, count in rows
    ]
    return Table(["", " " * BAR_CHARS, "count", "share"], cells, right=("", "count", "share"))


def _notes(what: str, plan: Plan, measured: Measured, kept: Sequence[str]) -> Iterator[str]:
    if plan.warm_up_s:
        yield f"The first {plan.warm_up_s:g} s were the warm-up, which is not counted."
    if what in ("produce", "end-to-end") and not plan.rate:
        yield (
            "Without --rate the latencies contain the wait in the client's own queue; "
            "set --rate below the measured rate for those of the server."
        )
    busy = [number for number, share in measured.cores.items() if share >= BUSY_CORE]
    if busy:
        most = max(measured.cores.values())
        more = "" if what == "latency" else f"; add --processes {2 * plan.processes}"
        yield (
            f"{len(busy)} of {len(measured.cores)} client processes used up to {most:.2f} of a core, so the client "
            f"may be the limit{more}."
        )
    if kept and not plan.is_given:
        yield f"The topics are kept: {', '.join(kept)}"


def _failure(found: dict[str, Tally]) -> QuireError | None:
    """Return the error of a run with failed messages, or without any message."""
    for name, tally in found.items():
        if tally.failed:
            return QuireError(f"{tally.failed:,} messages were not {SECTIONS[name].done}: {tally.failure}")
    if not found:
        return QuireError("no message was measured; a longer --duration or a shorter --warm-up may help")
    return None


def _missing(what: str, plan: Plan, found: dict[str, Tally]) -> QuireError | None:
    """Return the error of a run in which published messages did not arrive."""
    if what == "end-to-end":
        published = found["publish"].messages if "publish" in found else 0
    elif what == "consume" and not plan.is_given and not plan.duration_s and not plan.warm_up_s:
        published = plan.messages
    else:
        return None
    expected = published * plan.subscriptions
    missing = expected - (found["consume"].messages if "consume" in found else 0)
    return QuireError(f"{missing:,} of {expected:,} messages did not arrive") if missing > 0 else None
