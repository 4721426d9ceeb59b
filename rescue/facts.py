"""What can be known of a cluster without its metadata: asked of the bookies that are up, and of the archive.

An error is never taken for absence: a bookie that does not answer is not here, a label that cannot be read is named.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

from quire.ledger import labels, placement
from quire.ledger.directory import BookieDirectory
from quire.metadata import paths
from quire.metadata.records import (
    BookieRecord,
    LedgerRecord,
    ManifestRecord,
    NamespaceRecord,
    Record,
    SegmentRecord,
    StateLogRecord,
    TopicRecord,
    WalRecord,
    decode,
)
from quire.objects.store import ObjectStore
from quire.rescue.ledger_plan import BookieFacts, Told
from quire.rescue.topic_plan import Archived, Copied
from quire.runtime.errors import CorruptionError, NotFound, Unavailable
from quire.tiering import segment_label
from quire.tiering.archive import PREFIX, object_of
from quire.tiering.metadata_copy import CopiedNode, MetadataCopy
from quire.wire import ledger_ids
from quire.wire.bookie import BookieId, LedgerInfoRequest, ListLedgersRequest, ReadRequest, Status

AT_ONCE: Final = 64
_LISTED: Final = 10_000
ATTEMPTS: Final = 5
AGAIN_S: Final = 1.0

Show = Callable[[str, int, int], None]
"""Told what is being done, how much of it is done, and of how much."""

R = TypeVar("R", bound=Record)
T = TypeVar("T")
U = TypeVar("U")


async def in_turns(work: Callable[[T], Awaitable[U]], items: Iterable[T], show: Show, what: str) -> list[U]:
    """`work` on all items, some at a time, in order."""
    todo, found = list(items), list[U]()
    for start in range(0, len(todo), AT_ONCE):
        show(what, start, len(todo))
        found += await asyncio.gather(*map(work, todo[start : start + AT_ONCE]))
    return found


# -- bookies -----------------------------------------------------------------------------------------------


async def ask_bookies(directory: BookieDirectory, show: Show) -> list[BookieFacts]:
    """All that are up. Raises `Unavailable` when one of them stops answering meanwhile: ask again."""
    return [
        await _ask_bookie(directory, placement.bookie_id(record), show) for record in directory.available()
    ]


async def _ask_bookie(directory: BookieDirectory, bookie: BookieId, show: Show) -> BookieFacts:
    facts, port, first = BookieFacts(bookie), directory.port(bookie), 0
    named: list[int] = []
    while True:
        listed = await port.ask(ListLedgersRequest(bookie, first, _LISTED))
        if listed.status is not Status.OK:
            raise Unavailable(
                f"bookie {bookie} does not list its ledgers ({listed.status.name}); see that it runs"
            )
        facts.deleted.update(each for each in listed.deleted if not ledger_ids.is_label(each))
        kept = set(listed.ledgers) - set(listed.deleted)
        facts.ledgers.update(each for each in kept if not ledger_ids.is_label(each))
        named += sorted(each for each in kept if ledger_ids.is_label(each))
        if len(listed.ledgers) < _LISTED:
            break
        first = listed.ledgers[-1] + 1

    async def learn(label: int) -> None:
        try:
            told = await read_label(directory, bookie, label)
        except CorruptionError as error:
            facts.unreadable.append(f"bookie {bookie}: {error}")
        else:
            if told is not None:
                facts.labels[told.record.ledger_id] = told

    await in_turns(learn, named, show, f"labels of bookie {bookie.uuid[:8]}")
    return facts


async def read_label(directory: BookieDirectory, bookie: BookieId, label: int) -> Told | None:
    """The newest label of a ledger there. Raises `CorruptionError`, `Unavailable`."""
    port = directory.port(bookie)
    for _ in range(ATTEMPTS):
        info = await port.ask(LedgerInfoRequest(bookie, label))
        if info.status is Status.OK:
            if info.last_entry < 0:
                return None
            found = await port.ask(ReadRequest(bookie, label, info.last_entry, 1))
            if found.status is Status.OK:
                return Told(*labels.read(found.blocks[0]))
            if found.status is not Status.UNREACHABLE:
                what = found.detail or found.status.name
                raise CorruptionError(
                    f"the label of ledger {ledger_ids.labelled(label)} cannot be read: {what}"
                )
        elif info.status is Status.DELETED:
            return None
        await asyncio.sleep(AGAIN_S)
    raise Unavailable(f"bookie {bookie} does not answer any more; see that it runs, and run this again")


# -- the archive -------------------------------------------------------------------------------------------


async def ask_archive(
    objects: ObjectStore, copied: dict[str, Copied], show: Show
) -> tuple[Archived, list[str]]:
    """Its segments, and what is wrong with labels that are there. Labels of what the copy names are not needed."""
    listed = {info.name for info in await objects.list(PREFIX)}
    found = Archived({name for name in listed if object_of(name) == name})
    named = {
        segment.archive.name
        for topic in copied.values()
        for segment in topic.segments
        if segment.archive is not None
    }
    unreadable: list[str] = []

    async def learn(name: str) -> None:
        label = segment_label.label_of(name)
        if label not in listed:
            found.unlabelled.append(name)
            return
        try:
            found.labels.append(await segment_label.read(objects, label))
        except (CorruptionError, NotFound) as error:
            unreadable.append(str(error))

    await in_turns(learn, sorted(found.objects - named), show, "segments of the archive")
    return found, unreadable


# -- the copy of the metadata ------------------------------------------------------------------------------


@dataclass
class CopyFacts:
    """The newest copy, taken apart. All is empty where there is none."""

    taken_ms: int = 0
    cluster: str = ""
    ledgers: dict[int, Told] = field(default_factory=dict)
    topics: dict[str, Copied] = field(default_factory=dict)
    namespaces: dict[str, NamespaceRecord] = field(default_factory=dict)
    logs: dict[str, StateLogRecord] = field(default_factory=dict)
    bookies: list[BookieRecord] = field(default_factory=list)
    others: list[CopiedNode] = field(default_factory=list)
    """Tenants, policies and schemas: they come back as they are."""
    wals: dict[str, WalRecord] = field(default_factory=dict)
    id_ranges: int = 0
    """How many ranges of ids for ledgers had been given out."""


def take_apart(copy: MetadataCopy | None) -> CopyFacts:
    """Raises `CorruptionError` for a record that is none."""
    if copy is None:
        return CopyFacts()
    facts = CopyFacts(copy.taken_ms, copy.cluster)
    manifests = {n.path: _of(ManifestRecord, n).segments for n in _below(copy, paths.MANIFESTS)}
    for node in _below(copy, paths.LEDGERS):
        ledger = _of(LedgerRecord, node)
        facts.ledgers[ledger.ledger_id] = Told(ledger, node.version)
    for node in _below(copy, paths.TOPICS):
        topic = _of(TopicRecord, node)
        older: list[SegmentRecord] = []
        for path in topic.manifests:
            older += manifests.get(path, ())
        facts.topics[topic.name] = Copied(topic, (*older, *topic.segments))
    for node in _below(copy, paths.NAMESPACES):
        namespace = _of(NamespaceRecord, node)
        facts.namespaces[f"{namespace.tenant}/{namespace.name}"] = namespace
    for node in _below(copy, paths.STATE):
        log = _of(StateLogRecord, node)
        if log.split_into is None:
            bundle = node.path.removeprefix(f"{paths.STATE}/").split("/")
            facts.logs["/".join(map(paths.decode, bundle))] = log
    facts.id_ranges = max((node.version for node in copy.nodes if node.path == paths.LEDGER_IDS), default=0)
    facts.bookies = [_of(BookieRecord, node) for node in _below(copy, paths.BOOKIES)]
    wals = [_of(WalRecord, node) for node in _below(copy, paths.WALS)]
    facts.wals = {wal.uuid: wal for wal in wals}
    for folder in (paths.TENANTS, paths.POLICIES, paths.SCHEMA_BODIES, paths.SCHEMAS):
        facts.others += _below(copy, folder)
    return facts


def _below(copy: MetadataCopy, folder: str) -> Sequence[CopiedNode]:
    return [node for node in copy.nodes if node.path.startswith(f"{folder}/")]


def _of(kind: type[R], node: CopiedNode) -> R:
    return decode(kind, node.value, node.path)
