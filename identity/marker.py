"""Marker object, which contains the id of the cluster that an object store belongs to.

    quire-cluster    one line of ASCII, without a newline:
                     "quire-cluster 1 " + cluster id (a UUID, 36 characters) + " " + CRC32C of these bytes, 8 hex digits

A process of the cluster uploads the marker before any other object, by a conditional upload. Quire never overwrites
it; an operator may replace a damaged marker (`quire stores adopt`). Only `NotFound` proves that a store has no marker.
"""

from __future__ import annotations

import re
from typing import Final
from uuid import UUID

from quire.objects.store import BlockingStore, ObjectStore
from quire.runtime.errors import AlreadyExists, ConfigurationError, CorruptionError, NotFound, OutcomeUnknown
from quire.wire.checksum import crc32c

NAME: Final = "quire-cluster"
_LINE: Final = re.compile(rb"quire-cluster (\d+) ([0-9a-f-]{36}) ([0-9a-f]{8})")
_VERSION: Final = b"1"
MARKER_BYTES: Final = len(b"quire-cluster 1 ") + 36 + 1 + 8


def encode_marker(cluster: str) -> bytes:
    """Return the marker's bytes for a cluster id, a UUID in its canonical form."""
    assert str(UUID(cluster)) == cluster, f"not a cluster id: {cluster!r}"
    opening = b"quire-cluster " + _VERSION + b" " + cluster.encode()
    line = opening + b" %08x" % crc32c(opening)
    assert len(line) == MARKER_BYTES
    return line


def decode_marker(content: bytes, where: str) -> str:
    """Return the cluster id in a marker's content.

    Raises `CorruptionError`, and `ConfigurationError` for an unsupported version.
    """
    found = _LINE.fullmatch(content)
    if found is None or int(found[3], 16) != crc32c(content[:-9]):
        raise CorruptionError(
            f"{where} is damaged: it does not match its checksum (`quire stores adopt` replaces the marker)",
            NAME,
            0,
        )
    if found[1] != _VERSION:
        raise ConfigurationError(
            f"the marker {NAME} of {where} was written by a newer Quire (version {found[1].decode()}); start the newer "
            "version"
        )
    return found[2].decode()


async def read_marker(objects: ObjectStore) -> str | None:
    """Return the id of the store's cluster; None if the store has no marker.

    Raises `Unavailable`, `ConfigurationError` (access denied), `CorruptionError`.
    """
    try:
        content = await objects.get_range(NAME, 0, await objects.size(NAME))
    except NotFound:
        return None
    return decode_marker(bytes(content), objects.url)


def read_marker_blocking(store: BlockingStore) -> str | None:
    """Return the id of the store's cluster, like `read_marker`, for a process without an event loop."""
    try:
        content = store.get_range(NAME, 0, store.size(NAME))
    except NotFound:
        return None
    return decode_marker(bytes(content), store.url)


async def replace_damaged_marker(objects: ObjectStore, cluster: str) -> str:
    """Replace a damaged marker, on an operator's order. Raises the store's errors."""
    await objects.delete(NAME)
    return await put_marker(objects, cluster)


async def put_marker(objects: ObjectStore, cluster: str) -> str:
    """Upload the marker unless the store has one. Return the cluster id in the store's marker.

    That marker may belong to another cluster. Raises the store's errors.
    """
    try:
        await objects.put_whole(NAME, (encode_marker(cluster),))
    except (AlreadyExists, OutcomeUnknown):
        found = await read_marker(objects)
        if found is None:
            raise
        return found
    return cluster
