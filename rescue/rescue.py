"""The rebuilding itself: begin, ask, write ledgers, recover, write what names them, end.

    begin      the cluster's record says that it is being rescued: its bookies may come, brokers and gateways refuse
    ask        `facts`; `wals`: logs on object storage get their records, and are closed; stop here where too many
               bookies are missing to know every ledger's last fragment
    ledgers    their records, each with a node whose version is beyond that of its labels
    recover    what was not closed, by the protocol: fence, read, write again, close
    the rest   topics, state logs, namespaces, policies, schemas, bookies, the next ledger's id
    end        the cluster's record says that it is whole

Whoever is interrupted begins again: what is there is kept or written over with the same, and until the end nobody else
changes the store. Nothing is written of topics while anything is lost or cannot be seen, unless loss is accepted.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import chain
from typing import Final

from msgspec.structs import replace

from quire.ledger import states
from quire.ledger.directory import BookieDirectory
from quire.ledger.ledgers import IDS_PER_RANGE, Ledgers
from quire.metadata import paths, topics
from quire.metadata.cluster import read_cluster
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
from quire.rescue import ends, facts
from quire.rescue.bundle_plan import BundlePlan, plan_bundles
from quire.rescue.facts import CopyFacts, Show, in_turns
from quire.rescue.ledger_plan import BookieFacts, LedgerPlan, Told, plan_ledgers
from quire.rescue.topic_plan import Archived, Copied, End, TopicPlan, overlaps, plan_topics
from quire.rescue.wals import Wals
from quire.runtime.clock import Clock
from quire.runtime.errors import (
    AlreadyExists,
    ConfigurationError,
    CorruptionError,
    LostForGood,
    NotFound,
    Unavailable,
)
from quire.serving.names import TopicName
from quire.tiering.metadata_copy import newest
from quire.wire.bookie import BookieId, LedgerInfoRequest, Status

_PUTS_AT_ONCE: Final = 500
_CUTS_MAX: Final = 5


@dataclass
class Report:
    """What was found, what was done, and what was not. The lists are sentences."""

    cluster: str = ""
    copy_taken_ms: int = 0
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
    """What is not here, or cannot be seen."""
    doubtful: list[str] = field(default_factory=list)
    empty: list[str] = field(default_factory=list)
    """Topics that come back without messages."""
    is_done: bool = False


async def look_for_copy(objects: ObjectStore | None, cluster: str, report: Report) -> CopyFacts:
    """The newest copy of the cluster's metadata in the archive; of the only one's that has some, if none is named.

    Raises `Unavailable`, `CorruptionError`, `ConfigurationError`.
    """
    if objects is None:
        return CopyFacts()
    copy, damaged = await newest(objects, cluster)
    report.doubtful += damaged
    found = facts.take_apart(copy)
    report.copy_taken_ms = found.taken_ms
    return found


async def find_begun(store: MetadataStore, url: str) -> ClusterRecord | None:
    """The cluster whose rescue was begun in this store, None in an empty one. Raises `ConfigurationError` else."""
    try:
        record = await read_cluster(store)
    except NotFound:
        if await store.children(paths.TOPICS):
            raise ConfigurationError(f"{url} has topics and no cluster; name an empty chroot") from None
        return None
    if not record.rescue_begun_ms:
        raise ConfigurationError(
            f"{url} holds cluster {record.uuid}, whose metadata is there: nothing is rebuilt over it; name an empty "
            "chroot"
        )
    return record


async def begin(store: MetadataStore, url: str, cluster: str, now_ms: int) -> ClusterRecord:
    """Begin the rescue of `cluster` in an empty store, or go on with it. Raises `ConfigurationError`."""
    record = await find_begun(store, url)
    if record is None:
        if not cluster:
            raise ConfigurationError(
                "nothing here tells which cluster it was: name it with --cluster, by the word `cluster` in a bookie's "
                "identity.json (any UUID, where there are no bookies), or name the --archive that has a copy of its "
                "metadata"
            )
        record = ClusterRecord(uuid=cluster, created_ms=now_ms, rescue_begun_ms=now_ms)
        await store.create(paths.CLUSTER, encode(record))
    if cluster and record.uuid != cluster:
        raise ConfigurationError(f"{url} is being rebuilt for cluster {record.uuid}, not for {cluster}")
    return record


class Rescue:
    """One run. `ledgers` must rest on `store` and `directory`; with `is_dry` nothing is written or fenced."""

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
        """Fills `report`; `is_done` there says whether the cluster is whole now. Raises what the stores do."""
        archived, unreadable = Archived(), list[str]()
        if objects is not None:
            archived, unreadable = await facts.ask_archive(objects, copy.topics, self._show)
        bookies = await facts.ask_bookies(self._directory, self._show)
        logs = await self._ask_logs(copy, report)
        known = [BookieId(each.uuid, each.incarnation) for each in copy.bookies]
        plan = plan_ledgers([*bookies, *logs], copy.ledgers, known)
        report.bookies = sorted(str(each.bookie) for each in bookies)
        report.missing = sorted(map(str, plan.missing.values()))
        report.logs = sorted(each.bookie.uuid for each in logs)
        report.doubtful += [*chain.from_iterable(each.unreadable for each in (*bookies, *logs))]
        report.lost += _unseen(plan) + unreadable
        tell_unlabelled(archived.unlabelled, copy, report)
        is_blind = plan.blind or not all(each.is_whole for each in logs)
        if report.lost and is_blind and not (self._accept_loss or self._is_dry):
            return  # a ledger recovered by an older ensemble than its last one may end too early
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
        """Those on object storage, which are closed then: that ends none of their ledgers too early."""
        if self._wals is None:
            return []
        ended = {each for each, told in copy.ledgers.items() if told.record.state is LedgerState.CLOSED}
        found = await self._wals.ask(copy.wals, ended)
        report.lost += self._wals.lost
        report.doubtful += self._wals.doubtful
        return found

    async def _close_all(self, plan: LedgerPlan) -> dict[int, LedgerRecord]:
        """Write the records of all ledgers, and close them; those that cannot be closed are left out."""

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
        """As it looks to somebody who does not fence: a recovery may find another end."""
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
        """The node's version goes beyond that of every label, so that later labels are newer than those."""
        path, value = paths.ledger(told.record.ledger_id), encode(told.record)
        steps: list[Step] = [Create(path, value)]
        steps += [Put(path, value, ANY_VERSION) for _ in range(told.version + 1)]
        try:
            await self._store.transact(steps)
        except AlreadyExists:
            pass  # an interrupted run wrote it, and may have recovered it since

    async def _look_at_all(self, records: dict[int, LedgerRecord]) -> dict[int, End]:
        async def look(record: LedgerRecord) -> tuple[int, End | None]:
            try:
                if record.purpose.startswith("topic:"):
                    return record.ledger_id, await ends.look(self._ledgers, record)
                return record.ledger_id, ends.EMPTY._replace(last_entry=record.last_entry, bytes=record.bytes)
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
        """A ledger that a recovery found to end behind the beginning of the next one is cut."""
        for _ in range(_CUTS_MAX):
            rebuilt = plan_topics(copy.topics, archived, plan, found, self._clock.now_ms())
            over = {each: index for each, index in overlaps(rebuilt).items() if each in found}
            if not over:
                return rebuilt, found
            for ledger_id, index in over.items():
                end = await ends.look_before(self._ledgers, records[ledger_id], found[ledger_id], index)
                found[ledger_id] = end
                records[ledger_id] = replace(records[ledger_id], last_entry=end.last_entry)
                if not self._is_dry:
                    await self._put(paths.ledger(ledger_id), records[ledger_id])
        raise CorruptionError(
            "the segments of topics overlap in a way that no cut ends; this is a mistake of ours"
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
            f"namespace {each} comes back without its policies and permissions, which no copy has"
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
        await self._reach_range(max(max(ids) // IDS_PER_RANGE + 1, copy.id_ranges))
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
        """Those that are not here are members all the same: they may come back, and repair knows what they had."""
        known = {record.uuid: record for record in copy.bookies}
        for uuid, bookie in plan.missing.items():
            record = known.get(uuid, BookieRecord(uuid=uuid, incarnation=bookie.incarnation))
            if not await _is_there(self._store, paths.bookie(uuid)):
                await self._put(paths.bookie(uuid), record)

    async def _reach_range(self, wanted: int) -> None:
        """No new ledger gets an id that one has, or had: the node's version counts the ranges of ids given out."""
        try:
            await self._store.create(paths.LEDGER_IDS, b"")
        except AlreadyExists:
            pass
        while (left := wanted - (await self._store.get(paths.LEDGER_IDS)).version) > 0:
            puts = min(left, _PUTS_AT_ONCE)
            await self._store.transact([Put(paths.LEDGER_IDS, b"", ANY_VERSION)] * puts)

    async def _put(self, path: str, record: Record) -> None:
        await _set(self._store, path, encode(record))


async def _set(store: MetadataStore, path: str, value: bytes) -> None:
    """Whatever was there."""
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
    """A label is put before its segment is recorded: beside a copy that does not name it, such an object is garbage."""
    told = [f"object {name} has no label: whose segment it is cannot be told" for name in names]
    if copy.taken_ms:
        report.doubtful += told
    else:
        report.lost += told


def _unseen(plan: LedgerPlan) -> list[str]:
    """What stands in the way of knowing all ledgers."""
    found = []
    if plan.blind:
        away = [
            *map(str, plan.missing.values()),
            *(f"{each}, which lost what it had," for each in plan.forgetful),
        ]
        found.append(
            f"{' and '.join(sorted(away))} may have what nobody else knows, for they are as many as the ack quorum: "
            "start them"
        )
    if plan.nameless:
        told = [f"{each} ({where})" if where else str(each) for each, where in plan.nameless.items()]
        shown = ", ".join(told[:20]) + (" …" if len(told) > 20 else "")
        found.append(
            f"{len(told)} ledgers have no label, and no copy of the metadata knows them, so that nobody can tell whose "
            f"they are: {shown}"
        )
    return found
