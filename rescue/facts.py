"""Facts about a cluster that has lost its metadata: from running bookies, the archive, and a copy of the metadata.

An error is never taken for absence: a bookie that does not answer counts as missing, and an unreadable label is
reported. The end of a closed ledger is read from its blocks by an ordinary reader, which uses all replicas. So the
ledger's record must have been written before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeVar

from quire.ledger import labels, placement
from quire.ledger.directory import BookieDirectory
from quire.ledger.ledgers import Ledgers
from quire.metadata import paths
from quire.metadata.records import (
    BookieRecord,
    ClusterRecord,
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
from quire.rescue.topic_plan import Archived, Copied, End
from quire.runtime.errors import CorruptionError, NotFound, Unavailable
from quire.tiering import segment_label
from quire.tiering.archive import PREFIX, cluster_of, object_of
from quire.tiering.metadata_copy import CopiedNode, MetadataCopy
from quire.wire import block, ledger_ids
from quire.wire.block import BlockHeader
from quire.wire.bookie import BookieId, LedgerInfoRequest, ListLedgersRequest, ReadRequest, Status

AT_ONCE: Final = 64
_LISTED: Final = 10_000
ATTEMPTS: Final = 5
AGAIN_S: Final = 1.0
_DAMAGED: Final = frozenset({Status.IO_ERROR, Status.NO_SUCH_ENTRY, Status.LIMBO})
"""Statuses that mean a damaged label; all others are temporary."""

EMPTY_END: Final = End(-1, 0, 0, 0, 0, 0)

Show = Callable[[str, int, int], None]
"""Callback for progress: the step, the number of finished items, and their total."""

R = TypeVar("R", bound=Record)
T = TypeVar("T")
U = TypeVar("U")


async def in_turns(work: Callable[[T], Awaitable[U]], items: Iterable[T], show: Show, what: str) -> list[U]:
    """Call `work` on all items, `AT_ONCE` in parallel. Return the results in order."""
    todo, found = list(items), list[U]()
    for start in range(0, len(todo), AT_ONCE):
        show(what, start, len(todo))
        found += await asyncio.gather(*map(work, todo[start : start + AT_ONCE]))
    return found


# -- bookies -----------------------------------------------------------------------------------------------


async def ask_bookies(directory: BookieDirectory, show: Show) -> list[BookieFacts]:
    """Query all running bookies. Raises `Unavailable` if one stops responding during the call: then call it again."""
    return [
        await _ask_bookie(directory, placement.bookie_id(record), show) for record in directory.available()
    ]


async def _ask_bookie(directory: BookieDirectory, bookie: BookieId, show: Show) -> BookieFacts:
    facts, port, first = BookieFacts(bookie), directory.port(bookie), 0
    named: set[int] = set()
    while True:
        listed = await port.ask(ListLedgersRequest(bookie, first, _LISTED))
        if listed.status is not Status.OK:
            raise Unavailable(
                f"bookie {bookie} does not list its ledgers ({listed.status.name}): check that it runs, and try again"
            )
        facts.deleted.update(each for each in listed.deleted if not ledger_ids.is_label(each))
        kept = set(listed.ledgers) - set(listed.deleted)
        facts.ledgers.update(each for each in kept if not ledger_ids.is_label(each))
        named.update(each for each in kept if ledger_ids.is_label(each))
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

    async def look(ledger_id: int) -> None:
        info = await port.ask(LedgerInfoRequest(bookie, ledger_id))
        if info.status is Status.OK and info.last_entry < 0 and info.lac < 0:
            facts.ledgers.discard(ledger_id)
            facts.empty.add(ledger_id)

    await in_turns(learn, sorted(named), show, f"labels of bookie {bookie.uuid[:8]}")
    unlabelled = sorted(each for each in facts.ledgers if ledger_ids.label_id(each) not in named)
    await in_turns(look, unlabelled, show, f"unlabelled ledgers of bookie {bookie.uuid[:8]}")
    return facts


async def read_label(directory: BookieDirectory, bookie: BookieId, label: int) -> Told | None:
    """Return the newest label in the bookie's ledger `label`; None if the label was deleted or does not exist.

    Raises `CorruptionError` for a damaged label, `Unavailable` if the bookie returns only temporary errors.
    """
    port = directory.port(bookie)
    for _ in range(ATTEMPTS):
        info = await port.ask(LedgerInfoRequest(bookie, label))
        if info.status is Status.DELETED or (info.status is Status.OK and info.last_entry < 0):
            return None
        if info.status is Status.OK:
            found = await port.ask(ReadRequest(bookie, label, info.last_entry, 1))
            if found.status is Status.OK:
                return Told(*labels.read(found.blocks[0]))
            if found.status in _DAMAGED:
                what = found.detail or found.status.name
                raise CorruptionError(f"cannot read the label of ledger {ledger_ids.labelled(label)}: {what}")
        await asyncio.sleep(AGAIN_S)
    raise Unavailable(f"bookie {bookie} does not respond: check that it runs, and run this command again")


# -- the archive -------------------------------------------------------------------------------------------


async def ask_archive(
    objects: ObjectStore, copied: dict[str, Copied], show: Show, cluster: str
) -> tuple[Archived, list[str]]:
    """Return the archive's segments, and the errors of damaged labels.

    Labels of objects in the copy's records are not read; objects of other clusters are skipped.
    """
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
        label, owner = segment_label.label_of(name), cluster_of(name)
        if owner not in ("", cluster):
            found.foreign.append(f"object {name} belongs to cluster {owner}, and is skipped")
            return
        if label not in listed:
            found.unlabelled.append(name)
            return
        try:
            told = await segment_label.read(objects, label)
        except (CorruptionError, NotFound) as error:
            unreadable.append(str(error))
            return
        if told.cluster in ("", cluster):
            found.labels.append(told)
        else:
            found.foreign.append(f"object {name} belongs to cluster {told.cluster}, and is skipped")

    await in_turns(learn, sorted(found.objects - named), show, "segments of the archive")
    return found, unreadable


# -- the copy of the metadata ------------------------------------------------------------------------------


@dataclass
class CopyFacts:
    """Records in the copy of the metadata, by kind. All fields are empty without a copy."""

    taken_ms: int = 0
    cluster: str = ""
    record: ClusterRecord | None = None
    """Cluster record in the copy."""
    ledgers: dict[int, Told] = field(default_factory=dict)
    topics: dict[str, Copied] = field(default_factory=dict)
    namespaces: dict[str, NamespaceRecord] = field(default_factory=dict)
    logs: dict[str, StateLogRecord] = field(default_factory=dict)
    bookies: list[BookieRecord] = field(default_factory=list)
    others: list[CopiedNode] = field(default_factory=list)
    """Tenants, policies and schemas, which are restored unchanged."""
    wals: dict[str, WalRecord] = field(default_factory=dict)
    id_ranges: int = 0
    """Number of allocated ranges of ledger ids."""


def take_apart(copy: MetadataCopy | None) -> CopyFacts:
    """Sort the records of a copy by kind. Raises `CorruptionError` for a record that cannot be decoded."""
    if copy is None:
        return CopyFacts()
    facts = CopyFacts(copy.taken_ms, copy.cluster)
    facts.record = next((_of(ClusterRecord, node) for node in copy.nodes if node.path == paths.CLUSTER), None)
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
    for folder in (paths.SETTINGS, paths.TENANTS, paths.POLICIES, paths.SCHEMA_BODIES, paths.SCHEMAS):
        facts.others += _below(copy, folder)
    return facts


def _below(copy: MetadataCopy, folder: str) -> Sequence[CopiedNode]:
    return [node for node in copy.nodes if node.path.startswith(f"{folder}/")]


def _of(kind: type[R], node: CopiedNode) -> R:
    return decode(kind, node.value, node.path)


class _Seen(NamedTuple):
    header: BlockHeader
    end_index: int


async def end_of(ledgers: Ledgers, closed: LedgerRecord) -> End:
    """Return the end of a closed ledger. Raises `Unavailable`, `LostForGood`, `CorruptionError`."""
    if closed.last_entry < 0:
        return EMPTY_END
    first = await _block(ledgers, closed, 0)
    last = await _block(ledgers, closed, closed.last_entry)
    return End(
        closed.last_entry,
        first.header.first_index,
        last.end_index,
        first.header.clock_ms,
        last.header.clock_ms,
        closed.bytes,
    )


async def end_before(ledgers: Ledgers, closed: LedgerRecord, end: End, index: int) -> End:
    """Return the end that the ledger has if it is cut, after a whole block, before the message with this `index`."""
    last = await _block(ledgers, closed, end.last_entry)
    while last.end_index > index and last.header.first_entry > 0:
        last = await _block(ledgers, closed, last.header.first_entry - 1)
    if last.end_index > index:
        return EMPTY_END
    return end._replace(
        last_entry=last.header.last_entry, end_index=last.end_index, last_clock_ms=last.header.clock_ms
    )


async def _block(ledgers: Ledgers, closed: LedgerRecord, entry: int) -> _Seen:
    blocks = await ledgers.reader(closed).read(entry, 1)
    if not blocks:
        raise CorruptionError(
            f"ledger {closed.ledger_id} has no entry {entry}, although it ends at entry {closed.last_entry}"
        )
    header = block.read_header(blocks[0])
    return _Seen(header, header.first_index + sum(block.message_counts(blocks[0], header)))
