"""When a topic is unloaded though nobody asked for that: after it was idle for long, and if nothing needs it loaded.

A loaded topic costs its broker some 9 KB and an open ledger, an unloaded one nothing; the next who asks for it waits
for a load, some milliseconds. Idle is a topic without producers, consumers and new messages. What needs it loaded
all the same:

- policies that act by themselves as time passes (`upkeep`): they are looked at in loaded topics only;
- segments on their way to the archive, or off the bookies. A segment with messages is sealed first, for that to begin.
  But the bookies keep an archived segment for an hour, say, and to wait for that nothing needs to be loaded: the topic
  rests, and is recalled (`recall_ms`) when it is over.

Idle times are counted from the load on. A topic that keeps nothing goes sooner: when it is not used at two looks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quire.serving.topic.services import Services

if TYPE_CHECKING:
    from quire.serving.topic.topic import AnyTopic, PersistentTopic


class IdleUnload:
    """When one topic is unloaded; one for each that is loaded."""

    __slots__ = ("_messages_in", "_services", "_since", "_was_unused")

    def __init__(self, services: Services) -> None:
        self._services = services
        self._since = services.clock.monotonic()
        self._messages_in = 0
        self._was_unused = False

    def is_due(self, topic: PersistentTopic) -> bool:
        """The topic may be unloaded now; to be asked every few seconds."""
        now, messages_in = self._services.clock.monotonic(), topic.received.messages
        if topic.is_used or messages_in != self._messages_in:
            self._since, self._messages_in = now, messages_in
        idle_ms_max = self._services.settings.topic_idle_ms_max
        if not idle_ms_max or now - self._since < idle_ms_max / 1000:
            return False
        return not _acts_by_itself(topic) and not self._is_on_its_way(topic)

    def is_unused(self, topic: AnyTopic) -> bool:
        """Nobody publishes or consumes, and nobody did when this was asked before; of one that keeps nothing."""
        was_unused, self._was_unused = self._was_unused, not topic.is_used
        return was_unused and self._was_unused

    def _is_on_its_way(self, topic: PersistentTopic) -> bool:
        """To the archive, or off the bookies soon; seals what is not sealed yet."""
        if self._services.archive is None:
            return False
        if topic.log.writing.roll() is not None:
            return True
        if any(segment.archive is None for segment in topic.log.segment_list.sealed):
            return True
        wait_ms = self._services.settings.topic_idle_ms_max
        recall_ms = self.recall_ms(topic)
        return recall_ms is not None and recall_ms <= self._services.clock.now_ms() + wait_ms

    def recall_ms(self, topic: PersistentTopic) -> int | None:
        """When all that is archived may go from the bookies, in ms since 1970; None when nothing is there."""
        lag_ms = self._services.settings.archive_lag_ms
        kept = [
            one.archive.archived_ms
            for one in topic.log.segment_list.sealed
            if one.archive is not None and one.on_bookies
        ]
        return max(kept) + lag_ms if kept else None


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
