"""`quire schemas`: the schemas of topics and their versions, through a broker's REST interface."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from quire.cli.http import admin_url_option, json_option, topic_argument
from quire.cli.output import print_done, print_json, print_rows
from quire.runtime.errors import ConfigurationError
from quire.runtime.rest import Admin
from quire.wire import topic_name


@click.group("schemas")
def command() -> None:
    """Look at the schemas of topics, add and delete them.

    TOPIC is a full name (persistent://tenant/namespace/name) or a short one in public/default; partitions have their
    topic's schemas.

    \b
    Examples:
      quire schemas list orders
      quire schemas show orders --version 0
      quire schemas check orders --type AVRO order.avsc
      quire schemas add orders --type AVRO order.avsc
      quire schemas delete orders
    """


def _path(topic: str, what: str) -> str:
    domain, _, name = topic_name.path(topic).partition("/")
    if domain != "persistent":
        raise ConfigurationError(
            f"{topic} has the schemas of the persistent topic of its name: ask for that one"
        )
    return f"/admin/v2/schemas/{name}/{what}"


@command.command("list")
@topic_argument
@admin_url_option
@json_option
def list_versions(topic: str, admin_url: str, as_json: bool) -> None:
    """List the versions of the schema of TOPIC."""
    admin = Admin(admin_url)
    found = admin.get(_path(topic, "schemas"))["getSchemaResponses"]
    if not found:
        admin.get(f"/admin/v2/{topic_name.path(topic)}/partitions")  # fails for a topic that is not there
    print_rows(
        found,
        as_json,
        {
            "version": "version",
            "type": "type",
            "added": lambda row: _moment(row["timestamp"]),
            "characters": lambda row: len(row["data"]),
        },
        right=("version", "characters"),
    )


@command.command("show")
@topic_argument
@click.option("--version", type=click.IntRange(min=0), help="Instead of the newest.")
@admin_url_option
@json_option
def show(topic: str, version: int | None, admin_url: str, as_json: bool) -> None:
    """Print the schema of TOPIC."""
    what = "schema" if version is None else f"schema/{version}"
    found = Admin(admin_url).get(_path(topic, what))
    print_json(found) if as_json else click.echo(found["data"] or found["type"])


_kind = click.option("--type", "kind", default="AVRO", show_default=True, help="AVRO, JSON, STRING, INT32, …")
_file = click.argument("file", required=False, type=click.Path(exists=True, dir_okay=False, path_type=Path))


def _body(kind: str, file: Path | None) -> dict[str, Any]:
    try:
        text = "" if file is None else file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{file} cannot be read as a schema: {error}") from None
    return {"type": kind.upper(), "schema": text, "properties": {}}


@command.command("check")
@topic_argument
@_file
@_kind
@admin_url_option
@json_option
def check(topic: str, file: Path | None, kind: str, admin_url: str, as_json: bool) -> None:
    """Say whether the schema in FILE may be the next of TOPIC."""
    said = Admin(admin_url).post(_path(topic, "compatibility"), _body(kind, file))
    if as_json:
        print_json(said)
    elif said["compatibility"]:
        click.echo(f"it goes with the schema of {topic} ({said['schemaCompatibilityStrategy']})")
    else:
        click.echo(said["reason"])


@command.command("add")
@topic_argument
@_file
@_kind
@admin_url_option
@json_option
def add(topic: str, file: Path | None, kind: str, admin_url: str, as_json: bool) -> None:
    """Make the schema in FILE the next version of TOPIC's, unless it is one already."""
    version = Admin(admin_url).post(_path(topic, "schema"), _body(kind, file))["version"]
    print_done(as_json, f"version {version} of {topic}", topic=topic, version=version)


@command.command("delete")
@topic_argument
@admin_url_option
@json_option
def delete(topic: str, admin_url: str, as_json: bool) -> None:
    """End all versions of TOPIC's schema: the next one needs to fit none of them."""
    version = Admin(admin_url).delete(_path(topic, "schema"))["version"]
    print_done(as_json, f"deleted the schema of {topic}", topic=topic, version=version)


def _moment(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
