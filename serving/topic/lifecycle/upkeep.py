"""What a topic's policies do to it when nobody asks: the broker calls `look` every few seconds (`cluster/rounds`).

| policy | does |
|---|---|
| retention | drops segments from the front (`trimming`) |
| time to live | what is older counts as acknowledged, in every subscription |
| backlog quotas | hold producers off, or let subscriptions skip what is over (see `quota`) |
| compaction threshold | compacts when more was published since the last time (see `compaction`) |
| subscription expiration | deletes durable subscriptions that had no consumer for so long |
| inactive topics | says that the topic may be deleted: the registry does it |

Age is by the broker's clock in the blocks, which never runs backwards within a topic: "older than t" is one position
for all subscriptions, found through the list of segments and the ledger's index, and reading a block or two. Nothing
is done per message, and a policy that is off costs one comparison a tick.

Idle times are counted from when this broker loaded the topic, so a restart begins them anew: it deletes later, never
sooner.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from quire.metadata.records import BacklogQuota
from quire.runtime.clock import Clock
from quire.runtime.errors import NotFound, QuireError
from quire.serving.model.ports import ConsumerBusy, Position, SubscriptionPort
from quire.serving.topic.lifecycle import quota
from quire.wire import block as blocks

if TYPE_CHECKING:
    from quire.serving.topic.log import LedgerLog
    from quire.serving.topic.topic import AnyTopic, PersistentTopic

READ_BYTES: Final = 256 * 1024
COMPACT_AGAIN_S: Final = 300.0
"""After a compaction that failed: it reads the whole topic, and what stood in its way may stay there."""


class Upkeep:
    """One for each loaded topic."""

    __slots__ = ("_clock", "_compacted", "_older", "_used", "_without_consumer", "refusal")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._used = clock.monotonic()
        self._compacted = 0.0
        """When a compaction was begun last, by `monotonic`."""
        self._without_consumer: dict[str, float] | None = None
        """Since when; of durable subscriptions, while the policy is on."""
        self._older: dict[BacklogQuota, bool] = {}
        """Whether a subscription had older messages than a quota allows, when that was looked at last."""
        self.refusal: tuple[type[QuireError], str] | None = None
        """Why no producer is let in, if a backlog quota is exceeded."""

    def is_due(self, topic: PersistentTopic) -> bool:
        """Whether `look` has anything to do. Most topics have no policy that acts by itself."""
        policies = topic.applied.policies
        return bool(
            policies.message_ttl_ms > 0
            or policies.quotas
            or policies.subscription_expiration_ms > 0
            or policies.compaction_threshold_bytes > 0
            or policies.inactive_topics.enabled
            or topic.log.segment_list.sealed
        )

    async def look(self, topic: PersistentTopic) -> bool:
        """Do what is due. Whether the topic was not used for so long that it is to be deleted."""
        policies = topic.applied.policies
        if topic.is_closed:
            return False
        if policies.message_ttl_ms > 0:
            await self.expire(topic, policies.message_ttl_ms)
        if policies.quotas:
            await self._look_at_quotas(topic, policies.quotas)
        if policies.subscription_expiration_ms > 0:
            await self._expire_subscriptions(topic, policies.subscription_expiration_ms / 1000)
        self._compact_if_due(topic, policies.compaction_threshold_bytes)
        await self.trim(topic)
        return policies.inactive_topics.enabled and self._is_abandoned(topic)

    async def trim(self, topic: PersistentTopic) -> int:
        """Drop what retention and subscriptions no longer need. Returns how many segments went."""
        if topic.is_closed:
            return 0  # its subscriptions are gone from here, not from the topic: as it seems, nobody needs anything
        marks = [one.mark_delete for one in topic.subscriptions if one.is_durable]
        return await topic.log.trimming.trim(marks)

    # -- age -------------------------------------------------------------------------------------------

    async def expire(
        self, topic: PersistentTopic, older_than_ms: int, subscription: str | None = None
    ) -> None:
        """What is older counts as acknowledged: in one subscription, or in all."""
        first_kept = await first_since(topic.log, self._clock.now_ms() - older_than_ms)
        for one in topic.subscriptions:
            if subscription in (None, one.name):
                await _skip_to(topic.log, one, first_kept)

    # -- quotas ----------------------------------------------------------------------------------------

    async def _look_at_quotas(self, topic: PersistentTopic, quotas: tuple[BacklogQuota, ...]) -> None:
        older = {}
        for one in quotas:
            if one.action == quota.EVICTION:
                await self._evict(topic, one)
            older[one] = one.limit_ms >= 0 and await self._has_older(topic, one.limit_ms)
        self._older = older
        self.heed_quotas(topic)

    def heed_quotas(self, topic: AnyTopic) -> None:
        """Send producers away, or let them in again, by the backlog's bytes now, and its age as it was last seen.

        For whoever opens the door: without it a quota would hold from the next look on.
        """
        quotas = topic.applied.policies.quotas
        marks = [one.mark_delete for one in topic.subscriptions if one.is_durable] if quotas else []
        backlog_bytes = quota.backlog_bytes(topic.log.segments(), min(marks)) if marks else 0
        was_open = self.refusal is None
        older = [self._older.get(one, False) for one in quotas]
        self.refusal = quota.refusal(quotas, backlog_bytes, older)
        if self.refusal is not None and was_open:
            topic.producers.close_all()

    async def _has_older(self, topic: PersistentTopic, limit_ms: int) -> bool:
        log = topic.log
        since = await first_since(log, self._clock.now_ms() - limit_ms)
        return any(
            one.is_durable and log.next_position(one.mark_delete) < since for one in topic.subscriptions
        )

    async def _evict(self, topic: PersistentTopic, one: BacklogQuota) -> None:
        log, oldest_ms = topic.log, self._clock.now_ms() - one.limit_ms
        kept = [await first_since(log, oldest_ms)] if one.limit_ms >= 0 else []
        if one.limit_bytes >= 0:
            kept.append(quota.first_within(log.segments(), one.limit_bytes))
        for subscription in topic.subscriptions:
            if subscription.is_durable:
                await _skip_to(log, subscription, max(kept))

    # -- compaction ------------------------------------------------------------------------------------

    def _compact_if_due(self, topic: PersistentTopic, threshold_bytes: int) -> None:
        compaction = topic.log.compaction
        if threshold_bytes <= 0 or compaction.is_running:
            return
        now = self._clock.monotonic()
        if compaction.error and now - self._compacted < COMPACT_AGAIN_S:
            return
        if quota.backlog_bytes(topic.log.segments(), compaction.horizon) > threshold_bytes:
            self._compacted = now
            compaction.start(topic.subscriptions)

    # -- what nobody uses ------------------------------------------------------------------------------

    async def _expire_subscriptions(self, topic: PersistentTopic, expiration_s: float) -> None:
        now = self._clock.monotonic()
        idle = [one.name for one in topic.subscriptions if one.is_durable and not one.consumers]
        known = self._without_consumer or {}
        self._without_consumer = {name: known.get(name, now) for name in idle}
        for name, since in self._without_consumer.items():
            if now - since >= expiration_s:
                try:
                    await topic.subscriptions.delete(name)
                except (NotFound, ConsumerBusy):
                    pass  # somebody was faster

    def _is_abandoned(self, topic: PersistentTopic) -> bool:
        now = self._clock.monotonic()
        if is_active(topic):
            self._used = now
        return now - self._used >= topic.applied.policies.inactive_topics.inactive_ms_max / 1000


def is_active(topic: PersistentTopic) -> bool:
    """Whether the policy for inactive topics must let the topic be."""
    if topic.is_used:
        return True
    if topic.applied.policies.inactive_topics.mode == "delete_when_no_subscriptions":
        return len(topic.subscriptions) > 0
    log = topic.log
    return any(log.next_position(one.mark_delete) <= log.last_confirmed for one in topic.subscriptions)


async def first_since(log: LedgerLog, clock_ms: int) -> Position:
    """The first block that the broker cut at `clock_ms` or later, as its first entry; the end when there is none."""
    position = await log.find_clock(clock_ms)
    while position <= log.last_confirmed:
        found = log.cached(position) or await log.read(position, READ_BYTES)
        for block in found:
            header = blocks.peek(block)
            if header.clock_ms >= clock_ms:
                return Position(header.ledger_id, header.first_entry)
            position = log.next_position(Position(header.ledger_id, header.last_entry))
        if not found:
            raise NotFound(f"topic {log.name} has no block at confirmed {position}")
    return position


async def _skip_to(log: LedgerLog, subscription: SubscriptionPort, first_kept: Position) -> None:
    if log.next_position(subscription.mark_delete) < first_kept:
        await subscription.skip_up_to(Position(first_kept.ledger_id, first_kept.entry_id - 1))
