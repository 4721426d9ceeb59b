"""`quire brokers`: list brokers and the owner of each bundle; unload or split a bundle."""

from __future__ import annotations

import json
import time
from urllib.parse import quote

import click

from quire.cli.noun import Noun
from quire.cli.output import Answer, Column, done, table_of
from quire.runtime.errors import ConfigurationError, NotFound
from quire.runtime.rest import Admin

BROKERS = "/quire/v1/brokers"
OPENAPI = "/quire/v1/openapi.json"


@click.group("brokers", cls=Noun)
def command() -> None:
    """Show brokers, and the owner of each bundle and why; move or split a bundle.

    A bundle is a part of a namespace, TENANT/NAMESPACE/LOW_HIGH by the hashes of its topics' names; one broker owns it.

    \b
    Examples:
      quire brokers list
      quire brokers show
      quire brokers unload public/default/00000000_10000000
      quire brokers split public/default/00000000_10000000
    """


@command.verb("list")
def list_brokers(admin: Admin) -> Answer:
    """List the brokers with their bundles, topics and load (1 is one message, or 1 KiB, per second).

    \b
    Example:
      quire brokers list
    """
    rows = admin.get(BROKERS)
    columns: dict[str, Column] = {
        "broker": "broker",
        "bundles": "bundles",
        "topics": "topics",
        "load": "load",
        "rest": "httpUrl",
        "version": "version",
        "note": lambda row: f"cannot write: {why}" if (why := row.get("cannotWrite")) else "",
    }
    return Answer(rows, table_of(rows, columns, right=("bundles", "topics", "load")))


@command.verb("show")
@click.argument("broker", required=False)
def show(admin: Admin, broker: str | None) -> Answer:
    """Show the bundles of BROKER, or of all brokers, with the time and reason of their assignment.

    \b
    Example:
      quire brokers show broker-1:6650
    """
    if broker is not None and broker not in [row["broker"] for row in admin.get(BROKERS)]:
        raise NotFound(f"there is no broker {broker}; see `quire brokers list`")
    rows = [row for row in admin.get(f"{BROKERS}/bundles") if broker in (None, row["broker"])]
    columns: dict[str, Column] = {
        "bundle": "bundle",
        "broker": "broker",
        "topics": "topics",
        "load": "load",
        "since": lambda row: _since(row["sinceMs"]),
        "why": "why",
    }
    return Answer(rows, table_of(rows, columns, right=("topics", "load")))


@command.verb("unload")
@click.argument("bundle")
def unload(admin: Admin, bundle: str) -> Answer:
    """Unload BUNDLE from its broker; the least loaded broker takes it at the next lookup.

    \b
    Example:
      quire brokers unload public/default/00000000_10000000
    """
    admin.put(f"{BROKERS}/bundles/{_bundle(bundle)}/unload")
    return done(f"bundle {bundle}, unloaded", bundle=bundle, unloaded=True)


@command.verb("split")
@click.argument("bundle")
@click.option(
    "--at", default="", metavar="HASH", help="Hash at which the second bundle begins, eight hex digits."
)
def split(admin: Admin, bundle: str, at: str) -> Answer:
    """Split BUNDLE into two, on the same broker, without interrupting its topics.

    Brokers automatically split a bundle whose load is too high to move. Without --at, each gets about half of the
    loaded topics.

    \b
    Example:
      quire brokers split public/default/00000000_10000000
    """
    low, high = admin.put(f"{BROKERS}/bundles/{_bundle(bundle)}/split?at={quote(at)}")
    return done(f"bundle {bundle} is {low} and {high}", bundle=bundle, bundles=[low, high])


@command.verb("forget")
@click.argument("bundle")
@click.option("--accept-loss", is_flag=True, help="Confirm the loss of the subscriptions.")
def forget(admin: Admin, bundle: str, accept_loss: bool) -> Answer:
    """Discard the subscriptions of BUNDLE, whose state log is unreadable, so that its topics can be loaded again.

    Messages are kept. Create the subscriptions again before consumers connect, otherwise they start after all messages.
    Messages that producers with deduplication send again may be stored twice. The command fails while the metadata are
    older than a copy of them: rebuild them, or accept them with `quire rescue accept-older`.

    \b
    Example:
      quire brokers forget public/default/00000000_10000000 --accept-loss
    """
    admin.put(f"{BROKERS}/bundles/{_bundle(bundle)}/forget?accept_loss={str(accept_loss).lower()}")
    return done(f"bundle {bundle}: subscriptions discarded", bundle=bundle, forgotten=True)


@command.verb("openapi")
def openapi(admin: Admin) -> Answer:
    """Print the OpenAPI document of the brokers' REST interface.

    \b
    Example:
      quire brokers openapi > quire.openapi.json
    """
    document = admin.get(OPENAPI)
    return Answer(document, json.dumps(document, indent=1))


def _bundle(text: str) -> str:
    if text.count("/") != 2:
        raise ConfigurationError(f"{text!r} is not a bundle; `quire brokers show` lists them")
    return text


def _since(wall_ms: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(wall_ms / 1000)) if wall_ms else ""
