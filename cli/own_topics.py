"""Topics that a command creates for its own messages, and deletes when it ends."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from typing import Final
from urllib.parse import urlsplit

import click

from quire.cli import profile
from quire.runtime.credentials import Credentials
from quire.runtime.errors import NotFound, QuireError, Unavailable
from quire.runtime.rest import PORT, TLS_PORT, Admin
from quire.runtime.settings import format_address
from quire.runtime.tls import ClientTls
from quire.wire import topic_name

DELETE_S: Final = 10.0
"""Timeout of each request in seconds."""

PAUSE_S: Final = 0.5
_LEARN_S: Final = 2.0
_OWNER_S: Final = 30.0
"""Seconds to wait for the next owner of a topic: longer than the session of a killed broker."""

admin_url_option = click.option(
    "--admin-url",
    default=lambda: None if profile.is_named() else os.environ.get("QUIRE_ADMIN_URL"),
    show_default=False,
    metavar="URL",
    help="HTTP address of a broker, to create partitions and delete the topics (environment: QUIRE_ADMIN_URL).  "
    f"[port {PORT} of the host of --service-url]",
)


def beside(service_url: str) -> list[str]:
    """Return the default HTTP URLs on the hosts of `service_url`."""
    scheme, _, hosts = service_url.partition("://")
    names = [urlsplit(f"//{each}").hostname or "" for each in hosts.split(",")]
    if scheme == "pulsar+ssl":
        return [f"https://{format_address(host, TLS_PORT)}" for host in dict.fromkeys(names)]
    return [f"http://{format_address(host, PORT)}" for host in dict.fromkeys(names)]


class Brokers:
    """Brokers that can change topics: those at the given addresses, and others of the cluster that they name.

    The others are learned before the run, because a run may kill the brokers at the given addresses.
    """

    def __init__(self, given: Sequence[Admin]) -> None:
        self._every = list(given)
        self.given = [admin.url for admin in given]
        answered = [self._learn(admin) for admin in given]
        self._is_known = any(answered)
        self._deadline: float | None = None

    def _learn(self, admin: Admin) -> bool:
        """Add the addresses of the broker's cluster; return whether the broker answers."""
        asked = Admin(admin.url, _LEARN_S, tls=admin.tls, credentials=admin.credentials)
        try:
            rows = asked.get("/quire/v1/brokers")
        except Unavailable:
            return False
        except QuireError:
            return True  # only superusers may list the brokers
        key = "httpUrlTls" if admin.url.startswith("https://") else "httpUrl"
        known = {each.url for each in self._every}
        rows = rows if isinstance(rows, list) else []  # the guessed address may be another program's
        for url in {str(row.get(key) or "") for row in rows if isinstance(row, dict)} - known - {""}:
            self._every.append(Admin(url, DELETE_S, tls=admin.tls, credentials=admin.credentials))
        return True

    def create_partitioned(self, topic: str, partitions: int) -> None:
        """Create a partitioned topic at the first broker. Raises `QuireError`."""
        self._every[0].put(f"/admin/v2/{topic_name.path(topic)}/partitions", partitions)

    def delete(self, path: str) -> None:
        """Delete at any broker. Wait for a topic's next owner if the last one was killed. Raises `QuireError`."""
        was_tried = False
        while True:
            for admin in list(self._every):
                try:
                    admin.delete(path)
                    return
                except NotFound:
                    if was_tried:
                        return  # the answer to an earlier request was lost
                    raise
                except Unavailable as error:
                    was_tried, last = True, error
                    self._every.append(self._every.pop(0))  # a broker that answers stays the first
            if not self._may_wait():
                raise last
            time.sleep(PAUSE_S)

    def _may_wait(self) -> bool:
        """Return whether to wait longer for an owner; no if no broker answered before the run."""
        if self._deadline is None:
            self._deadline = time.monotonic() + (_OWNER_S if self._is_known else 0.0)
            if self._is_known:
                click.echo("waiting for a broker that can delete the topics", err=True)
        return time.monotonic() < self._deadline


class OwnTopics:
    """Topics of one run of a command, with `partitions` each, or not partitioned if that is 0."""

    def __init__(
        self,
        names: Iterable[str],
        service_url: str,
        admin_url: str | None,
        tls: ClientTls,
        credentials: Credentials,
        partitions: int = 0,
    ) -> None:
        self.names = list(names)
        self._partitions = partitions
        admin_url = admin_url or _of_context(service_url)
        self._is_guessed = admin_url is None
        urls = beside(service_url) if admin_url is None else [admin_url]
        self._brokers = Brokers([Admin(url, DELETE_S, tls=tls, credentials=credentials) for url in urls])

    def create_partitioned(self) -> None:
        """Create the topics if they are partitioned; a broker creates others when they are used."""
        if self._partitions:
            for name in self.names:
                self._brokers.create_partitioned(name, self._partitions)

    def delete(self, *, may_be_missing: bool = False) -> list[str]:
        """Delete the topics; return the names of those that could not be deleted, for example without brokers.

        With `may_be_missing`, a topic that was not created before the command failed counts as deleted.
        """
        of, kept = "/partitions" if self._partitions else "", []
        for name in self.names:
            try:
                self._brokers.delete(f"/admin/v2/{topic_name.path(name)}{of}?force=true")
            except QuireError as error:
                if not (may_be_missing and isinstance(error, NotFound)):
                    click.echo(f"cannot delete {name}: {error}", err=True)
                    kept.append(name)
        if kept and self._is_guessed:
            click.echo(
                f"the requests were sent to {self._brokers.given[0]}; if the brokers' HTTP address differs, set "
                "--admin-url",
                err=True,
            )
        return kept


def _of_context(service_url: str) -> str | None:
    """Return the HTTP address of the context of `quire login`, if `service_url` is its own."""
    known = profile.load()
    return known.get("admin_url") if known.get("service_url") == service_url else None
