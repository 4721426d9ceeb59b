"""All sidecars of some topics: which objects have one, and writing those that lack.

`build_all` is idempotent and may be killed anywhere: a sidecar appears whole or not at all, and what is there is let
alone unless it is damaged, of another object, or of another version. Two that run at once do the work twice, no harm.

A segment with entries that were lost and given up has no sidecar: a query of those has to say so, and its object does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from quire.runtime.errors import AlreadyExists, CorruptionError, NotFound, QuireError
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
from quire.tiering.archive import sidecar_of


class State(Enum):
    THERE = "there"
    MISSING = "missing"
    DAMAGED = "damaged"
    """Or of another object, or another version: readers pass it over."""


class Found(NamedTuple):
    """An archived segment and its sidecar. `bytes` and `rows` are 0 unless it is there."""

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
    """What `build_all` did, or would do. Lines are for people."""

    segments: int = 0
    there: int = 0
    built: int = 0
    rows: int = 0
    bytes: int = 0
    """Of the sidecars that were built."""
    object_bytes: int = 0
    """Of their objects."""
    without: list[str] = field(default_factory=list)
    """Segments that have none."""
    errors: list[str] = field(default_factory=list)


def archived_segments(broker: Broker, topics: Sequence[str] = ()) -> Iterator[Slice]:
    """Each archived segment as one slice; of all topics of the cluster when none is named. Raises as `Broker` does."""
    for topic in map(full_name, topics) if topics else _every_topic(broker):
        try:
            answer = broker.segments(topic)
        except NotFound:
            if topics:
                raise
            continue  # deleted meanwhile
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
    """Whether an archived segment has a sidecar; its footer is proven, not its rows. Raises as a store does."""
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
    """Write the sidecars that are not there, or (`rebuild`) all of them. Raises when the broker does not answer.

    What fails for one segment is among the errors, and does not keep others from theirs.
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
    """Write one sidecar, in place of what may be there. Its bytes are 0 where somebody else was faster.

    `MISSING`: the segment was trimmed meanwhile. Raises as `build_all` lists: `NotFound` where there is no object,
    `LostEntries`, `CorruptionError`, and what a store raises. Without a broker only the archive is read.
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
        store.delete(name)  # nobody's
        return Found(piece, State.MISSING)
    return Found(piece, State.THERE, size, builder.rows)
