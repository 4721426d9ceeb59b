"""Unloading of idle topics, which no client has used for `topic_idle_ms_max`.

A loaded topic costs its broker about 9 KB of memory and an open ledger; an unloaded topic costs nothing. The next
client waits a few milliseconds for the load. A topic is idle if it has no producers, consumers or new messages. It
nevertheless stays loaded
- if it has policies that take effect as time passes (`upkeep`), because the broker enforces them on loaded topics only;
- if segments are being archived, or their copies are soon to be deleted from the bookies.

An active segment with messages is sealed first, which starts its archiving. The bookies keep an archived segment for
`archive_lag_ms` of the policies (for example an hour). The topic is unloaded during this time, and loaded again
afterwards (`recall_ms`).

Idle times count from the load. A non-persistent topic is unloaded if no client used it between two calls of
`is_unused`.
"""

from __future__ import annotations

from quire.serving.topic.topic import AnyTopic, PersistentTopic


def is_due(topic: PersistentTopic) -> bool:
    """Return whether the topic has been idle long enough to be unloaded. The broker calls this every few seconds."""
    state, messages_in = topic.round_state, topic.received.messages
    now = state.services.clock.monotonic()
    if topic.is_used or messages_in != state.messages_in:
        state.idle_since_s, state.messages_in = now, messages_in
    state.idle_since_s = max(state.idle_since_s, topic.last_used_s)
    idle_ms_max = state.services.settings.topic_idle_ms_max
    if not idle_ms_max or now - state.idle_since_s < idle_ms_max / 1000:
        return False
    return not _acts_by_itself(topic) and not _is_on_its_way(topic)


def is_unused(topic: AnyTopic) -> bool:
    """Return whether a non-persistent topic has had no producer or consumer since the last call."""
    state = topic.round_state
    since, state.checked_s = state.checked_s, state.services.clock.monotonic()
    return not topic.is_used and topic.last_used_s <= since


def recall_ms(topic: PersistentTopic) -> int | None:
    """Return the time (ms since 1970) when the bookies may delete all archived segments; None if they have none."""
    lag_ms = topic.applied.policies.archive_lag_ms
    kept = [
        one.archive.archived_ms
        for one in topic.log.segment_list.sealed
        if one.archive is not None and one.on_bookies
    ]
    return max(kept) + lag_ms if kept else None


def _is_on_its_way(topic: PersistentTopic) -> bool:
    """Return whether segments are being archived or will soon be deleted from the bookies.

    Seals the active segment first.
    """
    services = topic.round_state.services
    if services.archive is None:
        return False
    if topic.log.writing.roll() is not None:
        return True
    if any(segment.archive is None for segment in topic.log.segment_list.sealed):
        return True
    due_ms = recall_ms(topic)
    return due_ms is not None and due_ms <= services.clock.now_ms() + services.settings.topic_idle_ms_max


def _acts_by_itself(topic: PersistentTopic) -> bool:
    policies, retention = topic.applied.policies, topic.applied.policies.retention
    trims = retention.retention_ms >= 0 or retention.retention_bytes >= 0
    return bool(
        policies.message_ttl_ms
        or policies.quotas
        or policies.subscription_expiration_ms
        or policies.inactive_topics.enabled
        or topic.log.compaction.is_running
        or (trims and topic.log.confirmed_index > 0)
    )
