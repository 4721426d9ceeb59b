"""Records of the metadata store, encoded as JSON by msgspec; `paths` has their paths.

A field is never renamed or given another meaning. New fields have defaults, so that older records can be read. Older
versions keep new fields (`unknown_fields`) without updating them, so they must stay correct when other fields change.
Times are wall-clock ms. Entry ids and indexes are inclusive unless a name ends in `_end`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TypeVar

import msgspec

from quire.metadata import unknown_fields
from quire.runtime.errors import CorruptionError


class Record(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all records: frozen; change one with `msgspec.structs.replace`."""

    unknown_fields: str = ""
    """JSON of the fields of a newer version; see `unknown_fields`."""


class ClusterRecord(Record, frozen=True):
    """Cluster of a metadata store; see `metadata.cluster`."""

    uuid: str
    created_ms: int = 0
    rescue_begun_ms: int = 0
    """Start of a rescue (`quire.rescue`), during which only bookies may start. 0: the metadata are complete."""
    archives: tuple[str, ...] = ()
    """Locations of archives with this cluster's marker; see `quire.identity.stores`."""
    log_stores: tuple[str, ...] = ()
    """Locations of stores for write-ahead logs with this cluster's marker."""
    copies: int = 0
    """Number of the last copy of these metadata; increased before the copy is uploaded. 0: no numbered copy yet."""
    outdated_by: int = 0
    """Number of a copy with newer metadata than this store, until an operator chooses. 0: no such copy is known."""


class LedgerState(StrEnum):
    """State of a ledger; the transitions are in `quire.ledger.states`."""

    OPEN = "open"
    IN_RECOVERY = "in-recovery"
    CLOSED = "closed"
    DELETING = "deleting"


class Fragment(Record, frozen=True):
    """Ensemble (str of BookieId) from `first_entry` on. The number of bookies is the fragment's write quorum."""

    first_entry: int
    bookies: tuple[str, ...]


class Hole(Record, frozen=True):
    """Range of lost entries that an operator gave up; see `ledger.loss`.

    `messages` is the exact number of lost messages if there is a block after the hole; else the number of entries.
    """

    first_entry: int
    last_entry: int
    first_index: int = 0
    messages: int = 0
    clock_ms: int = 0
    """Clock (ms) of the block before the hole, else of the block after it."""


class LedgerRecord(Record, frozen=True):
    """Ledger: the bookies that store its entries, and its end. `last_entry` and `bytes` are set when it is CLOSED."""

    ledger_id: int
    state: LedgerState = LedgerState.OPEN
    write_quorum: int = 1
    ack_quorum: int = 1
    fragments: tuple[Fragment, ...] = ()
    last_entry: int = -1
    bytes: int = 0
    former: tuple[str, ...] = ()
    """Bookies that were removed from all fragments, but may still have blocks when the ledger is deleted."""
    purpose: str = ""
    """Owner of the ledger: `topic:persistent://t/n/x`, `compacted:persistent://t/n/x` or `state:t/n/bundle`.

    A scrub uses it to find orphans, and a rescue to assign ledgers to topics and bundles.
    """
    generation: int = 0
    """Generation of the topic; 0 if it is unknown, or the ledger does not belong to a topic."""
    created_ms: int = 0
    closed_ms: int = 0
    nonce: int = -1
    """Random number, drawn when the ledger is created. It distinguishes two ledgers with the same id, which may be
    allocated twice after the metadata store was lost or restored. -1: created by a version without nonces.
    """
    holes: tuple[Hole, ...] = ()
    """Entries that were given up; a hole beyond `last_entry` contains entries after the end of the ledger."""


class ArchivePointer(Record, frozen=True):
    """Location of a sealed segment's object, and the checksum for its verification."""

    store: str
    """URL of the store: `file:///…` or `s3://bucket/prefix`."""
    name: str
    bytes: int
    crc: int
    archived_ms: int
    lost_messages: int = 0
    """Number of messages that had been given up before the upload; the object has blank blocks in their place."""
    upload: int = 0
    """Number of objects that were recorded for the segment before this one. It shows which of two objects is newer."""


class SegmentState(StrEnum):
    """State of a segment; the transitions are in `quire.metadata.segment_states`, the meanings in docs/topics.md."""

    ACTIVE = "active"
    SEALED = "sealed"
    FLUSHED = "flushed"
    ARCHIVED = "archived"
    RELEASED = "released"


class SegmentRecord(Record, frozen=True):
    """Segment: one ledger in a topic's list of ledgers. Its totals are final when it is sealed.

    `first_index` is the topic-wide index of its first message. `on_bookies` becomes False when the segment is released:
    then readers use the archive, and the bookies' copies are deleted.
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
    publish_min_ms: int = 0
    """Minimum publish time (clients' clocks) of its messages. 0: unknown, so a reader must not prune by it."""
    publish_max_ms: int = 0
    """Maximum publish time of its messages. 0: unknown, so a reader must not prune by it."""
    publish_ahead_ms: int | None = None
    """Maximum of (a message's publish time - its block's clock, set by the broker), in ms; negative if all are earlier.
    """
    archive: ArchivePointer | None = None
    on_bookies: bool = True

    @property
    def is_sealed(self) -> bool:
        return self.sealed_ms > 0


class CompactedRecord(Record, frozen=True):
    """Result of the last compaction of a topic; see `quire.serving.topic.compaction.compacted`.

    All messages up to the horizon were read; `horizon_index` is the index of the message after it. The ledger contains
    `entries` retained entries, which have `entries` + `extra_messages` messages, and after them `index_entries` entries
    that contain the index.
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
    """Last addition of partitions to a topic, up to `end` partitions; begun or finished at `at_ms`.

    It is in progress while the topic has fewer than `end` partitions. Clients may not know the partitions from `first`
    on, which include those of recent additions; see `quire.serving.operations.partitioned`.
    """

    first: int
    end: int
    at_ms: int = 0


class TopicRecord(Record, frozen=True):
    """Topic with its segments, oldest first; or a partitioned topic with its number of partitions.

    `partitions` > 0 makes it the parent of NAME-partition-0 ... and leaves `segments` empty. `manifests` contains the
    paths of immutable lists of older segments, oldest first. `generation` is drawn at random for each topic that is
    created with a name, so that cursors of a deleted topic are never used for its successor; generations have no order.
    A partition also contains its parent's generation (`parent_generation`).
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
    """Epoch of the last producer with exclusive access, from 0; -1: there was no such producer."""
    last_dropped: int = -1
    """Ledger id of the last empty segment that was removed from the list's end; later segments have greater ids."""

    @property
    def extent(self) -> int:
        """Number of partitions, including those that are being added."""
        return self.partitions if self.growth is None else max(self.partitions, self.growth.end)


class ManifestRecord(Record, frozen=True):
    """Immutable list of older segments of one topic."""

    segments: tuple[SegmentRecord, ...]


class StateLogRecord(Record, frozen=True):
    """Ledgers of a bundle's state log, oldest first; the first begins with a snapshot."""

    ledgers: tuple[int, ...] = ()
    split_into: tuple[str, str] | None = None
    """Paths of the two logs that continue this one after a split of the bundle; this log is not opened again."""


class SettingRecord(Record, frozen=True):
    """Setting of all brokers that an operator changed at run time; `value` is written as in a configuration file."""

    value: str


class TenantRecord(Record, frozen=True):
    name: str
    allowed_clusters: tuple[str, ...] = ()
    admin_roles: tuple[str, ...] = ()
    """Roles with all permissions in the tenant."""


class Storage(StrEnum):
    """Kind of storage of a ledger's blocks."""

    BOOKIES = "bookies"
    OBJECTS = "objects"
    """The write-ahead log on object storage of the broker that writes the ledger (`quire.wal`)."""


class PersistencePolicy(Record, frozen=True):
    """Replication of new ledgers: ensemble = write quorum. 0, or no `storage`, means the broker's default.

    The quorums apply to bookies. On object storage there is one copy, whose durability is up to the store.
    """

    write_quorum: int = 0
    ack_quorum: int = 0
    storage: Storage | None = None


class RetentionPolicy(Record, frozen=True):
    """Retention of acknowledged data; -1: unlimited, 0: none."""

    retention_ms: int = 0
    retention_bytes: int = 0


class BacklogQuota(Record, frozen=True):
    """Action at `limit_bytes` or `limit_ms` of unacknowledged data. -1: no limit."""

    limit_bytes: int = -1
    limit_ms: int = -1
    action: str = "producer_request_hold"


class InactiveTopicPolicy(Record, frozen=True):
    """Deletion of topics after `inactive_ms_max` without use; `mode` defines what counts as use."""

    enabled: bool = False
    mode: str = "delete_when_no_subscriptions"
    inactive_ms_max: int = 60_000


class DelayedDeliveryPolicy(Record, frozen=True):
    """Delayed delivery on shared subscriptions: whether it is enabled, its resolution, and the maximum delay.

    A longer delay is reduced to `delay_ms_max`; 0: no limit.
    """

    active: bool = True
    tick_ms: int = 20
    delay_ms_max: int = 0


class PublishRate(Record, frozen=True):
    """Maximum average publish rate of a topic, per second; 0: no limit."""

    messages_per_s: int = 0
    bytes_per_s: int = 0


class DispatchRate(Record, frozen=True):
    """Maximum average dispatch rate, per period of `period_s` seconds; 0: no limit."""

    messages: int = 0
    bytes: int = 0
    period_s: int = 1


class SubscribeRate(Record, frozen=True):
    """Maximum number of subscribe requests of each consumer, per period of `period_s` seconds; 0: no limit."""

    subscriptions: int = 0
    period_s: int = 30


class IcebergPolicy(Record, frozen=True):
    """Iceberg table that follows a topic. Empty fields are derived from the topic's name or the catalog."""

    catalog: str = ""
    """URL of the catalog; "" if no table follows the topic."""
    warehouse: str = ""
    namespace: str = ""
    table: str = ""


class Policies(Record, frozen=True):
    """Policies of a namespace or a topic.

    None means the value of the next higher level, finally the broker's default.
    """

    deduplication: bool | None = None
    persistence: PersistencePolicy | None = None
    retention: RetentionPolicy | None = None
    message_ttl_ms: int | None = None
    backlog_quota: BacklogQuota | None = None
    auto_topic_creation: bool | None = None
    schema_compatibility: str | None = None
    schema_auto_update: bool | None = None
    """True if clients may register schemas; otherwise, an operator adds them."""
    schema_enforced: bool | None = None
    """True if a topic with a schema refuses producers without one."""
    age_quota: BacklogQuota | None = None
    """Quota of Pulsar's type message_age; `backlog_quota` has the type destination_storage."""
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
    """Actions (produce, consume, functions) by role or pattern of roles."""
    subscription_permissions: dict[str, tuple[str, ...]] = {}
    """Namespaces only: roles by subscription; subscriptions that are not listed are open to all roles that may consume.
    """
    subscription_prefix: bool | None = None
    """Namespaces only: True if a subscription's name must begin with its role."""
    topics_max: int | None = None
    """Limit of topics in a namespace, counting partitions. For this and the following limits, 0 means no limit."""
    producers_max: int | None = None
    """Limit per topic, like the next three."""
    consumers_max: int | None = None
    consumers_per_subscription_max: int | None = None
    subscriptions_max: int | None = None
    unacked_messages_max: int | None = None
    """Limit per consumer."""
    auto_topic_partitions: int | None = None
    """Namespaces only: partitions of automatically created topics; None: such topics are not partitioned."""
    replication_clusters: tuple[str, ...] | None = None
    """Topics only: list of clusters, which can contain only this cluster."""
    subscription_types: tuple[str, ...] | None = None
    """Types of the subscriptions that consumers may use, by Pulsar's names."""
    auto_subscription_creation: bool | None = None
    """True if a consumer creates a durable subscription that does not exist."""
    subscribe_rate: SubscribeRate | None = None
    subscription_unacked_max: int | None = None
    """Limit of unacknowledged messages per shared subscription, over all of its consumers."""
    subscription_rates: dict[str, DispatchRate] = {}
    """Topics only: dispatch rates by subscription, each instead of `subscription_dispatch_rate`."""
    encryption_required: bool | None = None
    """Namespaces only: True if unencrypted messages are refused."""
    properties: dict[str, str] = {}
    """Namespaces only: properties for applications."""
    archive_lag_ms: int | None = None
    """Namespaces only: time for which bookies keep a segment after it was archived."""
    deduplication_snapshot_s: int | None = None
    """Maximum time between two deduplication snapshots while messages arrive; 0: no limit."""


class NamespaceRecord(Record, frozen=True):
    """Namespace. `boundaries` are the bundles' edges in the 32-bit hash space: eight hex digits each, ascending.

    While it is `deleting`, no topic can be created in it.
    """

    tenant: str
    name: str
    policies: Policies = Policies()
    boundaries: tuple[str, ...] = ("00000000", "ffffffff")
    deleting: bool = False


class BookieIntent(StrEnum):
    """Operator's intent for a bookie, in its identity record; see the transitions in `quire.metadata.bookie_states`."""

    STAY = ""
    DRAIN = "drain"
    """The bookie accepts no new blocks, and its data are copied to other bookies; then its record is removed."""
    GIVE_UP = "give-up"
    """The bookie is down and will not come back: its ledgers are copied from other bookies at once, unless it
    registers.
    """


class BookieRecord(Record, frozen=True):
    uuid: str
    incarnation: int
    rack: str = ""
    address: str = ""
    read_only: bool = False
    read_only_why: str = ""
    """Sentence for operators that names the full disk and the remedy."""
    takes_priority: bool = False
    """True if it accepts blocks of high priority while it is read-only."""
    short_of_space: bool = False
    """True while little space is left; it may still accept all blocks."""
    free_bytes: int = 0
    total_bytes: int = 0
    intent: BookieIntent = BookieIntent.STAY
    tls: bool = False
    """True if its address accepts TLS."""
    http_url: str = ""
    """URL of its HTTP port (/metrics and status); "" if it has none."""
    version: str = ""
    """Version of Quire, for operators only: code must not depend on it. "": a version that did not record it."""


class WalState(StrEnum):
    OPEN = "open"
    CLOSING = "closing"
    """A process is determining the log's end; the log's writer trims nothing more."""
    CLOSED = "closed"


class WalRecord(Record, frozen=True):
    """Record of a WAL, a write-ahead log on object storage; see `quire.wal`.

    Live blocks of data objects below `trim_seq` have been copied into *sets*: objects with blocks sorted by ledger.
    """

    uuid: str
    broker: str
    """Id of the broker that writes or has written it."""
    store: str
    """URL of the object store, without secrets."""
    state: WalState = WalState.OPEN
    trim_seq: int = 0
    end_seq: int = -1
    """End of a closed log: readers ignore objects from this sequence number on. The fence, if any, has this number."""
    lost: tuple[int, ...] = ()
    """Damaged data objects before the end that an operator gave up; readers skip them."""
    catalogue: str = ""
    """Name of the object that lists the log's sets; "" if there are no sets."""
    catalogue_crc: int = 0
    created_ms: int = 0
    is_registered: bool = False
    """True if its writer keeps a node at `paths.wal_writer`. Writers of older versions have no such node."""
    change_id: str = ""
    """Random id of the last change, by which a process recognizes its own write."""


class DamageRecord(Record, frozen=True):
    """Damage of a bookie's copy of a ledger, from `entry` on; repair creates another copy."""

    bookie: str
    ledger_id: int
    entry: int
    what: str = ""
    found_ms: int = 0


class UnderreplicatedRecord(Record, frozen=True):
    """Ledger that may lack copies or blocks. `damage` has a report per damaged copy; `reasons` are for operators."""

    ledger_id: int
    reasons: tuple[str, ...] = ()
    damage: tuple[DamageRecord, ...] = ()


class RepairRecord(Record, frozen=True):
    """Status of the repair coordinator. Counts are numbers of ledgers in the current audit or repair."""

    coordinator: str = ""
    state: str = "idle"
    """idle, looking (auditing all ledgers) or mending (repairing queued ledgers)."""
    ledgers: int = 0
    checked: int = 0
    repaired: int = 0
    bytes_copied: int = 0
    """Total since this process became the coordinator."""
    failed: int = 0
    error: str = ""
    """Error of the last failure in the current audit or repair."""
    left: dict[str, int] = {}
    """Number of ledgers that still had to be copied from each draining bookie at the end of the last audit."""
    open: int = 0
    """Number of queued ledgers that are open: their topics' owners must close them or change their ensembles."""
    unplaced: int = 0
    """Number of queued ledgers for which no other bookie could store a copy."""
    lost: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()
    """Bookies that are down, but not long enough to count as lost."""
    lost_ledgers: dict[int, str] = {}
    """Error message by id of each ledger with entries that no bookie can return; at most a hundred."""
    updated_ms: int = 0


class BrokerRecord(Record, frozen=True):
    broker_id: str
    service_url: str
    http_url: str
    started_ms: int = 0
    session: str = ""
    """Random id of the broker process; it changes at each start."""
    listeners: dict[str, str] = {}
    """URLs for clients in other networks, by listener name."""
    service_url_tls: str = ""
    """Service URL for TLS. This URL or `service_url` is empty if the broker does not open that port."""
    http_url_tls: str = ""
    listeners_tls: dict[str, str] = {}
    version: str = ""
    """See `BookieRecord.version`."""


class OwnerRecord(Record, frozen=True):
    """Owner of a bundle, with the time and the reason of the assignment."""

    broker: BrokerRecord
    since_ms: int = 0
    why: str = ""


class BundleReport(Record, frozen=True):
    """Report on one bundle of a broker; `quire.serving.ownership.balance` defines the unit of `load`."""

    load: float
    topics: int = 0
    since_ms: int = 0
    why: str = ""


class LoadRecord(Record, frozen=True):
    """Load report of a broker: a report for each of its bundles, by name. Written after a significant change."""

    bundles: dict[str, BundleReport] = {}
    lag_ms: int = 0
    """Maximum lag of its event loop in the last minute."""

    cannot_write: str = ""
    """Reason why the broker cannot write although bookies are running; "" if it can."""


R = TypeVar("R", bound=Record)


def field_names(kind: type[Record]) -> list[str]:
    """Return the names of a record's own fields."""
    return [name for name in kind.__struct_fields__ if name != unknown_fields.UNKNOWN_FIELDS]


def encode(record: Record) -> bytes:
    """Return a record as JSON bytes."""
    return unknown_fields.stored(msgspec.json.encode(record), type(record))


def decode(kind: type[R], value: bytes, path: str) -> R:
    """Return a record of `kind` from JSON bytes. Raises `CorruptionError`, which contains `path`."""
    try:
        try:
            return msgspec.json.decode(value, type=kind)
        except msgspec.ValidationError:
            return msgspec.json.decode(unknown_fields.carried(value, kind), type=kind)
    except (ValueError, RecursionError) as error:  # wrong fields, wrong UTF-8, too deep
        raise CorruptionError(f"metadata record {path} is not a {kind.__name__}: {error}") from error
