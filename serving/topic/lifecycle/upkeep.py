"""What a topic's policies do to it when nobody asks: the broker calls `look` every few seconds (`cluster/rounds`).

| policy | does |
|---|---|
| retention | drops segments from the front (`Topic.trim`) |
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
from quire.runtime.errors import NotFound
from quire.serving.model.ports import ConsumerBusy, Position, SubscriptionPort
from quire.serving.topic.lifecycle import quota
from quire.wire import block as blocks

if TYPE_CHECKING:
    from quire.serving.topic.topic import Topic

READ_BYTES: Final = 256 * 1024
COMPACT_AGAIN_S: Final = 300.0
"""After a compaction that failed: it reads the whole topic, and what stood in its way may stay there."""


class Upkeep:
    """One for each loaded topic."""

    __slots__ = ("_clock", "_compacted", "_older", "_topic", "_used", "_without_consumer")

    def __init__(self, topic: Topic, clock: Clock) -> None:
        self._topic = topic
        self._clock = clock
        self._used = clock.monotonic()
        self._compacted = 0.0
        """When a compaction was begun last, by `monotonic`."""
        self._without_consumer: dict[str, float] | None = None
        """Since when; of durable subscriptions, while the policy is on."""
        self._older: dict[BacklogQuota, bool] = {}
        """Whether a subscription had older messages than a quota allows, when that was looked at last."""

    def is_due(self) -> bool:
        """Whether `look` has anything to do. Most topics have no policy that acts by itself."""
        topic, policies = self._topic, self._topic.policies
        return bool(
            policies.message_ttl_ms > 0
            or policies.quotas
            or policies.subscription_expiration_ms > 0
            or policies.compaction_threshold_bytes > 0
            or policies.inactive_topics.enabled
            or topic.segment_list.sealed
        )

    async def look(self) -> bool:
        """Do what is due. Whether the topic was not used for so long that it is to be deleted."""
        topic, policies = self._topic, self._topic.policies
        if topic.is_closed:
            return False
        if policies.message_ttl_ms > 0:
            await self.expire(policies.message_ttl_ms)
        if policies.quotas:
            await self._look_at_quotas(policies.quotas)
        if policies.subscription_expiration_ms > 0:
            await self._expire_subscriptions(policies.subscription_expiration_ms / 1000)
        self._compact_if_due(policies.compaction_threshold_bytes)
        await topic.trim()
        return policies.inactive_topics.enabled and self._is_abandoned()

    # -- age -------------------------------------------------------------------------------------------

    async def expire(self, older_than_ms: int, subscription: str | None = None) -> None:
        """What is older counts as acknowledged: in one subscription, or in all."""
        first_kept = await first_since(self._topic, self._clock.now_ms() - older_than_ms)
        for one in self._topic.subscriptions:
            if subscription in (None, one.name):
                await self._skip_to(one, first_kept)

    async def _skip_to(self, subscription: SubscriptionPort, first_kept: Position) -> None:
        if self._topic.next_position(subscription.mark_delete) < first_kept:
            await subscription.skip_up_to(Position(first_kept.ledger_id, first_kept.entry_id - 1))

    # -- quotas ----------------------------------------------------------------------------------------

    async def _look_at_quotas(self, quotas: tuple[BacklogQuota, ...]) -> None:
        older = {}
        for one in quotas:
            if one.action == quota.EVICTION:
                await self._evict(one)
            older[one] = one.limit_ms >= 0 and await self._has_older(one.limit_ms)
        self._older = older
        self.heed_quotas()

    def heed_quotas(self) -> None:
        """Send producers away, or let them in again, by the backlog's bytes now, and its age as it was last seen.

        For whoever opens the door: without it a quota would hold from the next look on.
        """
        topic, quotas = self._topic, self._topic.policies.quotas
        marks = [one.mark_delete for one in topic.subscriptions if one.is_durable] if quotas else []
        backlog_bytes = quota.backlog_bytes(topic.segments(), min(marks)) if marks else 0
        was_open = topic.refusal is None
        older = [self._older.get(one, False) for one in quotas]
        topic.refusal = quota.refusal(quotas, backlog_bytes, older)
        if topic.refusal is not None and was_open:
            topic.producers.close_all()

    async def _has_older(self, limit_ms: int) -> bool:
        topic = self._topic
        since = await first_since(topic, self._clock.now_ms() - limit_ms)
        return any(
            one.is_durable and topic.next_position(one.mark_delete) < since for one in topic.subscriptions
        )

    async def _evict(self, one: BacklogQuota) -> None:
        topic = self._topic
        kept = [await first_since(topic, self._clock.now_ms() - one.limit_ms)] if one.limit_ms >= 0 else []
        if one.limit_bytes >= 0:
            kept.append(quota.first_within(topic.segments(), one.limit_bytes))
        for subscription in topic.subscriptions:
            if subscription.is_durable:
                await self._skip_to(subscription, max(kept))

    # -- compaction ------------------------------------------------------------------------------------

    def _compact_if_due(self, threshold_bytes: int) -> None:
        compaction = self._topic.compaction
        if threshold_bytes <= 0 or compaction.is_running:
            return
        now = self._clock.monotonic()
        if compaction.error and now - self._compacted < COMPACT_AGAIN_S:
            return
        if quota.backlog_bytes(self._topic.segments(), compaction.horizon) > threshold_bytes:
            self._compacted = now
            compaction.start()

    # -- what nobody uses ------------------------------------------------------------------------------

    async def _expire_subscriptions(self, expiration_s: float) -> None:
        now = self._clock.monotonic()
        idle = [one.name for one in self._topic.subscriptions if one.is_durable and not one.consumers]
        known = self._without_consumer or {}
        self._without_consumer = {name: known.get(name, now) for name in idle}
        for name, since in self._without_consumer.items():
            if now - since >= expiration_s:
                try:
                    await self._topic.subscriptions.delete(name)
                except (NotFound, ConsumerBusy):
                    pass  # somebody was faster

    @property
    def is_used(self) -> bool:
        """Whether the policy for inactive topics must let the topic be."""
        topic = self._topic
        if topic.is_used:
            return True
        if topic.policies.inactive_topics.mode == "delete_when_no_subscriptions":
            return len(topic.subscriptions) > 0
        return any(
            topic.next_position(one.mark_delete) <= topic.last_confirmed for one in topic.subscriptions
        )

    def _is_abandoned(self) -> bool:
        now = self._clock.monotonic()
        if self.is_used:
            self._used = now
        return now - self._used >= self._topic.policies.inactive_topics.inactive_ms_max / 1000


async def first_since(topic: Topic, clock_ms: int) -> Position:
    """The first block that the broker cut at `clock_ms` or later, as its first entry; the end when there is none."""
    position = await topic.find_clock(clock_ms)
    while position <= topic.last_confirmed:
        found = topic.cached(position) or await topic.read(position, READ_BYTES)
        for block in found:
            header = blocks.peek(block)
            if header.clock_ms >= clock_ms:
                return Position(header.ledger_id, header.first_entry)
            position = topic.next_position(Position(header.ledger_id, header.last_entry))
        if not found:
            raise NotFound(f"topic {topic.name} has no block at confirmed {position}")
    return position
