"""What applications were told, of all topics: it outlives them, and must be true in the end.

    receipts        where a message is, by the receipt that its producer was given
    delivered       what a subscription was given
    acknowledged    acks that were answered: never to be delivered again, unless somebody seeks back
    asked           acks that were asked for: nothing else may be trimmed
    tapes           what one reader was given, from its first message on, without a gap

The keys are (topic, payload) and (topic, subscription); a *place* is what ids are compared by.

Order, of what the subscriptions of the topic with keys are given: of a key-shared one each key's messages come in order
when they come for the first time, whoever gets them; behind an answered seek nothing is passed over.
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
"""The topic whose messages have keys, which is compacted now and then."""

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
    """A topic's subscriptions; each is named after what it is."""
    return SPECIAL_TYPES.get(topic, TYPES)


class Seek(NamedTuple):
    """What was asked for: a place, or a publish time; -1 is none."""

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
        """Topic to the ledger with which it begins, since older ones were trimmed."""
        self.seeks: defaultdict[tuple[str, str], int] = defaultdict(int)
        """Begun and ended: an ack that was asked for before one and answered behind it says nothing."""
        self.without_compaction: set[bytes] = set()
        """Trimmed before there was a compaction, which would have kept the last of each key."""
        self.clocks_jumped = False
        self.partitions = 0
        """Of the topic that has some; 0 until it is made."""
        self.gone: set[tuple[str, bytes]] = set()
        """Messages that a deletion found: never to be seen again."""
        self.void: set[tuple[str, bytes]] = set()
        """Sent before a deletion was answered: nobody knows on which side of it they are."""
        self._doomed: set[tuple[str, bytes]] = set()
        self._passed_ms = -1
        self._last_seeks: defaultdict[str, list[Seek]] = defaultdict(list)
        """The last one that was answered, and those that may have been done since."""
        self._sent_ms: dict[tuple[str, bytes], int] = {}
        self._newest: defaultdict[tuple[str, str, str], Place] = defaultdict(lambda: (-1, -1, -1))

    # -- publishing ------------------------------------------------------------------------------------
    def sends(self, topic: str, payload: bytes, key: str | None, now_ms: int) -> None:
        """It is given to a producer; its publish time will be now or later."""
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
        """Messages of a topic that have a receipt."""
        return ((payload, found) for (of, payload), found in self.receipts.items() if of == topic)

    def is_kept(self, topic: str, message_id: MessageId) -> bool:
        return message_id.ledger_id >= self.first_kept[topic]

    # -- deletion --------------------------------------------------------------------------------------
    def deletion_begins(self, topic: str) -> None:
        """Somebody asks for it: what has a receipt now must go."""
        self._doomed = {key for key in self.receipts if key[0] == topic}

    def deletion_ended(self, topic: str) -> None:
        """It was answered: what is published from now on must stay."""
        self.gone |= self._doomed
        self.void |= {key for key in self._sent_ms if key[0] == topic}
        for key in self.void & self.receipts.keys():
            del self.receipts[key]

    # -- subscriptions ---------------------------------------------------------------------------------
    def undelivered(self, topic: str, subscription: str) -> set[bytes]:
        """Messages with a receipt that the subscription has not been given."""
        given = self.delivered[topic, subscription]
        return {
            payload
            for payload, found in self.of(topic)
            if payload not in given and (subscription != "seeking" or self.is_kept(topic, found))
        }

    def gives(self, topic: str, kind: str, messages: Iterable[Any]) -> None:
        """An application takes messages off its consumer."""
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
        """Acks are asked for."""
        self.asked[topic, kind].update(message.id.place for message in messages)

    def asks_up_to(self, topic: str, kind: str, message: Any) -> None:
        self.asked_up_to[topic, kind] = max(self.asked_up_to[topic, kind], message.id.place)

    # -- seeking ---------------------------------------------------------------------------------------
    def seeks_to(self, topic: str, kind: str, seek: Seek) -> None:
        """From here on what it goes back to may come again, and what lies before it need not come any more."""
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
        """It was answered: what it goes back to must come again."""
        self.seeks[topic, kind] += 1
        self._last_seeks[topic] = [seek]
        self.world.saw("seek by time" if seek.time_ms >= 0 else "seek by id")
        self.delivered[topic, kind] -= {
            payload for payload, found in self.of(topic) if self._is_behind(topic, payload, found, seek)
        }

    def _passes(self, topic: str, kind: str, messages: Iterable[tuple[bytes, MessageId]]) -> None:
        """They need not come, for a seek goes beyond them."""
        for payload, found in messages:
            self.delivered[topic, kind].add(payload)
            self.asked[topic, kind].add(found.place)

    def _is_behind(self, topic: str, payload: bytes, found: MessageId, seek: Seek) -> bool:
        """Whether it must come after the seek; of times nothing is known when clocks have jumped."""
        if seek.time_ms >= 0:
            return not self.clocks_jumped and self._sent_ms[topic, payload] >= seek.time_ms
        return found.place >= seek.place

    def check_seek(self, topic: str, kind: str, seek: Seek, first: Any) -> None:
        """`first` is what the consumer is given first after the answer: nothing is passed over."""
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
        """Segments left the topic's list: every subscription has asked for acks of all that they held."""
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
        if kind == "seeking" and (self.clocks_jumped or self._sent_ms[topic, payload] < self._passed_ms):
            return True
        return place in self.asked[topic, kind] or place <= self.asked_up_to[topic, kind]
