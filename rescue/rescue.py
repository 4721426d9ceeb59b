"""Driver of a rescue.

    begin      (`begin`) mark the cluster's record as being rescued: bookies may register, but other processes
               refuse to start
    ask        collect `facts`; restore the records of write-ahead logs, and close the logs (`wals`); stop if so
               many bookies are missing that the last fragment of a ledger may be unknown
    ledgers    write the ledgers' records, each in a node with a greater version than its labels
    recover    recover ledgers that were not closed, by the protocol: fence, read, write again, close
    the rest   write topics, state logs, namespaces, policies, schemas, bookies, the next ledger id
    end        mark the cluster's record as complete

After an interruption, the rescue starts again from the beginning. It keeps existing records, or overwrites them with
equal records, because no other process changes the store before the end. Topics are written only if nothing is lost or
unknown, unless the operator accepts loss.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import chain
from typing import Final

from msgspec.structs import replace

from quire.ledger import states
from quire.ledger.directory import BookieDirectory
from quire.ledger.ids import range_of, reach_range
from quire.ledger.ledgers import Ledgers
from quire.metadata import paths, topics
from quire.metadata.records import (
    BookieRecord,
    ClusterRecord,
    LedgerRecord,
    LedgerState,
    ManifestRecord,
    Record,
    TenantRecord,
    decode,
    encode,
)
from quire.metadata.store import ANY_VERSION, Create, MetadataStore, Put, Step
from quire.objects.store import ObjectStore
from quire.rescue import facts
from quire.rescue.bundle_plan import BundlePlan, plan_bundles
from quire.rescue.facts import CopyFacts, Show, in_turns
from quire.rescue.ledger_plan import BookieFacts, LedgerPlan, Told, plan_ledgers
from quire.rescue.topic_plan import Archived, Copied, End, TopicPlan, overlaps, plan_topics
from quire.rescue.wals import Wals
from quire.runtime.clock import Clock
from quire.runtime.errors import (
    AlreadyExists,
    CorruptionError,
    LostForGood,
    NotFound,
    Unavailable,
)
from quire.serving.names import TopicName
from quire.wire.bookie import BookieId, LedgerInfoRequest, Status

_CUTS_MAX: Final = 5


@dataclass
class Report:
    """Result of a rescue. The lists contain sentences for the operator."""

    cluster: str = ""
    copy_taken_ms: int = 0
    copy_url: str = ""
    """URL of the restored metadata store that was used as the copy."""
    bookies: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    logs: list[str] = field(default_factory=list)
    """Write-ahead logs on object storage."""
    topics: int = 0
    segments: int = 0
    messages: int = 0
    recovered: int = 0
    state_logs: int = 0
    lost: list[str] = field(default_factory=list)
    """Data that are missing or unreadable."""
    doubtful: list[str] = field(default_factory=list)
    empty: list[str] = field(default_factory=list)
    """Topics that are restored without messages."""
    is_done: bool = False


class Rescue:
    """One run of a rescue. `ledgers` must use `store` and `directory`. With `is_dry`, nothing is written or fenced."""

    def __init__(
        self,
        store: MetadataStore,
        directory: BookieDirectory,
        ledgers: Ledgers,
        clock: Clock,
        show: Show,
        wals: Wals | None = None,
        *,
        accept_loss: bool = False,
        is_dry: bool = False,
    ) -> None:
        self._store = store
        self._directory = directory
        self._ledgers = ledgers
        self._clock = clock
        self._show = show
        self._wals = wals
        self._accept_loss = accept_loss
        self._is_dry = is_dry
        self._failed: dict[int, str] = {}

    async def run(self, copy: CopyFacts, objects: ObjectStore | None, report: Report) -> None:
        """Run the rescue and fill `report`; set `report.is_done` if all is restored. Raises the stores' errors."""
        archived, unreadable = Archived(), list[str]()
        if objects is not None:
            archived, unreadable = await facts.ask_archive(objects, copy.topics, self._show, report.cluster)
        bookies = await facts.ask_bookies(self._directory, self._show)
        logs = await self._ask_logs(copy, report)
        known = [BookieId(each.uuid, each.incarnation) for each in copy.bookies]
        plan = plan_ledgers([*bookies, *logs], copy.ledgers, known)
        report.bookies = sorted(str(each.bookie) for each in bookies)
        report.missing = sorted(map(str, plan.missing.values()))
        report.logs = sorted(each.bookie.uuid for each in logs)
        report.doubtful += [*chain.from_iterable(each.unreadable for each in (*bookies, *logs))]
        report.doubtful += archived.foreign
        report.lost += _unseen(plan) + unreadable
        tell_unlabelled(archived.unlabelled, copy, report)
        is_blind = plan.blind or not all(each.is_whole for each in logs)
        if report.lost and is_blind and not (self._accept_loss or self._is_dry):
            return  # a ledger that is recovered from another ensemble than its last one may end too early
        records = await self._close_all(plan)
        report.recovered = len(plan.open)
        found = await self._look_at_all(records)
        rebuilt, found = await self._plan_topics(copy, archived, plan, records, found)
        bundles = self._plan_bundles(copy, plan, rebuilt, found)
        self._sum_up(report, rebuilt, bundles)
        if self._is_dry or (report.lost and not self._accept_loss):
            return
        if self._wals is not None:
            await self._wals.bury(logs, plan.deleted)
        await self._write(copy, rebuilt, bundles, plan, archived)
        report.is_done = True

    # -- ledgers ---------------------------------------------------------------------------------------
    async def _ask_logs(self, copy: CopyFacts, report: Report) -> list[BookieFacts]:
        """Close the write-ahead logs, and return facts about their ledgers. Closing a log truncates no ledger."""
        if self._wals is None:
            return []
        ended = {each for each, told in copy.ledgers.items() if told.record.state is LedgerState.CLOSED}
        found = await self._wals.ask(copy.wals, ended)
        report.lost += self._wals.lost
        report.doubtful += self._wals.doubtful
        return found

    async def _close_all(self, plan: LedgerPlan) -> dict[int, LedgerRecord]:
        """Write the records of all ledgers, and close the ledgers. Return the records of those that were closed."""

        async def close(told: Told) -> LedgerRecord | None:
            ledger_id = told.record.ledger_id
            try:
                if self._is_dry:
                    return await self._as_if_closed(told.record)
                await self._write_ledger(told)
                return await self._ledgers.recover(ledger_id)
            except (Unavailable, LostForGood, NotFound) as error:
                self._failed[ledger_id] = str(error)
                return None

        closed = await in_turns(close, plan.ledgers.values(), self._show, "ledgers closed")
        return {record.ledger_id: record for record in closed if record is not None}

    async def _as_if_closed(self, record: LedgerRecord) -> LedgerRecord:
        """Return the record with the last entry that bookies report, without fencing.

        A recovery may find another last entry.
        """
        if record.state is LedgerState.CLOSED:
            return record
        last = -1
        for bookie in states.ensemble(record.fragments[-1]):
            info = await self._directory.port(bookie).ask(LedgerInfoRequest(bookie, record.ledger_id))
            if info.status is Status.OK:
                last = max(last, info.last_entry)
        last = max(last, record.fragments[-1].first_entry - 1)
        return replace(record, state=LedgerState.CLOSED, last_entry=last)

    async def _write_ledger(self, told: Told) -> None:
        """Write the record with a greater version than all labels, so that later labels are newer."""
        path, value = paths.ledger(told.record.ledger_id), encode(told.record)
        steps: list[Step] = [Create(path, value)]
        steps += [Put(path, value, ANY_VERSION) for _ in range(told.version + 1)]
        try:
            await self._store.transact(steps)
        except AlreadyExists:
            pass  # an interrupted run wrote the record, and may have recovered the ledger since

    async def _look_at_all(self, records: dict[int, LedgerRecord]) -> dict[int, End]:
        async def look(record: LedgerRecord) -> tuple[int, End | None]:
            try:
                if record.purpose.startswith("topic:"):
                    return record.ledger_id, await facts.end_of(self._ledgers, record)
                return record.ledger_id, facts.EMPTY_END._replace(
                    last_entry=record.last_entry, bytes=record.bytes
                )
            except (Unavailable, LostForGood, CorruptionError, NotFound) as error:
                self._failed[record.ledger_id] = str(error)
                return record.ledger_id, None

        looked = await in_turns(look, records.values(), self._show, "ledgers read")
        return {ledger_id: end for ledger_id, end in looked if end is not None}

    # -- topics and bundles ----------------------------------------------------------------------------
    async def _plan_topics(
        self,
        copy: CopyFacts,
        archived: Archived,
        plan: LedgerPlan,
        records: dict[int, LedgerRecord],
        found: dict[int, End],
    ) -> tuple[TopicPlan, dict[int, End]]:
        """Plan the topics' segments, and shorten recovered ledgers whose entries overlap the next segment's."""
        for _ in range(_CUTS_MAX):
            rebuilt = plan_topics(copy.topics, archived, plan, found, self._clock.now_ms())
            over = {each: index for each, index in overlaps(rebuilt).items() if each in found}
            if not over:
                return rebuilt, found
            for ledger_id, index in over.items():
                end = await facts.end_before(self._ledgers, records[ledger_id], found[ledger_id], index)
                found[ledger_id] = end
                records[ledger_id] = replace(records[ledger_id], last_entry=end.last_entry)
                if not self._is_dry:
                    await self._put(paths.ledger(ledger_id), records[ledger_id])
        raise CorruptionError(
            "internal error: topics' segments still overlap after all cuts; no topic was written"
        )

    def _plan_bundles(
        self, copy: CopyFacts, plan: LedgerPlan, rebuilt: TopicPlan, found: dict[int, End]
    ) -> BundlePlan:
        filled = {each for each, end in found.items() if end.last_entry >= 0}
        names = map(TopicName.parse, rebuilt.topics)
        in_use = {f"{name.tenant}/{name.namespace}" for name in names}
        return plan_bundles(copy.namespaces, copy.logs, plan, filled, in_use)

    def _sum_up(self, report: Report, rebuilt: TopicPlan, bundles: BundlePlan) -> None:
        archived = {
            s.ledger_id for each in rebuilt.topics.values() for s in each.segments if s.archive is not None
        }
        report.topics, report.segments = len(rebuilt.topics), rebuilt.segments
        report.messages, report.empty = rebuilt.messages, rebuilt.empty
        report.state_logs = len(bundles.logs)
        report.lost += [
            f"ledger {each}: {why}" for each, why in sorted(self._failed.items()) if each not in archived
        ]
        report.lost += rebuilt.lost
        report.doubtful += rebuilt.doubtful
        report.doubtful += [
            f"namespace {each} is restored without policies and permissions, because no copy has them"
            for each in bundles.bare
        ]

    # -- writing ---------------------------------------------------------------------------------------
    async def _write(
        self,
        copy: CopyFacts,
        rebuilt: TopicPlan,
        bundles: BundlePlan,
        plan: LedgerPlan,
        archived: Archived,
    ) -> None:
        for node in copy.others:
            await _set(self._store, node.path, node.value)
        for namespace in bundles.namespaces.values():
            if not await _is_there(self._store, paths.tenant(namespace.tenant)):
                await self._put(paths.tenant(namespace.tenant), TenantRecord(name=namespace.tenant))
            await self._put(paths.namespace(namespace.tenant, namespace.name), namespace)
        for bundle, log in bundles.logs.items():
            await self._put(paths.state_log(*bundle.split("/")), log)
        await in_turns(self._write_topic, rebuilt.topics.values(), self._show, "topics written")
        await self._write_bookies(copy, plan)
        ids = [plan.greatest_id, *(label.segment.ledger_id for label in archived.labels)]
        ids += [segment.ledger_id for topic in rebuilt.topics.values() for segment in topic.segments]
        await reach_range(self._store, max(range_of(max(ids)), copy.id_ranges))
        cluster = await self._store.get(paths.CLUSTER)
        whole = replace(decode(ClusterRecord, cluster.value, paths.CLUSTER), rescue_begun_ms=0)
        await self._store.put(paths.CLUSTER, encode(whole), cluster.version)

    async def _write_topic(self, topic: Copied) -> None:
        path = TopicName.parse(topic.record.name).path
        segments, manifests = list(topic.segments), list[str]()
        while len(segments) > topics.SEGMENTS_INLINE_MAX:
            older, segments = (
                segments[: topics.SEGMENTS_PER_MANIFEST],
                segments[topics.SEGMENTS_PER_MANIFEST :],
            )
            manifests.append(paths.manifest(path, f"{older[0].ledger_id:032x}"))
            await self._put(manifests[-1], ManifestRecord(segments=tuple(older)))
        await self._put(path, replace(topic.record, segments=tuple(segments), manifests=tuple(manifests)))

    async def _write_bookies(self, copy: CopyFacts, plan: LedgerPlan) -> None:
        """Write the records of all bookies, including missing ones: they may come back, or repair replaces them."""
        known = {record.uuid: record for record in copy.bookies}
        for uuid, bookie in plan.missing.items():
            record = known.get(uuid, BookieRecord(uuid=uuid, incarnation=bookie.incarnation))
            if not await _is_there(self._store, paths.bookie(uuid)):
                await self._put(paths.bookie(uuid), record)

    async def _put(self, path: str, record: Record) -> None:
        await _set(self._store, path, encode(record))


async def _set(store: MetadataStore, path: str, value: bytes) -> None:
    """Create or overwrite a node."""
    try:
        await store.create(path, value)
    except AlreadyExists:
        node = await store.get(path)
        if node.value != value:
            await store.put(path, value, node.version)


async def _is_there(store: MetadataStore, path: str) -> bool:
    try:
        await store.get(path)
    except NotFound:
        return False
    return True


def tell_unlabelled(names: list[str], copy: CopyFacts, report: Report) -> None:
    """Report archive objects without a label: as doubtful if a copy of the metadata exists, else as lost.

    Labels are written before the records of their objects, so an object without a label was probably never recorded.
    """
    told = [f"object {name} has no label: its topic is unknown" for name in names]
    if copy.taken_ms:
        report.doubtful += told
    else:
        report.lost += told


def _unseen(plan: LedgerPlan) -> list[str]:
    """Return the reasons why ledgers may be unknown."""
    found = []
    if plan.blind:
        away = [
            *map(str, plan.missing.values()),
            *(f"{each}, which lost its data," for each in plan.forgetful),
        ]
        found.append(
            f"{' and '.join(sorted(away))} may have the only labels of some ledgers, because they are at least "
            "as many as the ack quorum: start them"
        )
    if plan.nameless:
        told = [f"{each} ({where})" if where else str(each) for each, where in plan.nameless.items()]
        shown = ", ".join(told[:20]) + (" …" if len(told) > 20 else "")
        found.append(
            f"{len(told)} ledgers have neither a label nor a record in a copy of the metadata, so their topics are "
            f"unknown: {shown}"
        )
    return found
