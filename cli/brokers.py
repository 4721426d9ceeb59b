"""`quire brokers`: who is there, who owns what and why; and a bundle moved by hand."""

from __future__ import annotations

import time

import click

from quire.cli.http import admin_url_option, json_option
from quire.cli.output import print_json, print_rows
from quire.runtime.errors import ConfigurationError, NotFound
from quire.runtime.rest import Admin

BROKERS = "/quire/v1/brokers"


@click.group("brokers")
def command() -> None:
    """Who is there, who owns what and why; move a bundle.

    A bundle is a part of a namespace, TENANT/NAMESPACE/LOW_HIGH by the hashes of its topics' names; one broker owns it.

    \b
    Examples:
      quire brokers list
      quire brokers show
      quire brokers unload public/default/00000000_10000000
    """


@command.command("list")
@admin_url_option
@json_option
def list_brokers(admin_url: str, as_json: bool) -> None:
    """List the brokers with their bundles, topics and load (1: a message, or 1 KiB, a second).

    \b
    Example:
      quire brokers list
    """
    print_rows(
        Admin(admin_url).get(BROKERS),
        as_json,
        {"broker": "broker", "bundles": "bundles", "topics": "topics", "load": "load", "rest": "httpUrl"},
        right=("bundles", "topics", "load"),
    )


@command.command("show")
@click.argument("broker", required=False)
@admin_url_option
@json_option
def show(broker: str | None, admin_url: str, as_json: bool) -> None:
    """Show which bundles BROKER (or each) owns, since when and why.

    \b
    Example:
      quire brokers show broker-1:6650
    """
    admin = Admin(admin_url)
    if broker is not None and broker not in [row["broker"] for row in admin.get(BROKERS)]:
        raise NotFound(f"there is no broker {broker}; `quire brokers list` tells who is there")
    rows = [row for row in admin.get(f"{BROKERS}/bundles") if broker in (None, row["broker"])]
    print_rows(
        rows,
        as_json,
        {
            "bundle": "bundle",
            "broker": "broker",
            "topics": "topics",
            "load": "load",
            "since": lambda row: _since(row["sinceMs"]),
            "why": "why",
        },
        right=("topics", "load"),
    )


@command.command("unload")
@click.argument("bundle")
@admin_url_option
@json_option
def unload(bundle: str, admin_url: str, as_json: bool) -> None:
    """Close BUNDLE's topics on their broker; the least loaded one takes it at the next lookup.

    \b
    Example:
      quire brokers unload public/default/00000000_10000000
    """
    if bundle.count("/") != 2:
        raise ConfigurationError(f"{bundle!r} is no bundle; `quire brokers show` lists them")
    Admin(admin_url).put(f"{BROKERS}/bundles/{bundle}/unload")
    print_json({"bundle": bundle, "unloaded": True}) if as_json else click.echo(f"bundle {bundle}, unloaded")


def _since(wall_ms: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(wall_ms / 1000)) if wall_ms else ""
