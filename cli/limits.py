"""`quire limits`: maximum numbers of topics, producers, consumers and subscriptions of a namespace or topic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import click

from quire.cli.noun import Noun, place_path, where_argument
from quire.cli.output import Answer, done, fields
from quire.runtime.errors import ConfigurationError
from quire.runtime.rest import Admin


class Limit(NamedTuple):
    """Option of a limit, and its REST path segments for namespaces and topics; `of_topic` may be empty."""

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
    """Return the REST paths of the limits that `where` (a namespace or topic) can have, by option."""
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
    """Limit the resources of a namespace or topic, so that one tenant cannot exhaust those of others.

    WHERE is a namespace (tenant/namespace) or a topic, by its full name (persistent://tenant/namespace/name). Limits
    of a topic override those of its namespace, which override [limits] of the brokers' security file.

    \b
    Examples:
      quire limits set public/default --topics 100 --producers 50
      quire limits set persistent://public/default/orders --producers 1
      quire limits get public/default
      quire limits remove persistent://public/default/orders
    """


@command.verb("set")
@where_argument
@_options
def set_limits(admin: Admin, where: str, **given: int | None) -> Answer:
    """Set limits of WHERE; other limits are unchanged.

    Existing topics and clients stay; new ones above a limit are refused.

    \b
    Example:
      quire limits set public/default --topics 100 --producers 50
    """
    wanted = {name.replace("_", "-"): value for name, value in given.items() if value is not None}
    paths = _paths(where)
    if not wanted:
        raise ConfigurationError("give at least one limit, such as --producers 10")
    if unknown := sorted(wanted.keys() - paths.keys()):
        raise ConfigurationError(f"a topic has no limit of {unknown[0]}; set it for the namespace")
    for option, value in wanted.items():
        admin.post(paths[option], value)
    said = ", ".join(f"{value or 'any number of'} {option}" for option, value in wanted.items())
    return done(f"limits of {where}: {said}", where=where, limits=wanted)


@command.verb("get")
@where_argument
def get_limits(admin: Admin, where: str) -> Answer:
    """Show the limits that are set for WHERE itself.

    \b
    Example:
      quire limits get public/default
    """
    found: dict[str, Any] = {option: admin.get(path) for option, path in _paths(where).items()}
    # Stock clients expect a number, so brokers return 0 for a namespace without this limit.
    said = {
        option: value for option, value in found.items() if value is not None and (option, value) != NO_TOPICS
    }
    return fields(said) if said else Answer({}, f"{where} has no limits of its own")


@command.verb("remove")
@where_argument
def remove_limits(admin: Admin, where: str) -> Answer:
    """Remove all limits that are set for WHERE.

    \b
    Example:
      quire limits remove persistent://public/default/orders
    """
    for path in _paths(where).values():
        admin.delete(path)
    return done(f"removed all limits of {where}", where=where, removed=True)
