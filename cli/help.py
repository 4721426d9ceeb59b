"""`quire help`: the help of a command."""

from __future__ import annotations

import click


@click.command("help")
@click.argument("words", nargs=-1, metavar="[COMMAND]...")
def command(words: tuple[str, ...]) -> None:
    """Print the help of COMMAND, as `--help` after it does.

    \b
    Examples:
      quire help
      quire help topics
      quire help topics create
    """
    context = click.get_current_context().find_root()
    for word in words:
        group = context.command
        if not isinstance(group, click.Group):
            raise click.UsageError(f"{context.command_path} has no commands, such as {word!r}", context)
        name, found, _ = group.resolve_command(context, [word])
        assert found is not None  # resolve_command raises UsageError instead
        context = click.Context(found, info_name=name, parent=context)
    click.echo(context.command.get_help(context))
