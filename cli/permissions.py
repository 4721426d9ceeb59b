"""`quire permissions`: grants, revokes and explains the permissions of roles through a broker's REST interface."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote, urlencode

import click

from quire.cli.noun import Noun, place_path, where_argument
from quire.cli.output import Answer, Column, done, table_of
from quire.runtime.rest import Admin
from quire.wire import topic_name


@click.group("permissions", cls=Noun)
def command() -> None:
    """Grant and revoke permissions of roles, and show why an action is allowed or not.

    WHERE is a namespace (tenant/namespace) or a topic, by its full name (persistent://tenant/namespace/name). ROLE may
    begin or end with *, which stands for any characters.

    \b
    Examples:
      quire permissions grant app public/default produce consume
      quire permissions grant 'team-*' persistent://public/default/orders consume
      quire permissions list public/default
      quire permissions explain app persistent://public/default/orders
      quire permissions revoke app public/default
    """


def _path(where: str) -> str:
    return f"{place_path(where)}/permissions"


@command.verb("grant")
@click.argument("role")
@where_argument
@click.argument("permissions", nargs=-1, required=True)
def grant(admin: Admin, role: str, where: str, permissions: tuple[str, ...]) -> Answer:
    """Grant PERMISSIONS (produce, consume) at WHERE to ROLE, replacing its earlier ones there.

    \b
    Examples:
      quire permissions grant app public/default produce consume
      quire permissions grant 'team-*' persistent://public/default/orders consume
    """
    admin.post(f"{_path(where)}/{quote(role, safe='')}", list(permissions))
    return done(f"{role} may {' and '.join(permissions)} at {where}", role=role, where=where)


@command.verb("revoke")
@click.argument("role")
@where_argument
def revoke(admin: Admin, role: str, where: str) -> Answer:
    """Revoke the permissions of ROLE at WHERE; its producers and consumers are closed within seconds.

    \b
    Example:
      quire permissions revoke app public/default
    """
    admin.delete(f"{_path(where)}/{quote(role, safe='')}")
    return done(f"revoked what {role} may at {where}", role=role, where=where)


@command.verb("list")
@where_argument
def list_permissions(admin: Admin, where: str) -> Answer:
    """List the permissions at WHERE; for a topic, with those of its namespace.

    \b
    Example:
      quire permissions list persistent://public/default/orders
    """
    found: dict[str, list[str]] = admin.get(_path(where)) or {}
    columns: dict[str, Column] = {"role": "role", "may": lambda row: ", ".join(row["may"])}
    return Answer(found, table_of([{"role": role, "may": may} for role, may in found.items()], columns))


@command.verb("explain")
@click.argument("role")
@click.argument("topic")
@click.option("--subscription", default="", help="Check consuming from this subscription.")
def explain(admin: Admin, role: str, topic: str, subscription: str) -> Answer:
    """Show which actions on TOPIC are allowed to ROLE and why, or which permission is missing.

    \b
    Examples:
      quire permissions explain app persistent://public/default/orders
      quire permissions explain app orders --subscription audit
    """
    path = f"/quire/v1/topics/{topic_name.path(topic)}/permissions/{quote(role, safe='')}"
    found: dict[str, Any] = admin.get(f"{path}?{urlencode({'subscription': subscription})}")
    rows = [{"to": name, **found[name]} for name in ("produce", "consume", "lookup", "administer")]
    if not found.get("authorization", True):
        return Answer(found, f"{role} may do everything on {topic}: {rows[0]['why']}")
    columns: dict[str, Column] = {
        "to": "to",
        "allowed": lambda row: "yes" if row["allowed"] else "no",
        "why": "why",
    }
    return Answer(found, table_of(rows, columns))
