"""`quire contexts`: lists the contexts that `quire login` stored, chooses the current one, and removes contexts."""

from __future__ import annotations

import os

import click

from quire.cli import profile
from quire.cli.noun import json_option
from quire.cli.output import Answer, Column, done, table_of


@click.group("contexts")
def command() -> None:
    """List the contexts that `quire login` stored, choose the current one, or remove one.

    A context has the addresses of one cluster, and the names of files with credentials for it. Commands use the one of
    --context, else of QUIRE_CONTEXT, else the current one.

    \b
    Examples:
      quire login --context prod --admin-url https://quire.example:8443 --service-url pulsar+ssl://quire.example:6651
      quire --context prod topics list
      quire contexts list
      quire contexts use prod
      quire contexts remove prod
    """


@command.command("list")
@json_option
def list_contexts(as_json: bool) -> None:
    """List the contexts; * is before the one that commands use.

    \b
    Example:
      quire contexts list
    """
    chosen, contexts = profile.chosen(), profile.read()
    rows = [
        {"context": name, "current": name == chosen, **one} for name, one in sorted(contexts.settings.items())
    ]
    columns: dict[str, Column] = {
        "": lambda row: "*" if row["current"] else "",
        "context": "context",
        "admin url": "admin_url",
        "service url": "service_url",
        "credentials": lambda row: row.get("user") or row.get("token_file") or row.get("tls_certificate", ""),
    }
    notes = [] if rows else ["there are no contexts; `quire login --context NAME` stores one"]
    shown = [table_of(rows, columns)] if rows else []
    Answer(rows, *shown, notes=notes).say(as_json)


_name = click.argument("name", shell_complete=profile.complete)


@command.command("use")
@_name
@json_option
def use(name: str, as_json: bool) -> None:
    """Make NAME the context of commands that name no other; `default` is the one of `quire login` without --context.

    \b
    Example:
      quire contexts use prod
    """
    profile.use(name)
    other = os.environ.get(profile.VARIABLE, name)
    notes = [] if other == name else [f"{profile.VARIABLE}={other} still overrides it in this shell"]
    Answer({"context": name, "current": True}, f"{name} is the current context", notes=notes).say(as_json)


@command.command("remove")
@_name
@json_option
def remove(name: str, as_json: bool) -> None:
    """Forget the addresses and the names of files in the context NAME; no file with credentials is deleted.

    \b
    Example:
      quire contexts remove prod
    """
    was_current = profile.remove(name)
    is_other = was_current and name != profile.DEFAULT
    said = f"removed {name}" + (f"; {profile.DEFAULT} is the current context now" if is_other else "")
    done(said, context=name, removed=True).say(as_json)
