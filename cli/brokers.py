"""`quire brokers`: lists brokers and bundles, unloads or splits a bundle, and changes settings of running brokers."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from difflib import get_close_matches
from urllib.parse import quote

import click

from quire.cli.noun import Noun
from quire.cli.output import Answer, Column, done, fields, table_of
from quire.runtime.errors import ConfigurationError, NotFound
from quire.runtime.rest import Admin
from quire.wire import topic_name

BROKERS = "/quire/v1/brokers"
HEALTH = "/admin/v2/brokers/health"
CONFIGURATION = "/admin/v2/brokers/configuration"
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
      quire brokers healthcheck
      quire brokers config list
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


@command.verb("healthcheck")
def healthcheck(admin: Admin) -> Answer:
    """Print ok if the broker at --admin-url is ready, otherwise the reason. Exit code 4: it is not ready.

    \b
    Examples:
      quire brokers healthcheck
      quire brokers healthcheck --admin-url http://broker-2:8080
    """
    _, body = admin.get_raw(HEALTH)
    return Answer({"url": admin.url, "healthy": True}, body.decode(errors="replace").strip())


# -- dynamic settings ----------------------------------------------------------------------------------------


@click.group("config", cls=Noun)
def config() -> None:
    """Show and change settings that all running brokers follow, without a restart.

    They are in the metadata store, and override each broker's own settings. `quire config show` has the settings that
    are read at a start.

    \b
    Examples:
      quire brokers config list
      quire brokers config set retention_ms 7d
      quire brokers config remove retention_ms
    """


command.add_command(config)


@config.verb("list")
@click.option("--runtime", is_flag=True, help="List all settings of the broker that answers, instead.")
def list_config(admin: Admin, runtime: bool) -> Answer:
    """List the settings that can be changed: the value that the broker at --admin-url uses, and the one that is set.

    \b
    Examples:
      quire brokers config list
      quire brokers config list --runtime
    """
    used = admin.get(f"{CONFIGURATION}/runtime")
    if runtime:
        return fields(used)
    values = admin.get(f"{CONFIGURATION}/values")
    rows = [_setting(name, used, values) for name in sorted({*admin.get(CONFIGURATION), *values})]
    columns: dict[str, Column] = {
        "setting": "setting",
        "value": "value",
        "set for all brokers": lambda row: "" if row["set"] is None else row["set"],
    }
    notes = [] if rows else ["no setting can be changed while these brokers run"]
    return Answer(rows, *([table_of(rows, columns)] if rows else []), notes=notes)


def _setting(name: str, used: Mapping[str, str], values: Mapping[str, str]) -> dict[str, str | None]:
    return {"setting": name, "value": used.get(name, ""), "set": values.get(name)}


@config.verb("get")
@click.argument("name")
def get_config(admin: Admin, name: str) -> Answer:
    """Print the value of NAME that the broker at --admin-url uses, and whether it is set for all brokers.

    \b
    Example:
      quire brokers config get retention_ms
    """
    values = admin.get(f"{CONFIGURATION}/values")
    names = sorted({*admin.get(CONFIGURATION), *values})
    if name not in names:
        close = get_close_matches(name, names, n=1)
        hint = f"did you mean {close[0]}?" if close else "`quire brokers config list` prints the settings"
        raise NotFound(f"{name} is not a setting that can be changed while brokers run: {hint}")
    found = _setting(name, admin.get(f"{CONFIGURATION}/runtime"), values)
    notes = (
        [] if found["set"] is not None else [f"{name} is not set for all brokers; this broker's own value"]
    )
    return Answer(found, str(found["value"]), notes=notes)


@config.verb("set")
@click.argument("name")
@click.argument("value")
def set_config(admin: Admin, name: str, value: str) -> Answer:
    """Set NAME to VALUE for all brokers.

    \b
    Example:
      quire brokers config set retention_ms 7d
    """
    admin.post(f"{CONFIGURATION}/{topic_name.escaped(name, value)}")
    return done(f"{name} is {value} for all brokers", setting=name, value=value)


@config.verb("remove")
@click.argument("name")
def remove_config(admin: Admin, name: str) -> Answer:
    """Remove the value of NAME: brokers use their own settings again.

    \b
    Example:
      quire brokers config remove retention_ms
    """
    admin.delete(f"{CONFIGURATION}/{topic_name.escaped(name)}")
    return done(f"{name} is not set any more", setting=name, removed=True)


def _bundle(text: str) -> str:
    if text.count("/") != 2:
        raise ConfigurationError(f"{text!r} is not a bundle; `quire brokers show` lists them")
    return text


def _since(wall_ms: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(wall_ms / 1000)) if wall_ms else ""
