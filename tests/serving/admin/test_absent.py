"""The table of refused requests in docs/pulsar.md has all rows of `absent`, and no other ones.

`QUIRE_REWRITE=1` writes the table anew.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from quire.serving.admin import absent
from tests.serving.admin.conftest import Rest

PAGE = Path(__file__).parents[3] / "docs" / "pulsar.md"
HEADING = "| refused request | reason |\n|---|---|\n"
_PATTERN = re.compile(r"\{(\w+):(?:[^{}]|\{[^{}]*\})*\}")


def rows() -> Iterator[tuple[str, str]]:
    """Each refused request, and the reason."""
    for word in {**absent.OF_NAMESPACES, **absent.OF_TOPICS}:
        levels = {"namespaces": absent.OF_NAMESPACES, "topics": absent.OF_TOPICS}
        for why in dict.fromkeys(level[word] for level in levels.values() if word in level):
            of = " and ".join(name for name, level in levels.items() if level.get(word) == why)
            yield f"policy `{word}` of {of}", why
    for method, path, why in (*absent.ACTIONS, *absent.OF_CLUSTER):
        short = _PATTERN.sub(r"{\1}", path).removeprefix("/admin/v2")
        yield f"`{method} {short}`", why
    for path in absent.ON_TOPICS:
        yield f"`POST {path.removeprefix('/admin/v2')}`", absent.ONE_BY_ONE


def table() -> str:
    by_reason: dict[str, list[str]] = {}
    for what, why in rows():
        by_reason.setdefault(why, []).append(what)
    lines = [f"| {'; '.join(every)} | {why} |\n" for why, every in by_reason.items()]
    return HEADING + "".join(lines)


def test_the_page_lists_what_is_refused() -> None:
    text = PAGE.read_text()
    start = text.index(HEADING)
    end = text.index("\n\n", start) + 1
    if os.environ.get("QUIRE_REWRITE"):
        PAGE.write_text(text[:start] + table() + text[end:])
        return
    assert text[start:end] == table(), "run this test with QUIRE_REWRITE=1, and read the difference"


async def test_a_refusal_names_what_was_asked(rest: Rest) -> None:
    for method, path, why in absent.OF_CLUSTER:
        word = next(one for one in reversed(path.split("/")) if not one.startswith("{"))
        refused = await rest.ask(method, path.replace("{", "").replace("}", ""))
        assert refused == (501, {"reason": f"{method} {word} is not supported: {why}"})
