"""Command groups `quire NOUN VERB` that use a broker's REST interface.

    @click.group("topics", cls=Noun)
    def command() -> None:
        "Help text of `quire topics`."

    @command.verb("lookup")
    @topic_argument
    def lookup(admin: Admin, topic: str) -> Answer:
        "Print the broker that serves TOPIC."

A verb is a function that gets an `Admin` (the client of the REST interface) and the command's arguments, and returns an
`Answer`. `Noun.verb` adds `--admin-url`, `--json` and the options for TLS and credentials, creates the `Admin`, and
prints the answer.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any
from urllib.parse import quote

import click

from quire.cli import profile
from quire.cli.connection_options import connection_options, take_connection
from quire.cli.output import Answer
from quire.cli.progress import patience
from quire.runtime.credentials import Credentials
from quire.runtime.errors import ConfigurationError, QuireError
from quire.runtime.rest import DEFAULT_URL, Admin
from quire.runtime.tls import ClientTls
from quire.wire import topic_name

COMPLETION_S = 1.0
LAST = ("admin_url", "as_json", "of_context", "tls_", "present_")
"""Prefixes of the names of options that all verbs have; `--help` shows these options last."""


def _default_url() -> str:
    return profile.default("QUIRE_ADMIN_URL", "admin_url") or DEFAULT_URL


def _ask_to_complete(context: click.Context, path: str) -> list[Any]:
    """Return a list from a broker, for the shell's completion; empty if no broker answers soon."""
    words = {**context.params, "admin_url": context.params.get("admin_url") or _default_url()}
    try:
        tls, credentials = take_connection(words)
        found = Admin(words["admin_url"], COMPLETION_S, tls=tls, credentials=credentials).get(path)
    except QuireError:
        return []
    return found if isinstance(found, list) else []


def _complete_topics(context: click.Context, _: click.Parameter, begin: str) -> list[str]:
    """Complete topic names for the shell, in public/default or the namespace typed so far (tenant/namespace/…)."""
    domain, separator, rest = begin.rpartition("://")
    namespace, slash, _begin = rest.rpartition("/")
    path = f"/admin/v2/{quote(domain or 'persistent')}/{quote(namespace or 'public/default')}"
    names = _ask_to_complete(context, path)
    found = (f"{domain}{separator}{namespace}{slash}{name.rpartition('/')[2]}" for name in names)
    return sorted(name for name in found if name.startswith(begin))


def complete_tenants(context: click.Context, _: click.Parameter, begin: str) -> list[str]:
    return sorted(name for name in _ask_to_complete(context, "/admin/v2/tenants") if name.startswith(begin))


def _complete_namespaces(context: click.Context, _: click.Parameter, begin: str) -> list[str]:
    names = [row["namespace"] for row in _ask_to_complete(context, "/quire/v1/namespaces")]
    return sorted(name for name in names if name.startswith(begin))


def _complete_places(context: click.Context, parameter: click.Parameter, begin: str) -> list[str]:
    """Complete a namespace, or a topic by its full name."""
    domain, separator, rest = begin.partition("://")
    if not separator:
        return _complete_namespaces(context, parameter, begin)
    if rest.count("/") == 2:
        return _complete_topics(context, parameter, begin)
    return [f"{domain}://{name}/" for name in _complete_namespaces(context, parameter, rest)]


topic_argument = click.argument("topic", shell_complete=_complete_topics)
tenant_argument = click.argument("tenant", shell_complete=complete_tenants)
namespace_argument = click.argument("namespace", shell_complete=_complete_namespaces)
where_argument = click.argument("where", shell_complete=_complete_places)
"""Argument for `place_path`: a namespace or a topic by its full name."""

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
admin_url_option = click.option(
    "--admin-url",
    default=_default_url,
    show_default=False,
    metavar="URL",
    help="HTTP address of a broker (environment: QUIRE_ADMIN_URL).  [http://127.0.0.1:8080]",
)


def namespace_path(namespace: str) -> str:
    """Return the REST path of a namespace, `tenant/namespace`. Raises `ConfigurationError`."""
    if namespace.count("/") != 1 or not all(namespace.split("/")):
        raise ConfigurationError(f"{namespace!r} is not a namespace, such as public/default")
    return place_path(namespace)


def place_path(where: str) -> str:
    """Return the REST path of a namespace, `tenant/namespace`, or of a topic (full name).

    Raises `ConfigurationError`.
    """
    if "://" in where:
        return f"/admin/v2/{topic_name.path(where)}"
    tenant, _, namespace = where.partition("/")
    if not tenant or not namespace or "/" in namespace:
        raise ConfigurationError(
            f"{where!r} is neither a namespace, tenant/namespace, nor a topic, persistent://tenant/namespace/name"
        )
    return f"/admin/v2/namespaces/{topic_name.escaped(tenant, namespace)}"


def topic_path(topic: str, subscription: str | None = None) -> str:
    """Return the REST path of a topic, or of its subscription. Raises `ConfigurationError`."""
    path = f"/admin/v2/{topic_name.path(topic)}"
    if subscription is None:
        return path
    if not subscription:
        raise ConfigurationError("the name of the subscription is empty")
    return f"{path}/subscription/{topic_name.escaped_subscription(subscription)}"


def partitions_of(admin: Admin, topic: str) -> int:
    """Return the number of partitions; 0 if the topic is not partitioned. Raises `NotFound`."""
    return int(admin.get(f"{topic_path(topic)}/partitions").get("partitions", 0))


def parts_of(admin: Admin, topic: str) -> list[str]:
    """Return the names of the topic's partitions, or the topic itself if it is not partitioned."""
    count = partitions_of(admin, topic)
    return [f"{topic}-partition-{number}" for number in range(count)] or [topic]


class Noun(click.Group):
    def include(self, *others: click.Group) -> None:
        """Add the verbs of groups that are in files of their own."""
        for other in others:
            for name, verb in other.commands.items():
                self.add_command(verb, name)

    def verb(self, name: str, *, timeout_s: float = 60.0) -> Callable[[Callable[..., Answer]], click.Command]:
        """Make a command of a function that returns an `Answer`. `timeout_s` is the timeout of each REST request."""

        def decorate(ask: Callable[..., Answer]) -> click.Command:
            @admin_url_option
            @json_option
            @connection_options
            @wraps(ask)
            def run(
                admin_url: str, as_json: bool, tls: ClientTls, credentials: Credentials, **words: Any
            ) -> None:
                admin = Admin(admin_url, timeout_s, tls=tls, credentials=credentials, meanwhile=patience)
                ask(admin, **words).say(as_json)

            made = self.command(name)(run)
            # --help shows the verb's own options first
            made.params.sort(key=lambda one: (one.name or "").startswith(LAST))
            return made

        return decorate


def wants_json() -> bool:
    """Return whether the running verb got `--json`."""
    return bool(click.get_current_context().params["as_json"])
