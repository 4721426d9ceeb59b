"""Findings: faults and advice, as `quire doctor` shows them.

A finding must be clear to an operator without knowledge of the code. `what` names the object and its numbers; `todo` is
an instruction. A passed check has no finding.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

ERROR: Final = "error"
"""Level of a finding: some data are unavailable or at risk now."""

WARNING: Final = "warning"
"""Level of a finding: an error may follow, or be hidden."""


class Finding(NamedTuple):
    level: str
    what: str
    todo: str

    def to_json(self) -> dict[str, Any]:
        return self._asdict()


def error(what: str, todo: str) -> Finding:
    return Finding(ERROR, what, todo)


def warning(what: str, todo: str) -> Finding:
    return Finding(WARNING, what, todo)
