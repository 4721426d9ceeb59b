"""`quire stores`: list the object stores of a cluster, and adopt another one.

These commands use no broker, but need the credentials of the metadata store and of the object store. Stop a standalone
process first, because only one process can use its metadata store.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import click

from quire.cli.noun import json_option
from quire.cli.output import Answer, Table
from quire.identity.marker import read_marker
from quire.identity.stores import StoreRole, enter_store
from quire.metadata.cluster import find_cluster
from quire.metadata.open import open_store as open_metadata
from quire.metadata.store import MetadataStore
from quire.objects.open import open_store
from quire.runtime.errors import QuireError

_metadata_option = click.option(
    "--metadata", required=True, envvar="QUIRE_METADATA", help="Metadata store of the cluster."
)


@click.group("stores")
def command() -> None:
    """List the object stores of a cluster, and adopt another one.

    \b
    Examples:
      quire stores list --metadata zk://zookeeper:2181/quire
      quire stores adopt archive s3://bucket/new-prefix --metadata zk://zookeeper:2181/quire
    """


@command.command("list")
@_metadata_option
@json_option
def list_(metadata: str, as_json: bool) -> None:
    """List the object stores of the cluster, and the cluster id in each store's marker.

    \b
    Example:
      quire stores list --metadata zk://zookeeper:2181/quire
    """
    asyncio.run(_list(metadata)).say(as_json)


@command.command("adopt")
@click.argument("role", type=click.Choice([role.value for role in StoreRole]))
@click.argument("url")
@_metadata_option
@json_option
def adopt(role: str, url: str, metadata: str, as_json: bool) -> None:
    """Allow the cluster to use the object store at URL, as an archive or for write-ahead logs (logs).

    The store gets the cluster's marker, also where that was deleted or is damaged. A store of another cluster, and an
    empty one that this cluster has used before, are refused.

    \b
    Example:
      quire stores adopt archive s3://bucket/new-prefix --metadata zk://zookeeper:2181/quire
    """
    asyncio.run(_adopt(StoreRole(role), url, metadata)).say(as_json)


async def _list(metadata_url: str) -> Answer:
    async with _metadata(metadata_url) as metadata:
        record = await find_cluster(metadata, metadata_url)
    found = [
        {"role": role.value, "store": location, "marker": await _marker(location)}
        for role in StoreRole
        for location in role.locations(record)
    ]
    rows = [tuple(each.values()) for each in found]
    return Answer({"cluster": record.uuid, "stores": found}, Table(("role", "store", "marker names"), rows))


async def _marker(location: str) -> str:
    """Return the cluster id in the store's marker, or the reason why it cannot be read."""
    objects = open_store(location)
    try:
        return await read_marker(objects) or "no marker"
    except QuireError as error:
        return f"unknown: {error}"
    finally:
        await objects.close()


async def _adopt(role: StoreRole, url: str, metadata_url: str) -> Answer:
    objects = open_store(url)
    try:
        async with _metadata(metadata_url) as metadata:
            cluster = (await find_cluster(metadata, metadata_url)).uuid
            await objects.prepare()
            await enter_store(metadata, objects, cluster, role, adopt=True)
    finally:
        await objects.close()
    return Answer(
        {"cluster": cluster, "role": role.value, "store": objects.url},
        f"cluster {cluster} may use {objects.url} as {role.value}",
    )


@asynccontextmanager
async def _metadata(url: str) -> AsyncIterator[MetadataStore]:
    store = await open_metadata(url, create=False)
    try:
        yield store
    finally:
        await store.close()
