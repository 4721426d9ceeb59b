"""Every record of the metadata store, as JSON through msgspec. `paths` says where each lies.

A field is never renamed or given another meaning; new ones have defaults, so an older record still reads.
Times are wall-clock ms. Entry ids and indexes are inclusive unless a name ends in `_end`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TypeVar

import msgspec

from quire.runtime.errors import CorruptionError


class Record(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Base of all records: frozen; change one with `msgspec.structs.replace`."""


class ClusterRecord(Record, frozen=True):
    """Which cluster a metadata store holds; see `metadata.cluster`."""

    uuid: str
    created_ms: int = 0
    rescue_begun_ms: int = 0
    """Its metadata is being rebuilt since then (`quire.rescue`): bookies may come, nobody else. 0: it is whole."""


class LedgerState(StrEnum):
    """What follows what: the table in `quire.ledger.states`."""

    OPEN = "open"
    IN_RECOVERY = "in-recovery"
    CLOSED = "closed"
    DELETING = "deleting"


class Fragment(Record, frozen=True):
    """From `first_entry` on, blocks go to `bookies` (str of BookieId); its length is this fragment's write quorum."""

    first_entry: int
    bookies: tuple[str, ...]


class Hole(Record, frozen=True):
    """Entries that were lost, and given up on an operator's word; see `ledger.loss`.

    `messages` are known when a block after the hole tells its index, else there are as many as entries.
    """

    first_entry: int
    last_entry: int
    first_index: int = 0
    messages: int = 0
    clock_ms: int = 0
    """Of the block before it, else of the one after it."""


class LedgerRecord(Record, frozen=True):
    """A ledger: who holds which entries, and where it ends. `last_entry` and `bytes` are set when CLOSED."""

    ledger_id: int
    state: LedgerState = LedgerState.OPEN
    write_quorum: int = 1
    ack_quorum: int = 1
    fragments: tuple[Fragment, ...] = ()
    last_entry: int = -1
    bytes: int = 0
    former: tuple[str, ...] = ()
    """Bookies that are in no fragment any more, and may still have bytes when the ledger is deleted."""
    purpose: str = ""
    """Whose ledger it is: `topic:persistent://t/n/x`, `compacted:persistent://t/n/x` or `state:t/n/bundle`.

    A scrub finds orphans by it, and a rescue what belongs together.
    """
    generation: int = 0
    """Of the topic that it is a segment of; 0 where nobody said."""
    created_ms: int = 0
    closed_ms: int = 0
    holes: tuple[Hole, ...] = ()
    """What was given up, by entries; one that lies beyond `last_entry` only tells what was cut off."""


class ArchivePointer(Record, frozen=True):
    """Where a sealed segment lies in the object store, and what proves it."""

    store: str
    """URL of the store: `file:///…` or `s3://bucket/prefix`."""
    name: str
    bytes: int
    crc: int
    archived_ms: int
    lost_messages: int = 0
    """Messages that had been lost and given up before: blank blocks stand for them in the object."""


class SegmentState(StrEnum):
    """What follows what: the table in `quire.metadata.segment_states`; what each means: docs/topics.md."""

    ACTIVE = "active"
    SEALED = "sealed"
    FLUSHED = "flushed"
    ARCHIVED = "archived"
    RELEASED = "released"


class SegmentRecord(Record, frozen=True):
    """One ledger in a topic's list. Totals are final once it is sealed.

    `first_index` is the topic-wide index of its first message. `on_bookies` turns False when the bookies'
    copy has been deleted after the archive's lag.
    """

    ledger_id: int
    first_index: int = 0
    created_ms: int = 0
    sealed_ms: int = 0
    last_entry: int = -1
    messages: int = 0
    bytes: int = 0
    first_clock_ms: int = 0
    last_clock_ms: int = 0
    archive: ArchivePointer | None = None
    on_bookies: bool = True

    @property
    def is_sealed(self) -> bool:
        return self.sealed_ms > 0


class CompactedRecord(Record, frozen=True):
    """The last result of compacting a topic; see `quire.serving.topic.compaction.compacted`.

    Everything up to the horizon was read; `horizon_index` is the index of the message after it. The ledger holds
    `entries` retained ones with `extra_messages` more messages than entries, then `index_entries`.
    """

    ledger_id: int
    horizon_ledger: int
    horizon_entry: int
    horizon_index: int = 0
    entries: int = 0
    extra_messages: int = 0
    index_entries: int = 0
    bytes: int = 0
    finished_ms: int = 0


class GrowthRecord(Record, frozen=True):
    """The last time a partitioned topic got more partitions, until it had `end`; begun or finished at `at_ms`.

    It is under way while the topic has fewer. Clients may not know those from `first` on, which are of growths shortly
    before as well; see `quire.serving.cluster.partitioned`.
    """

    first: int
    end: int
    at_ms: int = 0


class TopicRecord(Record, frozen=True):
    """A topic: its segments (oldest first), or, for a partitioned topic, only its number of partitions.

    `partitions` > 0 makes it the parent of NAME-partition-0 ... and leaves `segments` empty. `manifests` name
    immutable lists of older segments, oldest first. `generation` grows with each incarnation (delete and
    create again), so that cursors of a former topic of that name are never taken for this one's; a partition
    knows its parent's as well.
    """

    name: str
    partitions: int = 0
    segments: tuple[SegmentRecord, ...] = ()
    manifests: tuple[str, ...] = ()
    created_ms: int = 0
    generation: int = 0
    parent_generation: int = 0
    growth: GrowthRecord | None = None
    properties: dict[str, str] = {}
    terminated: bool = False
    deleting: bool = False
    compacted: CompactedRecord | None = None
    topic_epoch: int = -1
    """Counts the producers that had exclusive access, from 0."""
    last_dropped: int = -1
    """Ledger id of the last empty segment that left the list without a next one; later ones have greater ids."""

    @property
    def extent(self) -> int:
        """The number of partitions, those that are being added among them."""
        return self.partitions if self.growth is None else max(self.partitions, self.growth.end)


class ManifestRecord(Record, frozen=True):
    """Older segments of one topic, immutable."""

    segments: tuple[SegmentRecord, ...]


class StateLogRecord(Record, frozen=True):
    """The ledgers of a bundle's state log, oldest first; the first begins with a snapshot."""

    ledgers: tuple[int, ...] = ()
    split_into: tuple[str, str] | None = None
    """The paths at which the log goes on, as two: nobody opens it here any more."""


class TenantRecord(Record, frozen=True):
    name: str
    allowed_clusters: tuple[str, ...] = ()
    admin_roles: tuple[str, ...] = ()
    """They may do everything in the tenant."""


class Storage(StrEnum):
    """What keeps the blocks of a ledger."""

    BOOKIES = "bookies"
    OBJECTS = "objects"
    """A write-ahead log on object storage (`quire.wal`), that of the broker that writes the ledger."""


class PersistencePolicy(Record, frozen=True):
    """Replication of new ledgers: ensemble = write quorum. 0 means the broker's default, as no `storage` does.

    The quorums are those of bookies: on object storage there is one copy, and the store sees to its being kept.
    """

    write_quorum: int = 0
    ack_quorum: int = 0
    storage: Storage | None = None


class RetentionPolicy(Record, frozen=True):
    """Acknowledged data is kept this long; -1 for ever, 0 not at all."""

    retention_ms: int = 0
    retention_bytes: int = 0


class BacklogQuota(Record, frozen=True):
    """At `limit_bytes` or `limit_ms` of unacknowledged data do `action`. -1: no limit."""

    limit_bytes: int = -1
    limit_ms: int = -1
    action: str = "producer_request_hold"


class InactiveTopicPolicy(Record, frozen=True):
    """Delete a topic that was not used for `inactive_ms_max`; `mode` says what counts as use."""

    enabled: bool = False
    mode: str = "delete_when_no_subscriptions"
    inactive_ms_max: int = 60_000


class DelayedDeliveryPolicy(Record, frozen=True):
    """Whether shared subscriptions heed a message's time of delivery, how exactly, and how far it may lie ahead.

    A delay beyond `delay_ms_max` is cut to it; 0: no limit.
    """

    active: bool = True
    tick_ms: int = 20
    delay_ms_max: int = 0


class PublishRate(Record, frozen=True):
    """What a topic takes per second at most, averaged; 0: as much as comes."""

    messages_per_s: int = 0
    bytes_per_s: int = 0


class DispatchRate(Record, frozen=True):
    """What consumers are sent per period of `period_s` seconds at most, averaged; 0: as much as they take."""

    messages: int = 0
    bytes: int = 0
    period_s: int = 1


class IcebergPolicy(Record, frozen=True):
    """The Iceberg table that is kept fresh with a topic; what is empty is told by the topic's name or the catalog."""

    catalog: str = ""
    """A URL; empty: none is kept."""
    warehouse: str = ""
    namespace: str = ""
    table: str = ""


class Policies(Record, frozen=True):
    """What a namespace or a topic prescribes; None leaves it to the level above, at last to the broker's default."""

    deduplication: bool | None = None
    persistence: PersistencePolicy | None = None
    retention: RetentionPolicy | None = None
    message_ttl_ms: int | None = None
    backlog_quota: BacklogQuota | None = None
    auto_topic_creation: bool | None = None
    schema_compatibility: str | None = None
    schema_auto_update: bool | None = None
    """Whether clients may bring schemas; if not, an operator adds them."""
    schema_enforced: bool | None = None
    """Whether a topic that has a schema refuses producers without one."""
    age_quota: BacklogQuota | None = None
    """The quota of Pulsar's type message_age; `backlog_quota` is that of destination_storage."""
    inactive_topics: InactiveTopicPolicy | None = None
    delayed_delivery: DelayedDeliveryPolicy | None = None
    subscription_expiration_ms: int | None = None
    message_bytes_max: int | None = None
    publish_rate: PublishRate | None = None
    compaction_threshold_bytes: int | None = None
    dispatch_rate: DispatchRate | None = None
    subscription_dispatch_rate: DispatchRate | None = None
    iceberg: IcebergPolicy | None = None
    permissions: dict[str, tuple[str, ...]] = {}
    """What roles, or patterns of roles, may do: produce, consume, functions."""
    subscription_permissions: dict[str, tuple[str, ...]] = {}
    """Of a namespace: the roles that a subscription takes; one that is not here takes all that may consume."""
    subscription_prefix: bool | None = None
    """Of a namespace: whether subscriptions must begin with the name of their role."""
    topics_max: int | None = None
    """Of a namespace, each partition counted. Here and below 0 is no limit."""
    producers_max: int | None = None
    """Of one topic; so are the next three."""
    consumers_max: int | None = None
    consumers_per_subscription_max: int | None = None
    subscriptions_max: int | None = None
    unacked_messages_max: int | None = None
    """That one consumer may hold."""


class SchemaBody(Record, frozen=True):
    """A schema's definition; see `quire.serving.schema.definition`."""

    data: bytes = b""
    properties: dict[str, str] = {}
    name: str = ""


class SchemaVersion(Record, frozen=True):
    """One version of a topic's schema. Its body is here, or in a node of its own that `apart` names.

    `deleted`: no schema, but the end of all before it; they can still be asked for by number.
    """

    number: int
    kind: str = ""
    fingerprint: str = ""
    created_ms: int = 0
    body: SchemaBody | None = None
    apart: str = ""
    deleted: bool = False


class SchemasRecord(Record, frozen=True):
    """All versions of a topic's schema, by number from 0 on. Partitions have their parent's."""

    versions: tuple[SchemaVersion, ...] = ()


class NamespaceRecord(Record, frozen=True):
    """`boundaries`: the bundles' edges in the 32-bit hash space, as eight hex digits, ascending.

    While it is `deleting` nobody makes a topic in it.
    """

    tenant: str
    name: str
    policies: Policies = Policies()
    boundaries: tuple[str, ...] = ("00000000", "ffffffff")
    deleting: bool = False


class BookieIntent(StrEnum):
    """What an operator wants of a bookie, in its identity record; the table is in `quire.metadata.bookie_states`."""

    STAY = ""
    DRAIN = "drain"
    """It takes nothing new, and its copies are made elsewhere; then its record goes."""
    GIVE_UP = "give-up"
    """It is not up and will not come back: what it held is copied from others at once. Ends when it registers."""


class BookieRecord(Record, frozen=True):
    uuid: str
    incarnation: int
    rack: str = ""
    address: str = ""
    read_only: bool = False
    read_only_why: str = ""
    """What is full, and where; what to do. A sentence for people."""
    takes_priority: bool = False
    """It is read-only, and takes blocks of high priority all the same."""
    short_of_space: bool = False
    """Little room is left, though it may still take everything."""
    free_bytes: int = 0
    total_bytes: int = 0
    intent: BookieIntent = BookieIntent.STAY
    tls: bool = False
    """It takes TLS at its address."""
    http_url: str = ""
    """Of its /metrics and what it tells of itself; "" where it has no such port."""
    version: str = ""
    """Of Quire; "" are those before it was told. Whoever decides by it decides wrong: it is for people."""


class WalState(StrEnum):
    OPEN = "open"
    CLOSING = "closing"
    """Somebody looks for its end; its writer trims nothing more."""
    CLOSED = "closed"


class WalRecord(Record, frozen=True):
    """A write-ahead log on object storage; see `quire.wal`. Data objects below `trim_seq` are in sets."""

    uuid: str
    broker: str
    """Whose it is, or was: a broker's id."""
    store: str
    """URL of the object store, without secrets."""
    state: WalState = WalState.OPEN
    trim_seq: int = 0
    end_seq: int = -1
    """Of a closed one: nothing from here on counts. The fence lies here, if one was needed."""
    lost: tuple[int, ...] = ()
    """Data objects below the end that are damaged and were given up on an operator's word: readers pass over them."""
    catalogue: str = ""
    """Name of the object that lists its sets; empty when there are none."""
    catalogue_crc: int = 0
    created_ms: int = 0


class DamageRecord(Record, frozen=True):
    """A bookie's copy of a ledger cannot be read from `entry` on; repair makes another copy."""

    bookie: str
    ledger_id: int
    entry: int
    what: str = ""
    found_ms: int = 0


class UnderreplicatedRecord(Record, frozen=True):
    """A ledger that may lack copies, or blocks in them, and why: words for people, and one report a damaged copy."""

    ledger_id: int
    reasons: tuple[str, ...] = ()
    damage: tuple[DamageRecord, ...] = ()


class RepairRecord(Record, frozen=True):
    """What the coordinator of repair does or did last. Counts are of ledgers, in the audit or the repair under way."""

    coordinator: str = ""
    state: str = "idle"
    """idle, looking (at all ledgers) or mending (those in the queue)."""
    ledgers: int = 0
    checked: int = 0
    repaired: int = 0
    bytes_copied: int = 0
    """Since this coordinator began."""
    failed: int = 0
    error: str = ""
    """The last failure's."""
    left: dict[str, int] = {}
    """For each bookie that is to be left: ledgers that still need it, when the last look ended."""
    open: int = 0
    """Ledgers that are left because they are open: their topics' owners must close them or leave the bookie."""
    unplaced: int = 0
    """Ledgers that are left because no other bookie could take a copy."""
    lost: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()
    """Bookies that are not up, but not for so long that they count as lost."""
    lost_ledgers: dict[int, str] = {}
    """Ledgers with entries that no bookie can give, and what was said; a hundred at most."""
    updated_ms: int = 0


class BrokerRecord(Record, frozen=True):
    broker_id: str
    service_url: str
    http_url: str
    started_ms: int = 0
    session: str = ""
    """Of this process alone: a broker that is started again has another one."""
    listeners: dict[str, str] = {}
    """Its URLs for clients in other networks, by the name under which they ask for them."""
    service_url_tls: str = ""
    """As `service_url`, for clients that speak TLS. One of the two may be empty: that port is closed."""
    http_url_tls: str = ""
    listeners_tls: dict[str, str] = {}
    version: str = ""
    """As a bookie's."""


class OwnerRecord(Record, frozen=True):
    """Who owns a bundle, since when, and why it came there."""

    broker: BrokerRecord
    since_ms: int = 0
    why: str = ""


class BundleReport(Record, frozen=True):
    """One bundle of a broker; `load` in the unit of `quire.serving.cluster.balance`."""

    load: float
    topics: int = 0
    since_ms: int = 0
    why: str = ""


class LoadRecord(Record, frozen=True):
    """What a broker says of its bundles, by their names; written when it changed enough to matter."""

    bundles: dict[str, BundleReport] = {}
    lag_ms: int = 0
    """By how much its event loop was late at most, in the last minute."""

    cannot_write: str = ""
    """Why it cannot write though bookies are there; empty when it can."""


R = TypeVar("R", bound=Record)


def encode(record: Record) -> bytes:
    """A record as JSON bytes."""
    return msgspec.json.encode(record)


def decode(kind: type[R], value: bytes, path: str) -> R:
    """A record of `kind` from JSON bytes. Raises `CorruptionError` naming `path`."""
    try:
        return msgspec.json.decode(value, type=kind)
    except (ValueError, RecursionError) as error:  # wrong fields, wrong UTF-8, too deep
        raise CorruptionError(f"metadata record {path} is not a {kind.__name__}: {error}") from error
