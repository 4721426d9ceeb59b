"""MkDocs hook that adds a page for each subcommand of `quire`, from click's help texts."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

import click
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from quire.cli.main import SUBCOMMANDS, cli
from quire.cli.noun import LAST, Noun

SECTION = "Commands"
COMMON = "These options belong to every verb of a noun (`quire topics`, `quire brokers` …)."


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add the section of the commands' pages to the navigation."""
    pages = [{f"quire {name}": f"commands/{name}.md"} for name in SUBCOMMANDS]
    position = 1 + next(i for i, item in enumerate(config.nav) if "Reference" in item)
    config.nav.insert(position, {SECTION: ["commands/index.md", *pages]})
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the commands' pages and their index."""
    root = click.Context(cli, info_name="quire")
    rows = "\n".join(f"| [`quire {name}`]({name}.md) | {summary} |" for name, summary in SUBCOMMANDS.items())
    verb = _context("lookup", _context("topics", root))
    common = _options(verb, [each for each in verb.command.params if _is_common(each)])
    index = f"# Commands\n\n| command | |\n|---|---|\n{rows}\n\n## Common options\n\n{COMMON}\n\n{common}\n"
    files.append(File.generated(config, "commands/index.md", content=index))
    for name in SUBCOMMANDS:
        text = "\n\n".join(_describe(_context(name, root), 1))
        files.append(File.generated(config, f"commands/{name}.md", content=text))
    return files


def _context(name: str, parent: click.Context) -> click.Context:
    assert isinstance(parent.command, click.Group)
    command = parent.command.get_command(parent, name)
    assert command is not None
    return click.Context(command, info_name=name, parent=parent)


def _describe(context: click.Context, level: int) -> Iterator[str]:
    """Yield the parts of a command's description, then the parts of its subcommands' descriptions."""
    command = context.command
    is_verb = context.parent is not None and isinstance(context.parent.command, Noun)
    yield f"{'#' * level} {context.command_path}"
    yield _text(command.help or "")
    yield f"```text\n{context.command_path} {' '.join(command.collect_usage_pieces(context))}\n```"
    yield _options(context, [each for each in command.params if not (is_verb and _is_common(each))])
    if is_verb:
        yield "And the [common options](index.md#common-options)."
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            if not (verb := _context(name, context)).command.hidden:
                yield from _describe(verb, level + 1)


def _is_common(parameter: click.Parameter) -> bool:
    return (parameter.name or "").startswith(LAST)


def _text(help_text: str) -> str:
    """Return a help text as Markdown; its preformatted paragraphs, marked by `\\b`, become blocks of code."""
    paragraphs = inspect.cleandoc(help_text).partition("\f")[0].split("\n\n")
    return "\n\n".join(
        f"```text\n{part.strip()[1:].strip()}\n```" if part.strip().startswith("\b") else part
        for part in paragraphs
    )


def _options(context: click.Context, parameters: list[click.Parameter]) -> str:
    """Return a Markdown table of the options that have a help text; "" if none has."""
    records = [record for each in parameters if (record := each.get_help_record(context)) and record[1]]
    if not records:
        return ""
    rows = "\n".join(f"| `{names}` | {_cell(meaning)} |" for names, meaning in records)
    return f"| option | meaning |\n|---|---|\n{rows}"


def _cell(text: str) -> str:
    return re.sub(r"([|<*_\[\]])", r"\\\1", text)
