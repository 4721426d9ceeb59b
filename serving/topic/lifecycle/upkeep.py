"""Enforcement of a topic's policies over time: the broker calls `look` every few seconds (`registry/rounds`).

| policy | action |
|---|---|
| retention | trims the oldest segments (`trimming`) |
| time to live | acknowledges older messages in every subscription |
| backlog quotas | close producers, or make subscriptions skip the excess (see `quota`) |
| deduplication snapshot interval | takes a snapshot if the latest one is older and messages have arrived since |
| compaction threshold | compacts if more bytes were published since the last compaction (see `compaction`) |
| subscription expiration | deletes durable subscriptions that had no consumer for the configured time |
| inactive topics | reports that the topic is to be deleted: the registry deletes it |

Age is measured by the broker's clock in the blocks, which never decreases within a topic. So "older than t" is one
position for all subscriptions, found through the list of segments, the ledger's time index and one or two blocks. There
is no work per message, and a disabled policy costs one comparison per round.

Idle times count from the moment at which the last producer or consumer was detached (`last_used_s`), or from the load:
a restart of the broker can delay a deletion, but never cause an earlier one.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

from quire.metadata.records import BacklogQuota
from quire.runtime.errors import InUse, NotFound
from quire.serving.model.ports import ConsumerBusy, Position, SubscriptionPort, was_unloaded
from quire.serving.topic.lifecycle import quota
from quire.serving.topic.log import LedgerLog
from quire.serving.topic.topic import PersistentTopic
from quire.wire import block as blocks

READ_BYTES: Final = 256 * 1024
COMPACT_AGAIN_S: Final = 300.0
"""Minimum time, in seconds, from the start of a failed compaction to the next attempt.

Each attempt reads the whole topic, and the cause of the failure may persist.
"""


def is_due(topic: PersistentTopic) -> bool:
    """Return whether `look` has anything to do. Most topics have no policy that takes effect as time passes."""
    policies = topic.applied.policies
    return bool(
        policies.message_ttl_ms > 0
        or policies.quotas
        or policies.subscription_expiration_ms > 0
        or policies.compaction_threshold_bytes > 0
        or (policies.deduplication_snapshot_s > 0 and topic.log.dedup is not None)
        or policies.inactive_topics.enabled
        or topic.log.segment_list.sealed
    )


async def look(topic: PersistentTopic) -> bool:
    """Enforce all policies. Return whether the topic is to be deleted as inactive."""
    policies = topic.applied.policies
    if topic.is_closed:
        return False
    if policies.message_ttl_ms > 0:
        await expire(topic, policies.message_ttl_ms)
    if policies.quotas:
        await _look_at_quotas(topic, policies.quotas)
    if policies.subscription_expiration_ms > 0:
        await _expire_subscriptions(topic, policies.subscription_expiration_ms / 1000)
    if policies.deduplication_snapshot_s > 0 and topic.log.dedup is not None:
        topic.log.dedup.snapshot_if_older(policies.deduplication_snapshot_s)
    _compact_if_due(topic, policies.compaction_threshold_bytes)
    await trim(topic)
    return policies.inactive_topics.enabled and is_abandoned(topic)


async def trim(topic: PersistentTopic, *, even_retained: bool = False) -> int:
    """Delete segments that neither retention nor a subscription requires; return their number.

    With `even_retained`, the retention policy is ignored.
    """
    if topic.is_closed:
        return 0  # The topic's subscriptions are closed, so every segment would seem to be acknowledged.
    marks = [one.mark_delete for one in topic.subscriptions if one.is_durable]
    return await topic.log.trimming.trim(marks, even_retained=even_retained)


async def truncate(topic: PersistentTopic) -> int:
    """Delete all messages published so far, whatever the retention policy; return the number of deleted segments.

    Every subscription is moved to the end first, durably. A subscription that is created or moved back meanwhile keeps
    its messages. The result of the last compaction stays. Raises `InUse` during a compaction, `Unavailable` if the
    topic is closed.
    """
    log = topic.log
    if log.compaction.is_running:
        raise InUse(f"topic {topic.name} is being compacted; truncate it after the compaction")
    await _seal_up_to(topic, log.last_confirmed)
    sealed = log.segment_list.sealed
    if sealed:
        end = Position(sealed[-1].ledger_id, sealed[-1].last_entry)
        for one in topic.subscriptions:
            with suppress(NotFound):  # meanwhile another request deleted it
                await one.skip_up_to(end)
        if log.dedup is not None:
            await log.dedup.save_snapshot()
    if topic.is_closed:
        raise was_unloaded(topic.name)
    return await trim(topic, even_retained=True)


async def _seal_up_to(topic: PersistentTopic, last: Position) -> None:
    """Seal the segment that contains `last`, if it is active. A roll in progress may have begun before `last`."""
    log = topic.log
    while not topic.is_closed and last.entry_id >= 0:
        active = log.segment_list.active
        rolling = log.writing.roll() if active is not None and active.ledger_id == last.ledger_id else None
        if rolling is None:
            return
        await asyncio.wait([rolling])  # the roll is cancelled if the topic is dropped meanwhile


async def expire(topic: PersistentTopic, older_than_ms: int, subscription: str | None = None) -> None:
    """Acknowledge messages older than `older_than_ms` in one subscription, or in all."""
    first_kept = await first_since(topic.log, topic.round_state.services.clock.now_ms() - older_than_ms)
    for one in topic.subscriptions:
        if subscription in (None, one.name):
            await _skip_to(topic.log, one, first_kept)


async def _look_at_quotas(topic: PersistentTopic, quotas: tuple[BacklogQuota, ...]) -> None:
    older = {}
    for one in quotas:
        if one.action == quota.EVICTION:
            await _evict(topic, one)
        older[one] = one.limit_ms >= 0 and await _has_older(topic, one.limit_ms)
    topic.round_state.has_older = older
    topic.enforce_quotas()


async def _has_older(topic: PersistentTopic, limit_ms: int) -> bool:
    log = topic.log
    since = await first_since(log, topic.round_state.services.clock.now_ms() - limit_ms)
    return any(one.is_durable and log.next_position(one.mark_delete) < since for one in topic.subscriptions)


async def _evict(topic: PersistentTopic, one: BacklogQuota) -> None:
    log, oldest_ms = topic.log, topic.round_state.services.clock.now_ms() - one.limit_ms
    kept = [await first_since(log, oldest_ms)] if one.limit_ms >= 0 else []
    if one.limit_bytes >= 0:
        kept.append(quota.first_within(log.segments(), one.limit_bytes))
    for subscription in topic.subscriptions:
        if subscription.is_durable:
            await _skip_to(log, subscription, max(kept))


def _compact_if_due(topic: PersistentTopic, threshold_bytes: int) -> None:
    compaction = topic.log.compaction
    if threshold_bytes <= 0 or compaction.is_running:
        return
    now = topic.round_state.services.clock.monotonic()
    if compaction.error and now - topic.round_state.compaction_began_s < COMPACT_AGAIN_S:
        return
    if quota.backlog_bytes(topic.log.segments(), compaction.horizon) > threshold_bytes:
        topic.round_state.compaction_began_s = now
        compaction.start(topic.subscriptions)


async def _expire_subscriptions(topic: PersistentTopic, expiration_s: float) -> None:
    unused_since = topic.round_state.services.clock.monotonic() - expiration_s
    for one in topic.subscriptions:
        if one.is_durable and not one.consumers and one.last_used_s <= unused_since:
            try:
                await topic.subscriptions.delete(one.name)
            except (NotFound, ConsumerBusy):
                pass  # meanwhile another request deleted it, or a consumer subscribed


def is_abandoned(topic: PersistentTopic) -> bool:
    """Return whether the policy for inactive topics requires the topic's deletion now."""
    now = topic.round_state.services.clock.monotonic()
    if is_active(topic):
        topic.round_state.in_use_s = now
    unused_s = now - max(topic.round_state.in_use_s, topic.last_used_s)
    return unused_s >= topic.applied.policies.inactive_topics.inactive_ms_max / 1000


def is_active(topic: PersistentTopic) -> bool:
    """Return whether the topic counts as active for the policy for inactive topics."""
    if topic.is_used:
        return True
    if topic.applied.policies.inactive_topics.mode == "delete_when_no_subscriptions":
        return len(topic.subscriptions) > 0
    log = topic.log
    return any(log.next_position(one.mark_delete) <= log.last_confirmed for one in topic.subscriptions)


async def first_since(log: LedgerLog, clock_ms: int) -> Position:
    """Return the first entry of the first block cut at `clock_ms` or later.

    Return the end of the log if there is no such block.
    """
    position = await log.find_clock(clock_ms)
    while position <= log.last_confirmed:
        found = log.cached(position) or await log.read(position, READ_BYTES)
        for block in found:
            header = blocks.peek(block)
            if header.clock_ms >= clock_ms:
                return Position(header.ledger_id, header.first_entry)
            position = log.next_position(Position(header.ledger_id, header.last_entry))
        if not found:
            raise NotFound(f"topic {log.name} has no block at {position}, although that entry was confirmed")
    return position


async def _skip_to(log: LedgerLog, subscription: SubscriptionPort, first_kept: Position) -> None:
    if log.next_position(subscription.mark_delete) < first_kept:
        await subscription.skip_up_to(Position(first_kept.ledger_id, first_kept.entry_id - 1))
