"""Golden bytes: files in tests/data of named cases, each a name and its bytes in hex, or a line of JSON.

A change there is a change of format: what was written before must still be read. `QUIRE_REWRITE_GOLDEN=1 pytest TEST`
writes such a file anew, to be reviewed as a diff.
"""

from __future__ import annotations

import os
import textwrap
from collections.abc import Mapping
from pathlib import Path

DATA = Path(__file__).parent / "data"
REWRITE = os.environ.get("QUIRE_REWRITE_GOLDEN") == "1"


def load(file: str) -> dict[str, bytes]:
    """The cases of `tests/data/FILE`, by name."""
    found: dict[str, bytes] = {}
    for part in (DATA / file).read_text().strip().split("\n\n"):
        name, *lines = part.splitlines()
        text = "".join(lines)
        found[name] = text.encode() if text.startswith("{") else bytes.fromhex(text)
    return found


def save(file: str, cases: Mapping[str, bytes]) -> None:
    parts = [name + "\n" + "\n".join(_lines(raw)) for name, raw in cases.items()]
    (DATA / file).write_text("\n\n".join(parts) + "\n")


def _lines(raw: bytes) -> list[str]:
    return [raw.decode()] if raw.startswith(b"{") else textwrap.wrap(raw.hex(), 96)
