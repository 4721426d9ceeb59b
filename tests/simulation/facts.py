"""Results that applications got from brokers. They survive the applications, and are checked at a history's end.

    receipts        message ids from the receipts of producers
    delivered       messages delivered to a subscription
    acknowledged    acks that were confirmed: these messages must not be delivered again, except after a seek back
    asked           acks that were sent: only these messages may be trimmed
    tapes           messages that one reader got, from its first one on, without a gap

The keys are (topic, payload) and (topic, subscription). A *place* is the comparable part of a message id.

This module also checks the order of deliveries in the topic with keys. In a key-shared subscription, the first
deliveries of each key are in order, over all consumers. After a successful seek, no message is skipped.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from typing import Any, Final, NamedTuple

from quire.client.messages import MessageId, Receipt

from .world import World

Place = tuple[int, int, int]

TYPES: Final = ("exclusive", "failover", "shared")
KEYS: Final = "keys"
"""Topic whose messages have keys. It is compacted from time to time."""

KEYED_TYPES: Final = ("key-shared", "seeking", "shared")
LED: Final = "led"
PARTED: Final = "parted"
REMADE: Final = "remade"
SPECIAL_TYPES: Final = {
    KEYS: KEYED_TYPES,
    LED: ("failover",),
    PARTED: ("shared", "failover"),
    REMADE: ("shared",),
}


def kinds_of(topic: str) -> tuple[str, ...]:
    """Return the names of a topic's subscriptions; most are named after their types."""
    return SPECIAL_TYPES.get(topic, TYPES)


class Seek(NamedTuple):
    """Target of a seek: a place, or a publish time; -1 if it is not used."""

    place: Place = (-1, -1, -1)
    time_ms: int = -1


class Facts:
    def __init__(self, world: World) -> None:
        self.world = world
        self.receipts: dict[tuple[str, bytes], MessageId] = {}
        self.keys: dict[tuple[str, bytes], str] = {}
        self.delivered: defaultdict[tuple[str, str], set[bytes]] = defaultdict(set)
        self.acknowledged: defaultdict[tuple[str, str], set[Place]] = defaultdict(set)
        self.asked: defaultdict[tuple[str, str], set[Place]] = defaultdict(set)
        self.asked_up_to: defaultdict[tuple[str, str], Place] = defaultdict(lambda: (-1, -1, -1))
        self.next_number: defaultdict[str, int] = defaultdict(int)
        self.tapes: list[tuple[str, list[tuple[Place, bytes]]]] = []
        self.subscribed: set[tuple[str, str]] = set()
        self.first_kept: defaultdict[str, int] = defaultdict(lambda: -1)
        """First ledger that was not trimmed, by topic."""
        self.seeks: defaultdict[tuple[str, str], int] = defaultdict(int)
        """Number of begun and ended seeks. If it changes between an ack and its response, the ack does not count."""
        self.without_compaction: set[bytes] = set()
        """Messages trimmed before the first compaction, which therefore could not keep the last ones of their keys."""
        self.partitions = 0
        """Number of partitions of the partitioned topic; 0 until it is created."""
        self.gone: set[tuple[str, bytes]] = set()
        """Messages of a deleted topic, which must never be read again."""
        self.void: set[tuple[str, bytes]] = set()
        """Messages sent before a deletion was confirmed: they may be in the deleted topic or in the new one."""
        self._doomed: set[tuple[str, bytes]] = set()
        self._passed_ms = -1
        self._last_seeks: defaultdict[str, list[Seek]] = defaultdict(list)
        """Last confirmed seek, and later ones whose outcome is unknown, by topic."""
        self._sent_ms: dict[tuple[str, bytes], int] = {}
        self._newest: defaultdict[tuple[str, str, str], Place] = defaultdict(lambda: (-1, -1, -1))

    # -- publishing ------------------------------------------------------------------------------------
    def sends(self, topic: str, payload: bytes, key: str | None, now_ms: int) -> None:
        """Record that a message was passed to a producer. Its publish time will be `now_ms` or later."""
        self._sent_ms.setdefault((topic, payload), now_ms)
        if key is not None:
            self.keys[topic, payload] = key

    def received(self, topic: str, payload: bytes, receipt: Receipt) -> None:
        if (topic, payload) in self.void:
            self.world.saw("receipt from before a deletion")
        elif receipt.message_id.ledger_id >= 0:
            self.world.saw("receipt")
            found = self.receipts[topic, payload] = receipt.message_id
            if any(not self._is_behind(topic, payload, found, seek) for seek in self._last_seeks[topic]):
                self._passes(topic, "seeking", [(payload, found)])
        else:
            self.world.saw("duplicate dropped")

    def of(self, topic: str) -> Iterable[tuple[bytes, MessageId]]:
        """Return the messages of a topic that have a receipt, with their ids."""
        return ((payload, found) for (of, payload), found in self.receipts.items() if of == topic)

    def is_kept(self, topic: str, message_id: MessageId) -> bool:
        return message_id.ledger_id >= self.first_kept[topic]

    # -- deletion --------------------------------------------------------------------------------------
    def deletion_begins(self, topic: str) -> None:
        """Record that a deletion of the topic was requested. It must delete all messages that have a receipt now."""
        self._doomed = {key for key in self.receipts if key[0] == topic}

    def deletion_ended(self, topic: str) -> None:
        """Record that the deletion was confirmed. Messages that are published from now on must be kept."""
        self.gone |= self._doomed
        self.void |= {key for key in self._sent_ms if key[0] == topic}
        for key in self.void & self.receipts.keys():
            del self.receipts[key]

    # -- subscriptions ---------------------------------------------------------------------------------
    def undelivered(self, topic: str, subscription: str) -> set[bytes]:
        """Return the messages with a receipt that were not delivered to the subscription."""
        given = self.delivered[topic, subscription]
        return {
            payload
            for payload, found in self.of(topic)
            if payload not in given and (subscription != "seeking" or self.is_kept(topic, found))
        }

    def gives(self, topic: str, kind: str, messages: Iterable[Any]) -> None:
        """Record that an application received messages from its consumer."""
        given = self.delivered[topic, kind]
        for message in messages:
            payload = bytes(message.payload or b"")
            if kind == "key-shared" and payload not in given:
                self._check_key(topic, kind, message, payload)
            given.add(payload)

    def _check_key(self, topic: str, kind: str, message: Any, payload: bytes) -> None:
        key, place = (topic, kind, message.key), message.id.place
        self.world.check(
            place > self._newest[key],
            "order of keys",
            f"{payload[:40]!r} at {message.id} comes behind {self._newest[key]}, both have the key {message.key}",
        )
        self._newest[key] = place

    def asks(self, topic: str, kind: str, messages: Iterable[Any]) -> None:
        """Record that acks of messages were sent."""
        self.asked[topic, kind].update(message.id.place for message in messages)

    def asks_up_to(self, topic: str, kind: str, message: Any) -> None:
        self.asked_up_to[topic, kind] = max(self.asked_up_to[topic, kind], message.id.place)

    # -- seeking ---------------------------------------------------------------------------------------
    def seeks_to(self, topic: str, kind: str, seek: Seek) -> None:
        """Record that a seek begins: messages after its target may be redelivered, earlier ones may be skipped."""
        self.seeks[topic, kind] += 1
        self.acknowledged[topic, kind] = {
            place
            for place in self.acknowledged[topic, kind]
            if seek.time_ms < 0 and place[:2] < seek.place[:2]
        }
        self._last_seeks[topic].append(seek)
        passed = [one for one in self.of(topic) if not self._is_behind(topic, *one, seek)]
        self._passes(topic, kind, passed)
        self.asked_up_to[topic, kind] = max(self.asked_up_to[topic, kind], (*seek.place[:2], -1))
        self._passed_ms = max(self._passed_ms, seek.time_ms)

    def sought(self, topic: str, kind: str, seek: Seek) -> None:
        """Record that a seek was confirmed: messages after its target must be redelivered."""
        self.seeks[topic, kind] += 1
        self._last_seeks[topic] = [seek]
        self.world.saw("seek by time" if seek.time_ms >= 0 else "seek by id")
        self.delivered[topic, kind] -= {
            payload for payload, found in self.of(topic) if self._is_behind(topic, payload, found, seek)
        }

    def _passes(self, topic: str, kind: str, messages: Iterable[tuple[bytes, MessageId]]) -> None:
        """Mark messages as delivered that a seek may skip."""
        for payload, found in messages:
            self.delivered[topic, kind].add(payload)
            self.asked[topic, kind].add(found.place)

    def _is_behind(self, topic: str, payload: bytes, found: MessageId, seek: Seek) -> bool:
        """Return whether a message must be delivered after the seek."""
        if seek.time_ms >= 0:
            return self._sent_ms[topic, payload] >= seek.time_ms
        return found.place >= seek.place

    def check_seek(self, topic: str, kind: str, seek: Seek, first: Any) -> None:
        """Check that the first message after a confirmed seek, `first`, skips no message."""
        passed = [
            payload
            for payload, found in self.of(topic)
            if self.is_kept(topic, found)
            and found.place < first.id.place
            and self._is_behind(topic, payload, found, seek)
            and payload not in self.delivered[topic, kind]
        ]
        self.world.check(
            not passed,
            "seek",
            lambda: f"after a seek to {seek}, {first.id} comes first, and not {passed[0][:40]!r}",
        )

    # -- trimming --------------------------------------------------------------------------------------
    def trimmed(
        self, topic: str, ledger_ids: Collection[int], first_kept: int, *, is_compacted: bool
    ) -> None:
        """Record that segments were trimmed, and check that all subscriptions sent acks of all their messages."""
        self.first_kept[topic] = max(self.first_kept[topic], first_kept)
        for payload, found in self.of(topic):
            if found.ledger_id in ledger_ids:
                self.world.saw("message trimmed")
                if not is_compacted:
                    self.without_compaction.add(payload)
                for kind in kinds_of(topic):
                    self.world.check(
                        self._is_asked(topic, kind, payload, found.place),
                        "trimming",
                        f"{payload[:40]!r} of {topic} at {found} goes, and {kind} did not acknowledge it",
                    )

    def _is_asked(self, topic: str, kind: str, payload: bytes, place: Place) -> bool:
        if kind == "seeking" and self._sent_ms[topic, payload] < self._passed_ms:
            return True
        return place in self.asked[topic, kind] or place <= self.asked_up_to[topic, kind]
