"""`quire topics properties`: lists, sets and removes the properties of a topic."""

from __future__ import annotations

from urllib.parse import quote

import click

from quire.cli.noun import Noun, topic_argument, topic_path
from quire.cli.output import Answer, done, fields
from quire.runtime.errors import ConfigurationError, NotFound
from quire.runtime.rest import Admin


@click.group("properties", cls=Noun)
def properties() -> None:
    """List, set and remove properties of a topic: names and values of your choice. Partitions have their topic's.

    \b
    Examples:
      quire topics properties list orders
      quire topics properties set orders team=billing tier=gold
      quire topics properties remove orders tier
    """


def _found(admin: Admin, topic: str) -> dict[str, str]:
    found: dict[str, str] = admin.get(f"{topic_path(topic)}/properties") or {}
    return found


@properties.verb("list")
@topic_argument
def list_properties(admin: Admin, topic: str) -> Answer:
    """List the properties of TOPIC.

    \b
    Example:
      quire topics properties list orders
    """
    return fields(_found(admin, topic))


@properties.verb("set")
@topic_argument
@click.argument("given", nargs=-1, required=True, metavar="NAME=VALUE...")
def set_properties(admin: Admin, topic: str, given: tuple[str, ...]) -> Answer:
    """Set properties of TOPIC; its other properties are unchanged.

    \b
    Example:
      quire topics properties set orders team=billing tier=gold
    """
    wanted = {}
    for text in given:
        name, separator, value = text.partition("=")
        if not separator or not name:
            raise ConfigurationError(f"{text!r} is not a property; write NAME=VALUE")
        wanted[name] = value
    admin.put(f"{topic_path(topic)}/properties", wanted)
    return done(f"set {', '.join(wanted)} of {topic}", topic=topic, properties=wanted)


@properties.verb("remove")
@topic_argument
@click.argument("names", nargs=-1, required=True)
def remove_properties(admin: Admin, topic: str, names: tuple[str, ...]) -> Answer:
    """Remove the properties NAMES of TOPIC.

    \b
    Example:
      quire topics properties remove orders tier
    """
    known = _found(admin, topic)
    if unknown := [name for name in names if name not in known]:
        raise NotFound(f"topic {topic} has no property {unknown[0]!r}")
    for name in names:
        admin.delete(f"{topic_path(topic)}/properties?key={quote(name, safe='')}")
    return done(f"removed {', '.join(names)} of {topic}", topic=topic, removed=list(names))
