"""`quire tenants`: lists, shows, creates, changes and deletes tenants through a broker's REST interface."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from quire.cli.noun import Noun, tenant_argument
from quire.cli.output import Answer, done
from quire.runtime.errors import ConfigurationError
from quire.runtime.rest import Admin
from quire.wire import topic_name

TENANTS = "/admin/v2/tenants"


@click.group("tenants", cls=Noun)
def command() -> None:
    """List, show, create, change and delete tenants, which have namespaces, which have topics.

    \b
    Examples:
      quire tenants create shop
      quire tenants create bank --admin-roles alice,bob
      quire tenants update bank --admin-roles alice
      quire tenants list
      quire tenants delete shop
    """


def _path(tenant: str) -> str:
    return f"{TENANTS}/{topic_name.escaped(tenant)}"


def _options(run: Callable[..., Answer]) -> Callable[..., Answer]:
    roles = (
        "Roles that administer the tenant, separated by commas; they need a security file (docs/security.md)."
    )
    clusters = (
        "Clusters of the tenant, separated by commas; by default this one, the only one that there can be."
    )
    run = click.option("--allowed-clusters", metavar="CLUSTERS", help=clusters)(run)
    return click.option("--admin-roles", metavar="ROLES", help=roles)(run)


def _given(admin_roles: str | None, allowed_clusters: str | None) -> dict[str, list[str]]:
    """Return the JSON of the options that are given."""
    given = {"adminRoles": admin_roles, "allowedClusters": allowed_clusters}
    return {
        name: [one.strip() for one in text.split(",") if one.strip()]
        for name, text in given.items()
        if text is not None
    }


@command.verb("list")
def list_tenants(admin: Admin) -> Answer:
    """List the tenants.

    \b
    Example:
      quire tenants list
    """
    names = sorted(admin.get(TENANTS))
    return Answer(names, *names)


@command.verb("show")
@tenant_argument
def show(admin: Admin, tenant: str) -> Answer:
    """Show the admin roles, the allowed clusters and the namespaces of TENANT.

    \b
    Example:
      quire tenants show public
    """
    found: dict[str, Any] = admin.get(_path(tenant))
    found["namespaces"] = sorted(admin.get(f"/admin/v2/namespaces/{topic_name.escaped(tenant)}"))
    labels = {"adminRoles": "admin roles", "allowedClusters": "allowed clusters", "namespaces": "namespaces"}
    return Answer(found, {label: ", ".join(found[name]) for name, label in labels.items()})


@command.verb("create")
@tenant_argument
@_options
def create(admin: Admin, tenant: str, **options: str | None) -> Answer:
    """Create TENANT.

    \b
    Example:
      quire tenants create bank --admin-roles alice,bob
    """
    admin.put(_path(tenant), _given(**options))
    return done(f"created tenant {tenant}", tenant=tenant, created=True)


@command.verb("update")
@tenant_argument
@_options
def update(admin: Admin, tenant: str, **options: str | None) -> Answer:
    """Replace the admin roles or the allowed clusters of TENANT; an option that is not given changes nothing.

    \b
    Example:
      quire tenants update bank --admin-roles alice
    """
    given = _given(**options)
    if not given:
        raise ConfigurationError("give --admin-roles or --allowed-clusters")
    wanted = {**admin.get(_path(tenant)), **given}
    admin.post(_path(tenant), wanted)
    said = f"admin roles {', '.join(wanted['adminRoles']) or '(none)'}"
    return done(f"tenant {tenant}: {said}", tenant=tenant, **wanted)


@command.verb("delete")
@tenant_argument
def delete(admin: Admin, tenant: str) -> Answer:
    """Delete TENANT, which must have no namespaces.

    \b
    Example:
      quire tenants delete shop
    """
    admin.delete(_path(tenant))
    return done(f"deleted tenant {tenant}", tenant=tenant, deleted=True)
