"""The help of every command has an example, and click accepts the words of each."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from quire.cli import profile
from quire.cli.main import cli

ENDS = {">", "|", "&&", ";"}
"""Words of the shell that end a command's own words."""


def commands(command: click.Command = cli, path: tuple[str, ...] = ("quire",)) -> Iterator[tuple[str, str]]:
    """Yield each command as typed, with its help."""
    yield " ".join(path), command.help or ""
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            if inner.hidden:  # not for users
                continue
            yield from commands(inner, (*path, name))


COMMANDS = dict(commands())


def examples(text: str) -> list[str]:
    """The lines below "Example:" or "Examples:", those that end with a backslash joined with the next."""
    _, _, below = text.partition("Example")
    _, _, lines = below.partition(":\n")
    every = lines.partition("\n\n")[0].replace("\\\n", " ").splitlines()
    return [line.strip() for line in every if line.strip()]


def words_of(example: str) -> list[str]:
    """The words of the `quire` in an example: after a pipe, before a redirection or a comment."""
    words = shlex.split(example, comments=True)
    words = words[words.index("quire") + 1 :]
    ends = [at for at, word in enumerate(words) if word in ENDS]
    return words[: min(ends, default=len(words))]


def parse(words: list[str]) -> str:
    """Parse the words as click does, run nothing, and return the command that they name."""
    context = cli.make_context("quire", [*words])
    while isinstance(context.command, click.Group):
        name, command, rest = context.command.resolve_command(
            context, [*context._protected_args, *context.args]
        )
        assert command is not None
        context = command.make_context(name, rest, parent=context)
    return context.command_path


@pytest.fixture
def _no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Accept names of files that do not exist, and the context that examples name."""

    def unchanged(_: Any, value: Any, *__: Any) -> Any:
        return value

    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setattr(click.Path, "convert", unchanged)
    monkeypatch.setattr(click.File, "convert", unchanged)
    profile._write(profile.Contexts({"prod": {"admin_url": "http://127.0.0.1:1"}}))


@pytest.mark.usefixtures("_no_files")
@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_examples_that_click_accepts(name: str) -> None:
    found = examples(COMMANDS[name])
    assert any(f"{name} " in f"{one} " for one in found), f"the help of `{name}` needs an example of it"
    for example in found:
        try:
            parse(words_of(example))
        except click.exceptions.Exit as end:  # --help ends the parsing
            assert end.exit_code == 0
