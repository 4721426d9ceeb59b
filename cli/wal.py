"""`quire wal`: the write-ahead logs on object storage: what they hold, whether it is whole, and what nobody needs.

These commands ask no broker: they read the metadata store and the object store from here, which needs the stores'
credentials. So they work when no broker does.
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
from quire.metadata.open import open_store
from quire.objects.open import open_for_log
from quire.runtime.clock import SystemClock, iso_time
from quire.runtime.errors import ConfigurationError
from quire.wal import scrub as scrubbing
from quire.wal.closing import close_wal
from quire.wal.context import WalContext
from quire.wal.run_reader import run_cache
from quire.wal.settings import WalSettings

CACHE_BYTES = 1 << 20


@click.group("wal")
def command() -> None:
    """See and verify write-ahead logs on object storage.

    \b
    Examples:
      quire wal list --metadata zk://zookeeper:2181/quire --wal s3://bucket/prefix
      quire wal verify --metadata zk://zookeeper:2181/quire --wal s3://bucket/prefix
    """


Work = Callable[..., Awaitable[Answer]]


def _verb(name: str) -> Callable[[Work], click.Command]:
    """A verb that is given the stores, and prints what it returns."""

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
                "--wal", required=True, envvar="QUIRE_WAL", help="The object store, as brokers have it."
            ),
            click.option(
                "--metadata", required=True, envvar="QUIRE_METADATA", help="The cluster's metadata store."
            ),
        ):
            run = option(run)
        return command.command(name)(run)

    return decorate


@asynccontextmanager
async def _stores(metadata_url: str, wal_url: str) -> AsyncIterator[WalContext]:
    settings = WalSettings(wal=wal_url)
    metadata, objects = await open_store(metadata_url), open_for_log(wal_url, settings.threads)
    try:
        yield WalContext(objects, metadata, run_cache(CACHE_BYTES), SystemClock(), settings, "quire wal")
    finally:
        await objects.close()
        await metadata.close()


@_verb("list")
async def list_(context: WalContext) -> Answer:
    """List all write-ahead logs, the oldest first."""
    found = await scrubbing.records(context.metadata)
    rows = [
        (each.uuid, each.broker, each.state.value, each.trim_seq, each.end_seq, iso_time(each.created_ms))
        for each in found
    ]
    columns = ("wal", "broker", "state", "in sets below", "end", "begun")
    return Answer([msgspec.to_builtins(each) for each in found], Table(columns, rows, right=columns[3:5]))


@_verb("show")
@click.argument("uuid")
async def show(context: WalContext, uuid: str) -> Answer:
    """Print the record of the log UUID, or of the one whose UUID begins so, and who closed it."""
    [record] = await _chosen(context, uuid)
    shown = msgspec.to_builtins(record) | {"closed_by": await scrubbing.closer_of(context.objects, record)}
    return Answer(shown, shown)


@_verb("verify")
@click.argument("uuid", default="")
async def verify(context: WalContext, uuid: str) -> Answer:
    """Read every byte of the log UUID, or of all, and compare the checksums. Exit code 4 when there is damage."""
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
@click.option("--delete", is_flag=True, help="Delete what is found.")
async def scrub(context: WalContext, delete: bool) -> Answer:
    """List objects older than an hour that no log needs: from before a death, or uploads that came late."""
    found = await scrubbing.strays(context, context.clock.now_ms())
    for info in found if delete else ():
        await context.objects.delete(info.name)
    rows = [(info.name, size(info.bytes), iso_time(info.modified_ms)) for info in found]
    return Answer(
        [info._asdict() for info in found],
        Table(("object", "bytes", "written"), rows, right=("bytes",)),
        f"{len(found)} objects {'were deleted' if delete else 'that nobody needs'}",
    )


@_verb("close")
@click.argument("uuid")
@click.option("--accept-loss", is_flag=True, help="Go on behind data objects that are damaged or missing.")
async def close(context: WalContext, uuid: str, accept_loss: bool) -> Answer:
    """Close the log UUID of a broker that is gone. Brokers do so by themselves, and stop at damage.

    With --accept-loss what lies in damaged objects is given up. That cannot be taken back.
    """
    [chosen] = await _chosen(context, uuid)
    record = await close_wal(
        context.objects, context.metadata, context.clock, chosen.uuid, context.broker, accept_loss=accept_loss
    )
    given_up = [f"given up: object {seq}" for seq in record.lost]
    return Answer(
        msgspec.to_builtins(record), f"{record.uuid} ends before object {record.end_seq}", *given_up
    )


async def _chosen(context: WalContext, uuid: str) -> list[Any]:
    """All logs when `uuid` is empty, else the one that it begins. Raises `ConfigurationError`."""
    found = await scrubbing.records(context.metadata)
    chosen = [each for each in found if each.uuid.startswith(uuid.removeprefix("wal-"))]
    if uuid and len(chosen) != 1:
        raise ConfigurationError(f"{len(chosen)} write-ahead logs begin with {uuid}; see `quire wal list`")
    return chosen
