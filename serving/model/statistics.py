"""Statistics of topics as REST shows them: one struct for each JSON object, with Pulsar's field names in camel case.

Rates are per second, sizes in bytes, times in ms since 1970 (0: never), unless a field says otherwise. A field that is
`UNSET` is absent from the JSON. A `*Sums` struct contains the fields that are added up over a topic's partitions, a
`*Totals` struct all fields that a partitioned topic has. Statistics of partitions that another broker serves are parsed
from its JSON. So a new field needs a default, because a broker of an earlier version does not send it.

`docs/topics.md` lists the fields that Pulsar does not have.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self

from msgspec import UNSET, Struct, UnsetType, convert
from msgspec.structs import replace

from quire.metadata.records import SegmentRecord


class DispatchStats(Struct, rename="camel", kw_only=True):
    """Messages that were dispatched to a consumer, or by a subscription.

    The rates are averages over about the last ten seconds.
    """

    msg_rate_out: float
    msg_throughput_out: float
    msg_rate_redeliver: float
    message_ack_rate: float
    msg_out_counter: int
    bytes_out_counter: int
    last_consumed_flow_timestamp: int


class ConsumerStats(DispatchStats, kw_only=True):
    consumer_name: str
    available_permits: int
    unacked_messages: int
    blocked_reason: str
    """Reason why the consumer gets no messages; see `dispatch/blocked`."""
    blocked_consumer_on_unacked_msgs: bool
    priority_level: int
    address: str
    client_version: str
    connected_since: str
    metadata: Mapping[str, str]
    key_hash_ranges: list[str] | UnsetType = UNSET
    """Slot ranges of the consumer; set for a Key_Shared subscription only."""


class SubscriptionSums(Struct, rename="camel", kw_only=True):
    """Fields of a subscription that are added up over partitions."""

    msg_backlog: int
    backlog_size: int
    unacked_messages: int
    msg_rate_out: float
    msg_throughput_out: float
    msg_rate_redeliver: float
    msg_out_counter: int
    bytes_out_counter: int
    lost_messages: int
    """Messages that were lost and given up by an operator, and that the subscription skipped."""


class SubscriptionTotals(SubscriptionSums, kw_only=True):
    """Statistics of a subscription over all partitions of a topic."""

    type: str
    is_durable: bool
    consumers: list[ConsumerStats]
    consumers_after_mark_delete_position: dict[str, str] = {}
    """Always empty, because a new consumer waits until keys have drained, not until mark-delete passes a position."""
    earliest_msg_publish_time_in_backlog: int
    last_consumed_flow_timestamp: int

    @classmethod
    def merge(cls, partitions: Sequence[SubscriptionTotals]) -> SubscriptionTotals:
        """Add up the statistics of one subscription over several partitions. Its type is the same on all of them."""
        backlogs = (one.earliest_msg_publish_time_in_backlog for one in partitions)
        return SubscriptionTotals(
            **_sums(SubscriptionSums, partitions),
            type=partitions[0].type,
            is_durable=partitions[0].is_durable,
            consumers=[consumer for one in partitions for consumer in one.consumers],
            earliest_msg_publish_time_in_backlog=earliest(backlogs),
            last_consumed_flow_timestamp=max(one.last_consumed_flow_timestamp for one in partitions),
        )


class SubscriptionStats(SubscriptionTotals, kw_only=True):
    """Statistics of a subscription of an unpartitioned topic or of one partition."""

    msg_backlog_exact: bool
    """False if blocks could not be read; `msg_backlog` is then an estimate, and `last_read_error` has the reason."""
    backlog_size_exact: bool
    oldest_backlog_message_age_seconds: int | None
    """Age of the oldest unacknowledged message; -1 if there is no backlog, None if it cannot be read now."""
    msg_delayed: int
    blocked_reason: str
    """Reason why no messages are dispatched; see `dispatch/blocked`."""
    blocked_subscription_on_unacked_msgs: bool
    active_consumer_name: str | None
    non_contiguous_deleted_messages_ranges: int
    subscription_properties: Mapping[str, str]
    last_read_error: str
    message_ack_rate: float
    msg_drop_rate: float | UnsetType = UNSET
    """Rate of messages dropped because no consumer could receive them; set for a non-persistent topic only."""
    msg_drop_counter: int | UnsetType = UNSET
    key_shared_mode: str | UnsetType = UNSET
    """Set for a Key_Shared subscription only, like the next two fields."""
    allow_out_of_order_delivery: bool | UnsetType = UNSET
    draining_hashes_count: int | UnsetType = UNSET


class PublisherStats(Struct, rename="camel", kw_only=True):
    producer_id: int
    producer_name: str
    access_mode: str
    address: str
    client_version: str
    connected_since: str
    metadata: Mapping[str, str]
    msg_rate_in: float
    msg_throughput_in: float
    average_msg_size: float
    entries_in: int


class ArchivedObject(Struct):
    """Location of a segment's object in the archive."""

    store: str
    name: str
    bytes: int
    crc: int

    @classmethod
    def of(cls, segment: SegmentRecord) -> Self | None:
        return None if segment.archive is None else convert(segment.archive, cls, from_attributes=True)


class DamagedSegment(Struct, rename="camel"):
    topic: str
    ledger_id: int
    archive: ArchivedObject | None
    damage: str


class TopicSums(Struct, rename="camel", kw_only=True):
    """Fields of a topic that are added up over partitions."""

    msg_rate_in: float
    msg_throughput_in: float
    msg_rate_out: float
    msg_throughput_out: float
    bytes_in_counter: int
    msg_in_counter: int
    bytes_out_counter: int
    msg_out_counter: int
    storage_size: int
    backlog_size: int
    """Backlog, in bytes, of the subscription that is furthest behind."""
    offloaded_storage_size: int


class TopicTotals(TopicSums, kw_only=True):
    """Fields that a topic and a partitioned topic have in common."""

    damaged_segments: list[DamagedSegment] = []
    lost_for_good: list[str] = []
    """Error text of each ledger whose data are lost."""
    topic_creation_time_stamp: int | UnsetType = UNSET
    """Set for a persistent topic only, like the next field."""
    last_publish_time_stamp: int | UnsetType = UNSET
    earliest_msg_publish_time_in_backlogs: int
    oldest_backlog_message_age_seconds: int
    """Age of the oldest unacknowledged message of all subscriptions; -1 if there is no backlog."""
    oldest_backlog_message_subscription_name: str | None
    publishers: list[PublisherStats]
    subscriptions: Mapping[str, SubscriptionTotals]
    replication: dict[str, str] = {}
    """Always empty: nothing is replicated to other clusters."""

    def without(self, *, publishers: bool, consumers: bool) -> Self:
        """Remove publishers and consumers if the caller excluded them."""
        shown = replace(self, publishers=[]) if publishers else self
        if not consumers:
            return shown
        left = {name: replace(one, consumers=[]) for name, one in self.subscriptions.items()}
        return replace(shown, subscriptions=left)


class TopicStats(TopicTotals, kw_only=True):
    """Statistics of an unpartitioned topic or of one partition."""

    subscriptions: Mapping[str, SubscriptionStats]
    average_msg_size: float
    publish_rate_limited_times: int
    deduplication_status: str
    msg_drop_rate: float | UnsetType = UNSET
    """Rate of messages dropped because no consumer could receive them; set for a non-persistent topic only."""
    msg_drop_counter: int | UnsetType = UNSET


class PartitionedMetadata(Struct):
    """Metadata of a partitioned topic."""

    partitions: int
    deleted: bool
    properties: Mapping[str, str]


class PartitionedTopicStats(TopicTotals, kw_only=True):
    """Sums over the used partitions, and the statistics of each used partition by its full name."""

    metadata: PartitionedMetadata
    partitions: Mapping[str, TopicStats]

    @classmethod
    def merge(cls, metadata: PartitionedMetadata, partitions: Mapping[str, TopicStats]) -> Self:
        """Add up the statistics of a topic's partitions."""
        every = list(partitions.values())
        subscriptions: dict[str, list[SubscriptionStats]] = {}
        for name, subscription in (each for one in every for each in one.subscriptions.items()):
            subscriptions.setdefault(name, []).append(subscription)
        created = [at for one in every if (at := one.topic_creation_time_stamp) is not UNSET]
        published = [at for one in every if (at := one.last_publish_time_stamp) is not UNSET]
        age_s, oldest = oldest_of(
            (one.oldest_backlog_message_age_seconds, one.oldest_backlog_message_subscription_name)
            for one in every
        )
        return cls(
            **_sums(TopicSums, every),
            damaged_segments=[each for one in every for each in one.damaged_segments],
            lost_for_good=[each for one in every for each in one.lost_for_good],
            topic_creation_time_stamp=earliest(created) if created else UNSET,
            last_publish_time_stamp=max(published) if published else UNSET,
            earliest_msg_publish_time_in_backlogs=earliest(
                one.earliest_msg_publish_time_in_backlogs for one in every
            ),
            oldest_backlog_message_age_seconds=age_s,
            oldest_backlog_message_subscription_name=oldest,
            publishers=[each for one in every for each in one.publishers],
            subscriptions={name: SubscriptionTotals.merge(some) for name, some in subscriptions.items()},
            metadata=metadata,
            partitions=partitions,
        )

    def without(self, *, publishers: bool, consumers: bool) -> Self:
        shown = super().without(publishers=publishers, consumers=consumers)
        each = self.partitions.items()
        left = {name: one.without(publishers=publishers, consumers=consumers) for name, one in each}
        return replace(shown, partitions=left)


class CursorStats(Struct, rename="camel", kw_only=True):
    """Cursor of a subscription; positions are `ledger:entry`."""

    mark_delete_position: str
    read_position: str
    individually_deleted_messages: str
    """The first ranges of acknowledged entries after mark-delete."""
    total_non_contiguous_deleted_messages_range: int
    properties: dict[str, int] = {}
    """Always empty: Pulsar's clients expect numeric properties of the cursor here, and fail to parse strings."""
    subscription_properties: Mapping[str, str]
    state: str = "Open"


class LedgerStats(Struct, rename="camel", kw_only=True):
    """Statistics of one segment of a topic."""

    ledger_id: int
    entries: int
    messages: int
    size: int
    first_index: int
    """Topic-wide index of the first message."""
    created_ms: int
    sealed_ms: int
    offloaded: bool
    on_bookies: bool
    state: str
    """Name of the segment's `SegmentState`."""
    archive: ArchivedObject | None
    lost_messages: int
    """Lost messages that an operator gave up."""
    lost_for_good: str
    """Error text if data of the ledger are lost; otherwise an empty string."""
    damage: str
    """Damage of the archived object that this broker found."""


class CompactedLedger(Struct, rename="camel"):
    """Result of compaction; its numbers are -1 in a topic that was never compacted."""

    ledger_id: int = -1
    entries: int = -1
    size: int = -1
    offloaded: bool = False
    horizon: str | UnsetType = UNSET
    """Position up to which compaction has read."""


class InternalStats(Struct, rename="camel", kw_only=True):
    entries_added_counter: int
    number_of_entries: int
    number_of_messages: int
    total_size: int
    current_ledger_entries: int
    current_ledger_size: int
    last_confirmed_entry: str
    state: str
    ledgers: list[LedgerStats]
    compacted_ledger: CompactedLedger
    cursors: Mapping[str, CursorStats]


class PartitionedInternalStats(Struct):
    """Internal statistics of each used partition, by its full name."""

    metadata: PartitionedMetadata
    partitions: Mapping[str, InternalStats]


class CompactionStatus(Struct, rename="camel"):
    status: str = "NOT_RUN"
    last_error: str = ""


class MessagePosition(Struct, rename="camel", frozen=True):
    """Position in the JSON of Pulsar's message ids; (-1, -1) if there is none."""

    ledger_id: int = -1
    entry_id: int = -1
    partition_index: int = -1


class OffloadProcessStatus(Struct, rename="camel", frozen=True):
    """Status of the last request to archive a topic's segments."""

    status: str = "NOT_RUN"
    last_error: str = ""
    first_unoffloaded_message: MessagePosition = MessagePosition()
    """Position of the first entry that is not archived, after a request that succeeded."""


class BacklogAnalysis(Struct, rename="camel"):
    """Contents of a subscription's backlog. Entry filters are not supported, so every entry counts as accepted."""

    entries: int = 0
    messages: int = 0
    filter_rejected_entries: int = 0
    filter_accepted_entries: int = 0
    filter_rescheduled_entries: int = 0
    filter_rejected_messages: int = 0
    filter_accepted_messages: int = 0
    filter_rescheduled_messages: int = 0
    aborted: bool = False
    """True if a limit on entries or time ended the scan before the end of the backlog."""
    first_message_id: str | None = None
    """First and last scanned entry, `ledger:entry`; None for an empty backlog, and for a partitioned topic."""
    last_message_id: str | None = None

    @classmethod
    def of(cls, entries: int, messages: int, first: str = "", last: str = "", *, aborted: bool) -> Self:
        return cls(
            entries=entries,
            messages=messages,
            filter_accepted_entries=entries,
            filter_accepted_messages=messages,
            aborted=aborted,
            first_message_id=first or None,
            last_message_id=last or None,
        )


def _sums(fields: type[Struct], rows: Sequence[Struct]) -> dict[str, Any]:
    """Add up, over `rows`, each field that the struct `fields` has."""
    return {name: sum(getattr(one, name) for one in rows) for name in fields.__struct_fields__}


def earliest(times: Iterable[int]) -> int:
    """Return the earliest time, ignoring zeros; 0 if all are 0."""
    return min(filter(None, times), default=0)


def oldest_of(rows: Iterable[tuple[int | None, str | None]]) -> tuple[int, str | None]:
    """Return the greatest backlog age of `rows` (age in seconds, subscription) and its subscription, or -1 and None."""
    known = ((age_s, name) for age_s, name in rows if age_s is not None and age_s >= 0)
    return max(known, default=(-1, None), key=lambda one: one[0])
