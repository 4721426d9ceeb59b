"""HTML page of a profile, with tables and SVG diagrams. The page loads no other resources.

Bars are scaled to the largest one. A bar's title, which browsers show as a tooltip, contains its time and value. The
page follows the reader's system setting for light or dark colours.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Any, Final

from quire.spark_source.jobs.profile import Profile

WIDTH: Final = 880
HEIGHT: Final = 160
LEFT: Final = 70
BOTTOM: Final = 22
TICK_WIDTH: Final = 140
"""Width of a time label in pixels."""

_STYLE: Final = """
:root { color-scheme: light dark; --ink: #1c2733; --soft: #66727f; --line: #dde3e9; --bar: #2f6f9f; --hot: 196 72 32;
  --page: #ffffff; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6ebf0; --soft: #96a2ae; --line: #343d47; --bar: #6fb0de;
  --hot: 255 148 92; --page: #14191e; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--page); max-width: 900px;
  margin: 2.5rem auto; padding: 0 1rem; }
h1 { font-size: 1.4rem; margin: 0; overflow-wrap: anywhere } h2 { font-size: 1.05rem; margin: 2.2rem 0 .4rem }
p { color: var(--soft); margin: .2rem 0 .6rem }
table { border-collapse: collapse; font-variant-numeric: tabular-nums }
th, td { text-align: right; padding: .15rem .9rem .15rem 0; border-bottom: 1px solid var(--line) }
th { font-weight: 600; color: var(--soft) } th:first-child, td:first-child { text-align: left; overflow-wrap: anywhere }
dl { display: flex; flex-wrap: wrap; gap: .4rem 2.2rem; margin: 1.2rem 0 } dt { color: var(--soft); font-size: .85rem }
dd { margin: 0; font-size: 1.25rem; font-variant-numeric: tabular-nums }
svg { width: 100%; height: auto; display: block } svg text { fill: var(--soft); font: 11px system-ui, sans-serif }
rect.bar { fill: var(--bar) } rect.hot { fill: rgb(var(--hot)) } line { stroke: var(--line) }
"""


def render(profile: Profile) -> str:
    """Render a profile as an HTML page."""
    found = profile.as_dict()
    times = [one["start_ms"] for one in found["over_time"]]
    seconds = found["interval_ms"] / 1000
    rates = [one["messages"] / seconds for one in found["over_time"]]
    bandwidths = [one["bytes"] / seconds for one in found["over_time"]]
    parts = [
        f"<h1>{escape(found['topics'])}</h1>",
        f"<p>{_when(times[0])} to {_when(times[-1] + found['interval_ms'])}, UTC, by publish times</p>"
        if times
        else "<p>no messages</p>",
        _totals(found),
    ]
    if times:
        parts += [
            _section(
                "Messages per second", _bars(rates, times, _number), f"in intervals of {_span(seconds)}"
            ),
            _section("Bytes per second", _bars(bandwidths, times, _size), "of values, decompressed"),
            _section("Sizes of values", _sizes(found["sizes"]), _quantiles(found["sizes"])),
            _keys(found, times),
            _section("Producers", _shares(found["producers"], "producer", found["messages"]), ""),
            _section("Partitions", _shares(found["partitions"], "partition", found["messages"]), ""),
        ]
    title = f"Profile of {escape(found['topics'])}"
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head>\n<body>\n'
        + "\n".join(parts)
        + "\n</body></html>\n"
    )


def _totals(found: dict[str, Any]) -> str:
    keys = found["keys"]
    shown = {
        "messages": _number(found["messages"]),
        "bytes of values": _size(found["value_bytes"]),
        "messages in an entry": f"{found['messages'] / max(1, found['entries']):.1f}",
        "different keys": ("" if keys["distinct_is_exact"] else "about ") + _number(keys["distinct"]),
        "messages without key": _number(found["messages"] - keys["messages_with_key"]),
        "null values": _number(found["null_values"]),
        "entries that cannot be decoded": _number(found["undecodable_entries"]),
    }
    return (
        "<dl>"
        + "".join(f"<div><dt>{name}</dt><dd>{text}</dd></div>" for name, text in shown.items())
        + "</dl>"
    )


def _section(title: str, content: str, note: str) -> str:
    return f"<section><h2>{title}</h2>" + (f"<p>{note}</p>" if note else "") + content + "</section>"


# -- pictures --------------------------------------------------------------------------------------------


def _bars(values: Sequence[float], times: Sequence[int], say: Any) -> str:
    """Draw values over time."""
    titles = [f"{_when(at)}: {say(value)}" for at, value in zip(times, values, strict=True)]
    return _chart(values, titles, _ticks([_when(at) for at in times], WIDTH - LEFT), say)


def _sizes(sizes: dict[str, Any]) -> str:
    classes = sizes["classes"]
    labels = [_size(one["start"]) for one in classes]
    titles = [f"{_size(one['start'])} to {_size(one['end'])}: {_number(one['values'])}" for one in classes]
    return _chart([one["values"] for one in classes], titles, list(enumerate(labels)), _number)


def _chart(values: Sequence[float], titles: Sequence[str], ticks: Iterable[tuple[int, str]], say: Any) -> str:
    most = max(values, default=0) or 1
    step = (WIDTH - LEFT) / max(1, len(values))
    body = [
        f'<line x1="{LEFT}" x2="{WIDTH}" y1="{_y(share)}" y2="{_y(share)}"/>'
        f'<text x="{LEFT - 8}" y="{_y(share) + 4}" text-anchor="end">{say(most * share)}</text>'
        for share in (0, 0.5, 1)
    ]
    for number, (value, title) in enumerate(zip(values, titles, strict=True)):
        height = (HEIGHT - 10) * value / most
        body.append(
            f'<rect class="bar" x="{LEFT + number * step:.1f}" width="{max(1, step - 1.5):.1f}" '
            f'y="{HEIGHT - height:.1f}" height="{height:.1f}"><title>{escape(title)}</title></rect>'
        )
    for number, label in ticks:
        x = LEFT + (number + 0.5) * step
        body.append(f'<text x="{x:.1f}" y="{HEIGHT + 15}" text-anchor="middle">{escape(label)}</text>')
    return _svg(HEIGHT + BOTTOM, body)


def _y(share: float) -> float:
    return HEIGHT - (HEIGHT - 10) * share


def _keys(found: dict[str, Any], times: Sequence[int]) -> str:
    keys = found["keys"]
    if not keys["hot"]:
        return _section("Hot keys", "", "no message has a key")
    low = keys["hot_counts_are_low_by_at_most"]
    note = f"there are more keys than were kept: each may have {_number(low)} more messages" if low else ""
    table = _table(
        ("key", "messages", "share", "bytes"),
        (
            (
                _short(one["key"]),
                _number(one["messages"]),
                f"{one['messages'] / found['messages']:.2%}",
                _size(one["bytes"]),
            )
            for one in keys["hot"]
        ),
    )
    picture = _section("Hot keys over time", _heat(keys["hot"], times), "each row on its own scale")
    return _section("Hot keys", table, note) + picture


def _heat(hot: Sequence[dict[str, Any]], times: Sequence[int]) -> str:
    left, row = 200, 18
    step = (WIDTH - left) / len(times)
    body = []
    for number, one in enumerate(hot):
        most = max(one["over_time"]) or 1
        y = number * row
        body.append(
            f'<text x="{left - 8}" y="{y + 13}" text-anchor="end">{escape(_short(one["key"], 28))}</text>'
        )
        for place, count in enumerate(one["over_time"]):
            if count:
                title = escape(f"{one['key']}, {_when(times[place])}: {_number(count)}")
                body.append(
                    f'<rect class="hot" opacity="{0.12 + 0.88 * count / most:.2f}" x="{left + place * step:.1f}" '
                    f'width="{max(1, step - 1):.1f}" y="{y + 1}" height="{row - 2}"><title>{title}</title></rect>'
                )
    for place, label in _ticks([_when(at) for at in times], WIDTH - left):
        x = left + (place + 0.5) * step
        body.append(f'<text x="{x:.1f}" y="{len(hot) * row + 15}" text-anchor="middle">{label}</text>')
    return _svg(len(hot) * row + BOTTOM, body)


def _svg(height: int, body: Iterable[str]) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {height}" role="img">{"".join(body)}</svg>'


def _ticks(labels: Sequence[str], width: int) -> list[tuple[int, str]]:
    """Return as many labels as fit, evenly spaced, without clipped ones."""
    count = min(width // TICK_WIDTH, len(labels))
    places = [round((number + 0.5) * len(labels) / count - 0.5) for number in range(count)]
    return [(place, labels[place]) for place in places]


# -- tables and words ------------------------------------------------------------------------------------


def _shares(rows: Sequence[dict[str, Any]], name: str, messages: int) -> str:
    return _table(
        (name, "messages", "share"),
        (
            (_short(one[name]), _number(one["messages"]), f"{one['messages'] / max(1, messages):.2%}")
            for one in rows
        ),
    )


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    first = "".join(f"<th>{name}</th>" for name in head)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><tr>{first}</tr>{body}</table>"


def _quantiles(sizes: dict[str, Any]) -> str:
    names = {
        "p50": "half are up to",
        "p90": "nine of ten up to",
        "p99": "99 of 100 up to",
        "max": "the largest is",
    }
    return ", ".join(f"{words} {_size(sizes[name])}" for name, words in names.items())


def _when(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")


def _span(seconds: float) -> str:
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1)):
        if seconds >= length:
            return f"{seconds / length:g} {unit}"
    return f"{seconds * 1000:g} ms"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.2g}"


def _size(value: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1000:
            return f"{value:.3g} {unit}"
        value /= 1024
    return f"{value:,.3g} TiB"


def _short(text: str, most: int = 60) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
