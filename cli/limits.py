"""`quire limits`: how many topics, producers, consumers and subscriptions a namespace or a topic may have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import click

from quire.cli.noun import Noun, place_path
from quire.cli.output import Answer, done, fields
from quire.runtime.errors import ConfigurationError
from quire.runtime.rest import Admin


class Limit(NamedTuple):
    """Its option, and its words in the paths of namespaces and of topics; a topic has no number of topics."""

    option: str
    of_namespace: str
    of_topic: str
    help: str


LIMITS: Final = (
    Limit("topics", "maxTopicsPerNamespace", "", "Topics of the namespace, each partition counted."),
    Limit("producers", "maxProducersPerTopic", "maxProducers", "Producers of a topic."),
    Limit("consumers", "maxConsumersPerTopic", "maxConsumers", "Consumers of a topic."),
    Limit(
        "consumers-per-subscription",
        "maxConsumersPerSubscription",
        "maxConsumersPerSubscription",
        "Consumers of a subscription.",
    ),
    Limit(
        "subscriptions", "maxSubscriptionsPerTopic", "maxSubscriptionsPerTopic", "Subscriptions of a topic."
    ),
)
NO_TOPICS: Final = ("topics", 0)


def _paths(where: str) -> dict[str, str]:
    """Of the limits that `where` may have, by their options."""
    parent, is_topic = place_path(where), "://" in where
    words = {one.option: one.of_topic if is_topic else one.of_namespace for one in LIMITS}
    return {option: f"{parent}/{word}" for option, word in words.items() if word}


def _options(run: Callable[..., Answer]) -> Callable[..., Answer]:
    for one in reversed(LIMITS):
        option = click.option(f"--{one.option}", type=click.IntRange(min=0), help=f"{one.help} 0: no limit.")
        run = option(run)
    return run


@click.group("limits", cls=Noun)
def command() -> None:
    """Bound what a namespace or a topic may have, so that nobody takes what all others need.

    WHERE is a namespace (tenant/namespace) or a topic, by its full name (persistent://tenant/namespace/name). What a
    topic says comes before what its namespace says, and that before [limits] of the brokers' security file.

    \b
    Examples:
      quire limits set public/default --topics 100 --producers 50
      quire limits set persistent://public/default/orders --producers 1
      quire limits get public/default
      quire limits remove persistent://public/default/orders
    """


@command.verb("set")
@click.argument("where")
@_options
def set_limits(admin: Admin, where: str, **given: int | None) -> Answer:
    """Bound WHERE; what is not named stays as it is. Who is there stays, and one too many is refused."""
    wanted = {name.replace("_", "-"): value for name, value in given.items() if value is not None}
    paths = _paths(where)
    if not wanted:
        raise ConfigurationError("name a limit, such as --producers 10")
    if unknown := sorted(wanted.keys() - paths.keys()):
        raise ConfigurationError(f"a topic has no limit of {unknown[0]}; set it for the namespace")
    for option, value in wanted.items():
        admin.post(paths[option], value)
    said = ", ".join(f"{value or 'any number of'} {option}" for option, value in wanted.items())
    return done(f"{where} takes {said}", where=where, limits=wanted)


@command.verb("get")
@click.argument("where")
def get_limits(admin: Admin, where: str) -> Answer:
    """Show what WHERE itself prescribes."""
    found: dict[str, Any] = {option: admin.get(path) for option, path in _paths(where).items()}
    # Stock clients know no null there: a namespace that prescribes no number of topics answers 0.
    said = {
        option: value for option, value in found.items() if value is not None and (option, value) != NO_TOPICS
    }
    return fields(said) if said else Answer({}, f"{where} prescribes no limits")


@command.verb("remove")
@click.argument("where")
def remove_limits(admin: Admin, where: str) -> Answer:
    """Take back all limits that WHERE prescribes."""
    for path in _paths(where).values():
        admin.delete(path)
    return done(f"{where} prescribes no limits any more", where=where, removed=True)
