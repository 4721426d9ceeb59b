"""`quire schemas`: manages the schemas of topics through a broker's REST interface."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from quire.cli import moments
from quire.cli.noun import Noun, topic_argument
from quire.cli.output import Answer, Column, done, table_of
from quire.runtime.errors import ConfigurationError, QuireError
from quire.runtime.rest import Admin
from quire.wire import topic_name


@click.group("schemas", cls=Noun)
def command() -> None:
    """List, add and delete schemas of topics.

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


@command.verb("list")
@topic_argument
def list_versions(admin: Admin, topic: str) -> Answer:
    """List the versions of the schema of TOPIC.

    \b
    Example:
      quire schemas list orders
    """
    found = admin.get(_path(topic, "schemas"))["getSchemaResponses"]
    if not found:
        admin.get(f"/admin/v2/{topic_name.path(topic)}/partitions")  # raises NotFound for a missing topic
    columns: dict[str, Column] = {
        "version": "version",
        "type": "type",
        "added": lambda row: moments.shown(row["timestamp"]),
        "characters": lambda row: len(row["data"]),
    }
    return Answer(found, table_of(found, columns, right=("version", "characters")))


@command.verb("show")
@topic_argument
@click.option("--version", type=click.IntRange(min=0), help="Version to print; by default the newest.")
def show(admin: Admin, topic: str, version: int | None) -> Answer:
    """Print the schema of TOPIC.

    \b
    Example:
      quire schemas show orders --version 0
    """
    what = "schema" if version is None else f"schema/{version}"
    found = admin.get(_path(topic, what))
    return Answer(found, found["data"] or found["type"])


_kind = click.option("--type", "kind", default="AVRO", show_default=True, help="AVRO, JSON, STRING, INT32, …")
_file = click.argument("file", required=False, type=click.Path(exists=True, dir_okay=False, path_type=Path))


def _body(kind: str, file: Path | None) -> dict[str, Any]:
    try:
        text = "" if file is None else file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{file} cannot be read as a schema: {error}") from None
    return {"type": kind.upper(), "schema": text, "properties": {}}


@command.verb("check")
@topic_argument
@_file
@_kind
def check(admin: Admin, topic: str, file: Path | None, kind: str) -> Answer:
    """Check whether the schema in FILE is compatible with those of TOPIC. Exit code 1: `add` would refuse it.

    \b
    Examples:
      quire schemas check orders order.avsc
      quire schemas check orders --type JSON order.json
    """
    said = admin.post(_path(topic, "compatibility"), _body(kind, file))
    if said["compatibility"]:
        return Answer(said, f"it goes with the schema of {topic} ({said['schemaCompatibilityStrategy']})")
    return Answer(said, error=QuireError(f"{topic} would refuse this schema: {said['reason']}"))


@command.verb("add")
@topic_argument
@_file
@_kind
def add(admin: Admin, topic: str, file: Path | None, kind: str) -> Answer:
    """Add the schema in FILE as a new version to TOPIC, unless it exists already.

    \b
    Example:
      quire schemas add orders --type AVRO order.avsc
    """
    version = admin.post(_path(topic, "schema"), _body(kind, file))["version"]
    return done(f"version {version} of {topic}", topic=topic, version=version)


@command.verb("delete")
@topic_argument
def delete(admin: Admin, topic: str) -> Answer:
    """Delete the schema of TOPIC: the next version need not be compatible with earlier ones.

    \b
    Example:
      quire schemas delete orders
    """
    version = admin.delete(_path(topic, "schema"))["version"]
    return done(f"deleted the schema of {topic}", topic=topic, version=version)
