"""`quire namespaces`: lists, shows, creates, unloads and deletes namespaces through a broker's REST interface."""

from __future__ import annotations

from contextlib import suppress
from itertools import pairwise
from typing import Any, Final

import click

from quire.cli.noun import Noun, complete_tenants, namespace_argument, namespace_path
from quire.cli.output import Answer, Column, done, table_of
from quire.runtime.errors import NotFound
from quire.runtime.rest import Admin
from quire.wire import topic_name

BUNDLES_MAX: Final = 4096
DOMAINS: Final = ("persistent", "non-persistent")
FORCED_ATTEMPTS: Final = 5
"""Number of times that `delete --force` deletes topics, which connected clients may create again meanwhile."""


@click.group("namespaces", cls=Noun)
def command() -> None:
    """List, show, create and delete namespaces; unload their topics and clear their backlogs.

    NAMESPACE is tenant/namespace. `quire policies` shows and sets its policies, `quire permissions` its permissions.

    \b
    Examples:
      quire namespaces list public
      quire namespaces create public/orders --bundles 16
      quire namespaces topics public/orders
      quire namespaces clear-backlog public/orders --subscription audit
      quire namespaces delete public/orders --force
    """


@command.verb("list")
@click.argument("tenant", required=False, shell_complete=complete_tenants)
def list_namespaces(admin: Admin, tenant: str | None) -> Answer:
    """List the namespaces of TENANT, or all whose topics you may list.

    \b
    Examples:
      quire namespaces list
      quire namespaces list public
    """
    if tenant is None:
        names = [row["namespace"] for row in admin.get("/quire/v1/namespaces")]
    else:
        names = admin.get(f"/admin/v2/namespaces/{topic_name.escaped(tenant)}")
    return Answer(sorted(names), *sorted(names))


@command.verb("show")
@namespace_argument
def show(admin: Admin, namespace: str) -> Answer:
    """Show the bundles, the permissions and the names of the policies of NAMESPACE.

    \b
    Example:
      quire namespaces show public/default
    """
    path = namespace_path(namespace)
    found: dict[str, Any] = admin.get(path)
    own = admin.get(f"{path.replace('/admin/v2/', '/quire/v1/')}/policies")["prescribed"]
    names = ", ".join(sorted(name for name, value in own.items() if value is not None))
    granted = found.get("auth_policies", {}).get("namespace_auth", {})
    roles = "; ".join(f"{role}: {', '.join(actions)}" for role, actions in sorted(granted.items()))
    shown = {
        "bundles": found["bundles"]["numBundles"],
        "own policies": f"{names} (`quire policies get {namespace}`)" if names else "none",
        "permissions": roles or "none",
    }
    return Answer(found, shown)


@command.verb("create")
@click.argument("namespace")
@click.option(
    "--bundles",
    type=click.IntRange(1, BUNDLES_MAX),
    help="Number of bundles; by default the brokers' setting.",
)
def create(admin: Admin, namespace: str, bundles: int | None) -> Answer:
    """Create NAMESPACE, in an existing tenant.

    \b
    Example:
      quire namespaces create public/orders --bundles 16
    """
    admin.put(namespace_path(namespace), None if bundles is None else {"bundles": {"numBundles": bundles}})
    return done(f"created namespace {namespace}", namespace=namespace, created=True)


@command.verb("delete")
@namespace_argument
@click.option("--force", is_flag=True, help="Delete its topics first, with their messages and subscriptions.")
def delete(admin: Admin, namespace: str, force: bool) -> Answer:
    """Delete NAMESPACE, which must have no topics, unless --force is given.

    \b
    Example:
      quire namespaces delete public/orders --force
    """
    path, deleted = namespace_path(namespace), 0
    if force:
        deleted = _delete_topics(admin, namespace)
    admin.delete(path)
    said = f"deleted namespace {namespace}" + (f" with {_of_topics(deleted)}" if force else "")
    return done(said, namespace=namespace, deleted=True, topics=deleted)


def _of_topics(count: int) -> str:
    return "1 topic" if count == 1 else f"{count} topics"


def _delete_topics(admin: Admin, namespace: str) -> int:
    """Delete all topics until no client creates any again. Return their number."""
    deleted = 0
    for _ in range(FORCED_ATTEMPTS):
        found = [one for domain in DOMAINS for one in _topics(admin, namespace, domain).items()]
        for name, is_partitioned in found:
            suffix = "/partitions" if is_partitioned else ""
            with suppress(NotFound):  # another client deleted it
                admin.delete(f"/admin/v2/{topic_name.path(name)}{suffix}?force=true")
                deleted += 1
        if not found:
            break
    return deleted


def _topics(admin: Admin, namespace: str, domain: str) -> dict[str, bool]:
    """Return the topics of a domain by name, and whether each is partitioned; partitions of those are omitted."""
    path = f"/admin/v2/{domain}/{topic_name.escaped(*namespace.split('/'))}"
    partitioned = dict.fromkeys(admin.get(f"{path}/partitioned"), True)
    every = ((name, name.rpartition("-partition-")[0]) for name in admin.get(path))
    single = {name: False for name, parent in every if parent not in partitioned}
    return dict(sorted((single | partitioned).items()))


@command.verb("topics")
@namespace_argument
@click.option(
    "--domain",
    type=click.Choice([*DOMAINS, "all"]),
    default="persistent",
    show_default=True,
    help="List persistent topics, those that keep nothing, or all.",
)
@click.option("--partitions", is_flag=True, help="List each partition instead of the partitioned topics.")
def topics(admin: Admin, namespace: str, domain: str, partitions: bool) -> Answer:
    """List the topics of NAMESPACE, a partitioned one once.

    \b
    Examples:
      quire namespaces topics public/default
      quire namespaces topics public/default --domain all --partitions
    """
    path = namespace_path(namespace)
    if partitions:
        names = admin.get(f"{path}/topics?mode={domain.upper().replace('-', '_')}")
    else:
        chosen = DOMAINS if domain == "all" else (domain,)
        names = [name for one in chosen for name in _topics(admin, namespace, one)]
    return Answer(names, *names)


@command.verb("subscriptions")
@namespace_argument
def subscriptions(admin: Admin, namespace: str) -> Answer:
    """List the durable subscriptions of the topics in NAMESPACE, each with its topics.

    \b
    Example:
      quire namespaces subscriptions public/default
    """
    namespace_path(namespace)
    found: dict[str, list[str]] = {}
    for topic in _topics(admin, namespace, "persistent"):
        with suppress(NotFound):  # another client deleted the topic
            for name in admin.get(f"/admin/v2/{topic_name.path(topic)}/subscriptions"):
                found.setdefault(name, []).append(topic)
    rows = [
        {"subscription": name, "topics": len(its), "first": its[0]} for name, its in sorted(found.items())
    ]
    columns: dict[str, Column] = {"subscription": "subscription", "topics": "topics", "first topic": "first"}
    return Answer(found, table_of(rows, columns, right=("topics",)))


@command.verb("unsubscribe")
@namespace_argument
@click.argument("subscription")
def unsubscribe(admin: Admin, namespace: str, subscription: str) -> Answer:
    """Delete SUBSCRIPTION of all topics in NAMESPACE; it must have no consumers.

    \b
    Example:
      quire namespaces unsubscribe public/default audit
    """
    admin.post(f"{namespace_path(namespace)}/unsubscribe/{topic_name.escaped(subscription)}")
    said = f"deleted {subscription} of all topics in {namespace}"
    return done(said, namespace=namespace, subscription=subscription, deleted=True)


@command.verb("clear-backlog")
@namespace_argument
@click.option("--subscription", metavar="NAME", help="Only this subscription; by default all.")
def clear_backlog(admin: Admin, namespace: str, subscription: str | None) -> Answer:
    """Acknowledge all messages of the topics in NAMESPACE without reading them, in all subscriptions or one.

    \b
    Examples:
      quire namespaces clear-backlog public/default --subscription audit
      quire namespaces clear-backlog public/default
    """
    suffix = "" if subscription is None else f"/{topic_name.escaped(subscription)}"
    admin.post(f"{namespace_path(namespace)}/clearBacklog{suffix}")
    said = f"{namespace}: {subscription or 'all subscriptions'} skipped all messages"
    return done(said, namespace=namespace, subscription=subscription, cleared=True)


@command.verb("bundles")
@namespace_argument
def bundles(admin: Admin, namespace: str) -> Answer:
    """List the bundles of NAMESPACE; `quire brokers show` shows their brokers.

    \b
    Example:
      quire namespaces bundles public/default
    """
    found = admin.get(f"{namespace_path(namespace)}/bundles")
    edges = [edge.removeprefix("0x") for edge in found["boundaries"]]
    return Answer(found, *(f"{namespace}/{low}_{high}" for low, high in pairwise(edges)))


@command.verb("unload")
@namespace_argument
def unload(admin: Admin, namespace: str) -> Answer:
    """Unload all topics of NAMESPACE from their brokers; clients look them up again.

    `quire brokers unload` unloads one bundle.

    \b
    Example:
      quire namespaces unload public/default
    """
    admin.put(f"{namespace_path(namespace)}/unload")
    return done(f"unloaded {namespace}", namespace=namespace, unloaded=True)
