"""What is wrong, and what to change: what `quire doctor` shows, whoever found it.

A finding is for somebody who did not build this and is tired. `what` names the thing and its numbers; `todo` is a
sentence that he can act on. What is well gives no finding: nobody reads a list of green lights twice.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

ERROR: Final = "error"
"""Something is not served, or data is in danger: now."""

WARNING: Final = "warning"
"""It will be an error, or it hides one."""


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
