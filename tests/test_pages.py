"""Commands and programs on all pages name subcommands, options, modules and functions that exist."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from quire.cli.main import cli

ROOT = Path(__file__).parents[1]
PAGES = sorted([ROOT / "README.md", ROOT / "deploy" / "README.md", *(ROOT / "docs").glob("*.md")])
ELISION = re.compile(r"…|\.\.\.|^[A-Z_]+$|^$")
"""Word of a command that stands for others."""


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def commands(page: Path) -> Iterator[list[str]]:
    """Yield the words of each `quire` command of a page, in blocks of shell and within sentences."""
    text = page.read_text()
    blocks = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    blocks += re.findall(r"(?m)(?:^    (?=\S).*\n)+", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    lines += re.findall(
        r"(?<!`)`((?:\S*/)?quire [^`]*)`(?!`)", re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    )
    for line in lines:
        for part in re.split(r"\||&&|;|\$\(", line.split(" # ")[0]):
            words = part.strip().rstrip(")").split()
            while words and re.fullmatch(r"[A-Z_]+=\S*", words[0]):
                words = words[1:]
            if words and words[0].rpartition("/")[2] == "quire":
                yield words[1:]


def problem_of(words: list[str]) -> str:
    """Return what a command names that does not exist; empty if it is right."""
    command: click.Command = cli
    context = click.Context(cli)
    rest = list(words)
    while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
        word = rest.pop(0)
        if ELISION.search(word) or "|" in word:
            return ""
        found = command.get_command(context, word)
        if found is None:
            return f"no subcommand {word}"
        command, context = found, click.Context(found, info_name=word, parent=context)
    known = {
        option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)
    } | {"--help"}
    for word in rest:
        option = word.partition("=")[0]
        if re.fullmatch(r"--[a-z][\w-]*", option) and option not in known:
            return f"no option {option}"
    return ""


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_of_a_page_exist(page: Path) -> None:
    wrong = {f"quire {' '.join(words)}: {why}" for words in commands(page) if (why := problem_of(words))}
    assert not wrong, "\n".join(sorted(wrong))


def test_the_pages_have_many_commands() -> None:
    assert sum(len(list(commands(page))) for page in PAGES) > 150
    assert problem_of(["topics", "lst"]) == "no subcommand lst"
    assert problem_of(["topics", "list", "--jsn"]) == "no option --jsn"
    assert problem_of(["topics", "stats", "TOPIC", "--json"]) == problem_of(["bookies", "…"]) == ""


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_page_installs_from_a_clone_or_a_wheel(page: Path) -> None:
    """The package is in no index, so a bare name would not be found there."""
    for line in page.read_text().splitlines():
        assert not re.search(r"pip install '?quire(?:\[[\w,]+\])?'?(?! @)(?:[\s`]|$)", line), line


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_programs_of_a_page_compile_and_import_names_that_exist(page: Path) -> None:
    for text in re.findall(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE):
        tree = compile(text, name_of(page), "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT | ast.PyCF_ONLY_AST)
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(
                ("quire", "pyspark_quire")
            ):
                module = importlib.import_module(node.module or "")
                missing = [one.name for one in node.names if not hasattr(module, one.name)]
                assert not missing, f"{name_of(page)} imports {missing} from {node.module}"
