"""Sidecars of all archived segments of some topics: finding the missing ones, and building them.

`build_all` is idempotent and may be killed at any point, because a sidecar appears whole or not at all. An existing
sidecar is replaced only if it is damaged, belongs to another object, or has another version. Concurrent runs repeat
work without harm.

A segment with entries that were lost and given up has no sidecar: a query must report these entries, and finds them
only in the object.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from quire.identity.marker import read_marker_blocking
from quire.objects.store import BlockingStore
from quire.runtime.errors import AlreadyExists, CorruptionError, NotFound, QuireError, WrongCluster
from quire.spark_source import fetch
from quire.spark_source.broker import Broker
from quire.spark_source.jobs.slices import Progress, quietly
from quire.spark_source.options import full_name
from quire.spark_source.plain import LostEntries
from quire.spark_source.plan import Slice, archived_object, origin_of
from quire.spark_source.positions import Window
from quire.spark_source.sidecar.build import Builder, build
from quire.spark_source.sidecar.layout import Identity
from quire.spark_source.sidecar.open import open_sidecar
from quire.tiering.archive import cluster_of, sidecar_of


class State(Enum):
    THERE = "there"
    MISSING = "missing"
    DAMAGED = "damaged"
    """The sidecar is damaged, belongs to another object, or has another version, so that readers ignore it."""


class Found(NamedTuple):
    """State of an archived segment's sidecar. `bytes` and `rows` are 0 unless the sidecar exists."""

    piece: Slice
    state: State
    bytes: int = 0
    rows: int = 0
    error: str = ""

    @property
    def segment(self) -> str:
        return f"segment {self.piece.origin.ledger_id} of {self.piece.origin.name}"


@dataclass
class Built:
    """Result of `build_all`, also of a dry run. The lists contain sentences for users."""

    segments: int = 0
    there: int = 0
    built: int = 0
    rows: int = 0
    bytes: int = 0
    """Total size of the sidecars that were built."""
    object_bytes: int = 0
    """Total size of the objects of these sidecars."""
    without: list[str] = field(default_factory=list)
    """Segments that cannot have a sidecar, with the reason."""
    errors: list[str] = field(default_factory=list)


def archived_segments(broker: Broker, topics: Sequence[str] = ()) -> Iterator[Slice]:
    """Yield each archived segment of the topics as one slice; by default, of all topics of the cluster.

    Raises the errors of `Broker`.
    """
    for topic in map(full_name, topics) if topics else _every_topic(broker):
        try:
            answer = broker.segments(topic)
        except NotFound:
            if topics:
                raise
            continue  # deleted since it was listed
        if answer["partitions"]:
            for number in range(answer["partitions"]):
                yield from archived_segments(broker, [f"{topic}-partition-{number}"])
        for segment in answer["segments"]:
            archived = archived_object(segment)
            if archived is not None:
                origin = origin_of(topic, segment["ledger_id"])
                yield Slice(origin, 0, segment["last_entry"] + 1, Window(), archived)


def _every_topic(broker: Broker) -> Iterator[str]:
    for tenant, namespace in broker.namespaces():
        yield from broker.topics(tenant, namespace)


def find(piece: Slice, archive_url: str | None = None) -> Found:
    """Find an archived segment's sidecar, and verify its footer, but not its rows. Raises the store's errors."""
    assert piece.archived is not None
    store = fetch.open_store(archive_url or piece.archived.store)
    try:
        sidecar = open_sidecar(store, piece.archived, piece.origin.ledger_id)
    except NotFound:
        return Found(piece, State.MISSING)
    except CorruptionError as error:
        return Found(piece, State.DAMAGED, error=str(error))
    return Found(piece, State.THERE, sidecar.file_bytes, sidecar.rows)


def build_all(
    broker: Broker,
    topics: Sequence[str] = (),
    *,
    archive_url: str | None = None,
    rebuild: bool = False,
    dry_run: bool = False,
    progress: Progress = quietly,
) -> Built:
    """Write missing sidecars, or all sidecars (`rebuild`). Raises the errors of `Broker` if the broker does not answer.

    A failure for one segment is reported in `errors`, and does not affect other segments.
    """
    done = Built()
    pieces = list(archived_segments(broker, topics))
    for number, piece in enumerate(pieces, 1):
        done.segments += 1
        try:
            found = find(piece, archive_url)
            if found.state is State.THERE and not rebuild:
                done.there += 1
            elif dry_run:
                done.built += 1
            else:
                _count(write(found, broker, archive_url), done)
        except LostEntries as error:
            done.without.append(str(error))
        except QuireError as error:
            done.errors.append(str(error))
        progress(number, len(pieces))
    return done


def _count(made: Found, done: Built) -> None:
    if made.bytes:
        assert made.piece.archived is not None
        done.built += 1
        done.rows += made.rows
        done.bytes += made.bytes
        done.object_bytes += made.piece.archived.bytes
    elif made.state is State.THERE:
        done.there += 1


def write(found: Found, broker: Broker | None, archive_url: str | None) -> Found:
    """Write one sidecar, replacing an existing one. Without a broker, only the archive is read.

    In the result, `bytes` is 0 if a concurrent process wrote the sidecar first, and the state is `MISSING` if the
    segment was trimmed meanwhile. Raises `NotFound` if the object does not exist, `LostEntries`, `CorruptionError`, and
    the store's errors. Before the old sidecar is deleted, the store's cluster is verified (`WrongCluster`).
    """
    piece = found.piece
    archived = piece.archived
    assert archived is not None
    store, name = fetch.open_store(archive_url or archived.store), sidecar_of(archived.name)
    if store.size(archived.name) != archived.bytes:
        raise CorruptionError(
            f"the object of {found.segment} is not {archived.bytes} bytes long", archived.name, 0
        )
    identity = Identity(piece.origin.ledger_id, archived.bytes, archived.crc)
    builder = Builder(piece.origin, piece.end_entry, identity)
    upload = store.begin(name)
    try:
        size = build(builder, fetch.blocks(piece, broker, archive_url), upload.write)
        if found.state is not State.MISSING:
            _prove_place(store, archived.name)
            store.delete(name)
        upload.finish()
    except AlreadyExists:
        upload.abort()
        return Found(piece, State.THERE)
    except BaseException:
        upload.abort()
        raise
    try:
        store.size(archived.name)
    except NotFound:
        _prove_place(store, archived.name)
        store.delete(name)  # its object was deleted
        return Found(piece, State.MISSING)
    return Found(piece, State.THERE, size, builder.rows)


def _prove_place(store: BlockingStore, name: str) -> None:
    """Verify that the store has the marker of the cluster that the object's name contains. Raises `WrongCluster`.

    Names written by older versions contain no cluster. Then any cluster's marker is accepted, because it proves that
    the store is mounted.
    """
    cluster, found = cluster_of(name), read_marker_blocking(store)
    if found is None:
        raise WrongCluster(
            f"{store.url} has no marker of a cluster: it is another store, or an empty directory under a missing "
            "mount; no sidecar is deleted there. Mount the right directory, or correct the URL"
        )
    if cluster not in ("", found):
        raise WrongCluster(
            f"{store.url} belongs to cluster {found}, but object {name} to cluster {cluster}; no sidecar is deleted "
            "there. Correct the URL"
        )
