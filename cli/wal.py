"""`quire wal`: lists, verifies, scrubs and closes the write-ahead logs on object storage.

These commands read the metadata store and the object store directly, which requires the credentials of both stores. So
they also work when no broker runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import wraps
from typing import Any

import click
import msgspec

from quire.cli.noun import json_option
from quire.cli.output import Answer, Found, Table, size
from quire.identity.place import Place
from quire.identity.stores import StoreRole
from quire.metadata.cluster import find_cluster
from quire.metadata.open import open_store
from quire.objects.open import open_for_log
from quire.runtime.clock import SystemClock, iso_time
from quire.runtime.errors import ConfigurationError, NotFound, WrongCluster
from quire.wal import scrub as scrubbing
from quire.wal.context import WalContext
from quire.wal.run_reader import run_cache
from quire.wal.settings import WalSettings

CACHE_BYTES = 1 << 20


@click.group("wal")
def command() -> None:
    """List and verify write-ahead logs on object storage.

    \b
    Examples:
      quire wal list --metadata zk://zookeeper:2181/quire --wal s3://bucket/prefix
      quire wal verify --metadata zk://zookeeper:2181/quire --wal s3://bucket/prefix
    """


Work = Callable[..., Awaitable[Answer]]


def _verb(name: str) -> Callable[[Work], click.Command]:
    """Return a decorator that makes a command of a function, which gets the stores and returns an answer."""

    def decorate(work: Work) -> click.Command:
        @wraps(work)
        def run(metadata: str, wal: str, as_json: bool, **words: Any) -> None:
            async def with_stores() -> Answer:
                async with _stores(metadata, wal) as context:
                    return await work(context, **words)

            answer = asyncio.run(with_stores())
            answer.say(as_json=as_json)
            if answer.error is not None:
                raise answer.error

        for option in (
            json_option,
            click.option(
                "--wal",
                required=True,
                envvar="QUIRE_WAL",
                help="Object store of the brokers' write-ahead logs.",
            ),
            click.option(
                "--metadata", required=True, envvar="QUIRE_METADATA", help="Metadata store of the cluster."
            ),
        ):
            run = option(run)
        return command.command(name)(run)

    return decorate


@asynccontextmanager
async def _stores(metadata_url: str, wal_url: str) -> AsyncIterator[WalContext]:
    settings = WalSettings(wal=wal_url)
    metadata, objects = await open_store(metadata_url, create=False), open_for_log(wal_url, settings.threads)
    try:
        cluster = (await find_cluster(metadata, metadata_url)).uuid
        place = Place(metadata, objects, cluster, StoreRole.LOGS)
        yield WalContext(place, run_cache(CACHE_BYTES), SystemClock(), settings, "quire wal")
    finally:
        await objects.close()
        await metadata.close()


@_verb("list")
async def list_(context: WalContext) -> Answer:
    """List all write-ahead logs, oldest first, and logs that are missing in the object store at --wal.

    \b
    Example:
      quire wal list --metadata zk://zookeeper:2181/quire --wal s3://bucket/prefix
    """
    found = await scrubbing.records(context.metadata)
    wrong = await scrubbing.misplaced(context, found)
    rows = [
        (each.uuid, each.broker, each.state.value, each.trim_seq, each.end_seq, iso_time(each.created_ms))
        for each in found
    ]
    columns = ("wal", "broker", "state", "in sets below", "end", "begun")
    shown = [msgspec.to_builtins(each) for each in found]
    return Answer(shown, Table(columns, rows, right=columns[3:5]), notes=wrong)


@_verb("show")
@click.argument("uuid")
async def show(context: WalContext, uuid: str) -> Answer:
    """Print the record of the log UUID (or a unique beginning of one), and the process that closed it.

    \b
    Example:
      quire wal show 5f0c --metadata zk://zookeeper:2181/quire --wal s3://bucket/prefix
    """
    record = await _one(context, uuid)
    shown = msgspec.to_builtins(record) | {"closed_by": await scrubbing.closer_of(context.objects, record)}
    return Answer(shown, shown)


@_verb("verify")
@click.argument("uuid", default="")
async def verify(context: WalContext, uuid: str) -> Answer:
    """Read the log UUID, or all logs, and verify all checksums. Exit code 4 if there is damage.

    \b
    Example:
      quire wal verify --metadata zk://zookeeper:2181/quire --wal s3://bucket/prefix
    """
    found = [await scrubbing.verify(context, each.uuid) for each in await _chosen(context, uuid)]
    rows = [(each.uuid, each.ledgers, each.sets, each.data_objects, size(each.bytes)) for each in found]
    damage = [what for each in found for what in each.damage]
    columns = ("wal", "ledgers", "sets", "data objects", "bytes")
    return Answer(
        [vars(each) for each in found],
        Table(columns, rows, right=columns[1:]),
        *damage,
        error=Found(f"{len(damage)} objects are damaged or missing") if damage else None,
    )


@_verb("scrub")
@click.option("--delete", is_flag=True, help="Delete the listed objects.")
async def scrub(context: WalContext, delete: bool) -> Answer:
    """List objects older than an hour that no log needs; crashes and late uploads leave them.

    With --delete they are deleted, and only if the metadata are proven complete and current, and both stores to be the
    cluster's. Objects of a log whose record is missing, or older than the log, are kept, and the reason is shown.

    \b
    Example:
      quire wal scrub --metadata zk://zookeeper:2181/quire --wal s3://bucket/prefix
    """
    now_ms = context.clock.now_ms()
    found = await scrubbing.strays(context, now_ms, context.objects.delete if delete else None)
    rows = [(info.name, size(info.bytes), iso_time(info.modified_ms)) for info in found.deletable]
    return Answer(
        [info._asdict() for info in found.deletable],
        Table(("object", "bytes", "written"), rows, right=("bytes",)),
        f"{len(rows)} objects {'were deleted' if delete else 'that no log needs'}",
        notes=[f"kept: {why}" for why in found.kept.values()],
        error=WrongCluster(found.unproven) if found.unproven else None,
    )


@_verb("close")
@click.argument("uuid")
@click.option("--accept-loss", is_flag=True, help="Continue after data objects that are damaged or missing.")
@click.option("--force", is_flag=True, help="Close the log even if its broker is writing to it.")
async def close(context: WalContext, uuid: str, accept_loss: bool, force: bool) -> Answer:
    """Close the log UUID of a broker that has ended. Brokers close logs automatically, but stop at damage.

    With --accept-loss the blocks in damaged objects are given up, even in a closed log. That cannot be undone. The
    command refuses while the log's broker is alive, and while the metadata are older than a copy of them.

    \b
    Example:
      quire wal close 5f0c --metadata zk://zookeeper:2181/quire --wal s3://bucket/prefix
    """
    chosen = await _one(context, uuid)
    record = await scrubbing.close(context, chosen.uuid, accept_loss=accept_loss, even_written=force)
    given_up = [f"given up: object {seq}" for seq in record.lost]
    return Answer(
        msgspec.to_builtins(record), f"{record.uuid} ends before object {record.end_seq}", *given_up
    )


async def _one(context: WalContext, uuid: str) -> Any:
    """Return the log whose UUID begins with `uuid`. Raises `NotFound`, `ConfigurationError`."""
    if not uuid.removeprefix("wal-"):
        raise ConfigurationError("UUID is empty: give the UUID of a log; see `quire wal list`")
    return (await _chosen(context, uuid))[0]


async def _chosen(context: WalContext, uuid: str) -> list[Any]:
    """Return the log whose UUID begins with `uuid`, or all logs if `uuid` is empty.

    Raises `NotFound`, `ConfigurationError`.
    """
    found = await scrubbing.records(context.metadata)
    chosen = [each for each in found if each.uuid.startswith(uuid.removeprefix("wal-"))]
    if uuid and not chosen:
        raise NotFound(f"no write-ahead log begins with {uuid}; see `quire wal list`")
    if uuid and len(chosen) > 1:
        raise ConfigurationError(f"{uuid} is ambiguous ({len(chosen)} logs match); give the full UUID")
    return chosen
