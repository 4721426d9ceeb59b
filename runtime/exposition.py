"""Text formats of metrics: Prometheus 0.0.4, and OpenMetrics 1.0 if the client requests it (`Accept`).

    Prometheus     # HELP name_total …     # TYPE name_total counter     name_total{labels} 1
    OpenMetrics    # HELP name …   # UNIT  # TYPE name counter           name_total{labels} 1        # EOF at the end

The text is produced in pieces, each short enough for one iteration of the event loop, because ten thousand series take
tens of milliseconds. `Joined` merges texts of several processes, with a label for the process of each sample.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Final

from quire.runtime.metric_table import BY_NAME
from quire.runtime.metrics import Histogram, Kind, Labels, Metric, Value, Values

PROMETHEUS: Final = "text/plain; version=0.0.4; charset=utf-8"
OPEN_METRICS: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"
LINES_A_PIECE: Final = 500
"""Number of lines of a piece; formatting them takes about a millisecond."""

_LABEL: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
_HELP: Final = str.maketrans({"\\": r"\\", "\n": r"\n"})


def wants_open_metrics(accept: str) -> bool:
    """Return whether an `Accept` header lists OpenMetrics without `q=0`."""
    for offer in accept.split(","):
        kind, *parameters = (part.strip().lower() for part in offer.split(";"))
        if kind == "application/openmetrics-text":
            return not any(one.replace(" ", "") in ("q=0", "q=0.0") for one in parameters)
    return False


def pieces(values: Values, *, open_metrics: bool) -> Iterator[str]:
    """Yield the text in pieces, in the order of `metric_table`. All names in `values` must be in that table."""
    assert values.keys() <= BY_NAME.keys(), (
        f"metrics missing in the table: {sorted(values.keys() - BY_NAME.keys())}"
    )
    lines: list[str] = []
    for name, metric in BY_NAME.items():
        if name not in values:
            continue
        lines += _head(metric, open_metrics)
        value = values[name]
        rows: Mapping[Labels, Value] = value if isinstance(value, Mapping) else {(): value}
        for labels, one in rows.items():
            lines += _sample(metric, labels, one)
            if len(lines) >= LINES_A_PIECE:
                yield "".join(lines)
                lines = []
    if open_metrics:
        lines.append("# EOF\n")
    yield "".join(lines)


def _head(metric: Metric, open_metrics: bool) -> list[str]:
    name = metric.family if open_metrics else metric.name
    unit = [f"# UNIT {name} {metric.unit}\n"] if open_metrics and metric.unit else []
    return [f"# HELP {name} {metric.help.translate(_HELP)}\n", f"# TYPE {name} {metric.kind}\n", *unit]


def _sample(metric: Metric, labels: Labels, value: Value) -> list[str]:
    named = ",".join(
        [f'{name}="{one.translate(_LABEL)}"' for name, one in zip(metric.labels, labels, strict=True)]
    )
    if not isinstance(value, Histogram):
        return [
            f"{metric.name}{{{named}}} {_number(value)}\n" if named else f"{metric.name} {_number(value)}\n"
        ]
    assert metric.kind is Kind.HISTOGRAM
    return _classes(metric.name, named, value)


def _classes(name: str, named: str, histogram: Histogram) -> list[str]:
    comma, braced, below, lines = "," if named else "", f"{{{named}}}" if named else "", 0, []
    for bound, count in zip((*map(repr, histogram.bounds), "+Inf"), histogram.counts, strict=True):
        below += count
        lines.append(f'{name}_bucket{{{named}{comma}le="{bound}"}} {below}\n')
    return [*lines, f"{name}_sum{braced} {histogram.sum!r}\n", f"{name}_count{braced} {below}\n"]


def _number(value: float) -> str:
    return str(int(value)) if isinstance(value, int) else repr(value)


# -- texts of several processes ----------------------------------------------------------------------------


class Joined:
    """Merger of texts in one format: each metric family once, with the samples of all processes."""

    def __init__(self) -> None:
        self._heads: dict[str, list[str]] = {}
        self._samples: dict[str, list[str]] = defaultdict(list)

    def add(self, lines: list[str], label: str = "") -> None:
        """Add lines of one process's text; `label`, `name="value"`, is inserted into each sample.

        Other comments, and lines before the first HELP, TYPE or UNIT, are skipped: the text may not be metrics at all.
        """
        family = ""
        for line in lines:
            if line.startswith(("# HELP ", "# TYPE ", "# UNIT ")):
                family = line.split(" ", 3)[2]
                head = self._heads.setdefault(family, [])
                if line not in head:
                    head.append(line)
            elif line and family and not line.startswith("#"):
                self._samples[family].append(labelled(line, label) if label else line)

    def text(self, *, open_metrics: bool) -> str:
        found = [line for family, head in self._heads.items() for line in (*head, *self._samples[family])]
        return "".join(f"{line}\n" for line in (*found, *(["# EOF"] if open_metrics else [])))


def labelled(sample: str, label: str) -> str:
    """Return a sample's line with `label` as the first label."""
    name, brace, rest = sample.partition("{")
    if brace and " " not in name:
        return f"{name}{{{label},{rest}"
    name, _, rest = sample.partition(" ")
    return f"{name}{{{label}}} {rest}"
