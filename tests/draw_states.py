"""Draws docs/states.md from the tables named `TRANSITIONS` in the code: `python -m tests.draw_states`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "states.md"

OPENING = """\
# States

Each state machine has its table in the code, literally, as `TRANSITIONS`: which state follows after which event.
Production takes each new state from there, and a pair that the table lacks is a bug, which is raised as an
`AssertionError`. These diagrams are drawn from the tables by `python -m tests.draw_states`; a test compares them. The
black dot stands for what does not exist, or for where a machine begins. Where an arrow has several events, a slash
parts them.
"""


def page() -> str:
    return "\n".join([OPENING, *map(_section, machines())])


def machines() -> Iterator[ModuleType]:
    """Every module of the product that has a table."""
    rooms = (folder for folder in sorted(ROOT.iterdir()) if (folder / "__init__.py").exists())
    for file in (file for room in rooms for file in sorted(room.rglob("*.py"))):
        if re.search("^TRANSITIONS\\b", file.read_text(), re.MULTILINE):
            yield import_module("quire." + ".".join(file.relative_to(ROOT).with_suffix("").parts))


def _section(module: ModuleType) -> str:
    file = "/".join(module.__name__.split(".")[1:]) + ".py"
    what, theory = module.TRANSITIONS.what, " ".join((module.__doc__ or "").split())
    sentence = theory.partition(". ")[0].rstrip(".")
    return (
        f"## {what[0].upper()}{what[1:]}\n\n{sentence}. [{file}](../{file})\n\n"
        f"```mermaid\n{module.TRANSITIONS.draw()}\n```\n"
    )


if __name__ == "__main__":
    PAGE.write_text(page())
