"""The page for users of pulsar-admin: each command on it exists, with its options, arguments and policies."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from quire.cli import policy_values
from quire.cli.main import cli
from quire.cli.policies import policy_of

PAGE = Path(__file__).parents[2] / "docs" / "pulsar-admin.md"
COMMANDS = list(dict.fromkeys(re.findall(r"`quire ([^`]+)`", PAGE.read_text())))


def command_of(words: list[str]) -> tuple[click.Command, list[str]]:
    """Return the command that the first words name, and the other words. Fails if there is no such command."""
    context, rest = click.Context(cli), list(words)
    while isinstance(context.command, click.Group):
        found = context.command.get_command(context, rest.pop(0) if rest else "")
        assert found is not None, f"quire {' '.join(words)}: no such command"
        context = click.Context(found, parent=context)
    return context.command, rest


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_that_the_page_names_exists(line: str) -> None:
    if line == "COMMAND --help":
        return
    command, words = command_of(line.split())
    options = {name: one for one in command.params if isinstance(one, click.Option) for name in one.opts}
    given = []
    while words:
        word = words.pop(0)
        if not word.startswith("--"):
            given.append(word)
            continue
        assert word in options, f"quire {line}: no option {word}"
        if not options[word].is_flag:
            assert words.pop(0)
    arguments = [one for one in command.params if isinstance(one, click.Argument)]
    if not arguments or arguments[-1].nargs == 1:
        assert len(given) <= len(arguments), f"quire {line}: more than {len(arguments)} arguments"
    assert len(given) >= sum(one.required for one in arguments), f"quire {line}: too few arguments"


@pytest.mark.parametrize("line", [line for line in COMMANDS if line.startswith("policies set ")])
def test_the_values_of_policies_are_valid(line: str) -> None:
    _, _, where, name, *words = line.split()
    policy = policy_of(name)
    assert policy.row.topic_word or where == "NAMESPACE", f"quire {line}: no policy of topics"
    assert policy.name == name and policy_values.parse(policy.row, words) is not None
