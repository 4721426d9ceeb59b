"""`quire doctor`: check this machine, each process and the cluster, and suggest fixes."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import click

from quire.cli.cluster_checks import Looked, look_at_cluster, look_at_metadata, look_at_object_store
from quire.cli.connection_options import connection_options
from quire.cli.noun import admin_url_option, json_option
from quire.cli.output import Answer, Found
from quire.metadata.open import look_at
from quire.process.listeners import listen
from quire.runtime.credentials import Credentials
from quire.runtime.errors import ConfigurationError
from quire.runtime.findings import Finding, error
from quire.runtime.machine import Machine, Place
from quire.runtime.rest import Admin
from quire.runtime.tls import ClientTls
from quire.security import tls as inside_tls
from quire.security.configuration import Configuration
from quire.security.configuration import load as load_security

ASK_S = 40.0


@click.command("doctor")
@click.option("--machine", is_flag=True, help="Check only this machine, before processes run on it.")
@click.option(
    "--disk",
    "disks",
    multiple=True,
    metavar="DIR",
    help="Check this local directory, and the time that a sync takes there; may be repeated.",
)
@click.option(
    "--listen",
    "addresses",
    multiple=True,
    metavar="HOST:PORT",
    help="Check that a process can listen on this local address; may be repeated.",
)
@click.option(
    "--metadata", default="", metavar="URL", help="Check this metadata store, zk://HOST:PORT/CHROOT."
)
@click.option(
    "--archive",
    default="",
    metavar="URL",
    help="Check the operations of this object store, s3://BUCKET/PREFIX.",
)
@click.option(
    "--security",
    default="",
    metavar="FILE",
    help="Security file of the processes, with TLS and credentials for --metadata.",
)
@admin_url_option
@json_option
@connection_options
def command(
    machine: bool,
    disks: Sequence[str],
    addresses: Sequence[str],
    metadata: str,
    archive: str,
    security: str,
    admin_url: str,
    as_json: bool,
    tls: ClientTls,
    credentials: Credentials,
) -> None:
    """Check the cluster, and list problems with suggested fixes.

    A broker collects reports from all brokers and bookies, each of which checks its own machine. Exit code 0: no
    problem; 4: problems were found. docs/doctor.md lists the checks.

    \b
    Examples:
      quire doctor
      quire doctor --machine --disk /disk1/journal --disk /disk2/entries --listen 0.0.0.0:3181
      quire doctor --metadata zk://zookeeper:2181/quire --admin-url http://broker-1:8080
      quire doctor --archive s3://bucket/prefix
    """
    looked = Looked()
    places = tuple(Place("directory", each, is_synced=True) for each in disks)
    looked.add("this machine", Machine(places, is_bookie=bool(places)).findings())
    looked.add("this machine", _of_ports(addresses))
    if not machine:
        look_at_cluster(Admin(admin_url, ASK_S, tls=tls, credentials=credentials), looked)
    if metadata:
        look_at(metadata)
        asyncio.run(_look_at_metadata(metadata, looked, load_security(security)))
    if archive:
        asyncio.run(look_at_object_store(archive, looked))
    _answer(looked).say(as_json)


def _of_ports(addresses: Sequence[str]) -> Iterator[Finding]:
    for address in addresses:
        try:
            listen(address).close()
        except (ConfigurationError, OSError) as problem:
            yield error(
                str(problem),
                f"check which process listens there (ss -ltnp 'sport = :{address.rpartition(':')[2]}')",
            )


async def _look_at_metadata(url: str, looked: Looked, security: Configuration) -> None:
    inside = inside_tls.between_processes(security)
    await look_at_metadata(url, looked, inside.client.current if inside else None, security.metadata.login)


def _answer(looked: Looked) -> Answer:
    rows = looked.rows
    shown = [f"{row['level']:<8} {row['where']}: {row['what']}\n         {row['todo']}" for row in rows]
    notes = [f"not checked: {one}" for one in looked.not_at]
    at = list(dict.fromkeys(looked.at))
    value: dict[str, Any] = {"findings": rows, "lookedAt": at, "notLookedAt": looked.not_at}
    if not rows:
        shown = [f"no problems found: {', '.join(at)}"]
    return Answer(value, *shown, notes=notes, error=Found(_summary(rows)) if rows else None)


def _summary(rows: Sequence[dict[str, Any]]) -> str:
    counts = Counter(row["level"] for row in rows)
    said = [f"{count} {level}{'s' if count > 1 else ''}" for level, count in sorted(counts.items())]
    return f"{' and '.join(said)} found"
