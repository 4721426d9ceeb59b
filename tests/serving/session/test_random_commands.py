"""Random commands from several connections against one broker: every request is answered once, whoever misbehaves.

A `Talker` is one connection with a memory of what it asked. Commands come from four tables, `CONSUMERS`, `PRODUCERS`,
`QUESTIONS` and `MISTAKES`; each makes the bytes of one command and says which answer is due. What is checked at the end
of a history, with all its requests answered:

- every request of a connection that is still open was answered exactly once (a producer that waits for exclusive
  access hears of it twice: that it waits, and how that ended);
- a connection that made a mistake may be closed, with an ERROR that says why; no other one is;
- nothing was answered that nobody asked;
- a bystander, which subscribes and publishes all the while, missed nothing.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from random import Random
from typing import Any, Final

import pytest

from quire.serving.broker import Broker
from quire.wire import commands, entry_frames, message
from quire.wire import pulsar_pb2 as pb
from tests.frames import ask_schema, bring_schema
from tests.serving.session.test_connection import Client

NAMESPACE: Final = "persistent://public/default"
TYPE: Final = pb.BaseCommand


class Talker(Client):
    """One connection that says what comes into its mind."""

    def __init__(self, broker: Broker, rng: Random, topic: str) -> None:
        super().__init__(broker)
        self.rng = rng
        self.topic = topic
        self.asked: dict[int, str] = {}
        """Requests by id, in words."""
        self.answered: dict[int, list[Any]] = {}
        self.others: list[Any] = []
        """What came unasked."""
        self.is_guilty = False
        self.sequence = 0
        self.is_lost = False

    def request(self, what: str) -> int:
        """The id of a new request."""
        number = len(self.asked) + 1
        self.asked[number] = what
        return number

    def say(self, table: Mapping[str, Callable[[Talker], bytes]]) -> None:
        what = self.rng.choice(sorted(table))
        self.is_guilty |= table is MISTAKES
        self.send(table[what](self))

    def listen(self) -> None:
        for one in self.received():
            number = getattr(getattr(one, "body", None), "request_id", None)
            if number in self.asked and one.kind != TYPE.CLOSE_CONSUMER:
                self.answered.setdefault(number, []).append(one)
            else:
                self.others.append(one)
        if self.transport.closed and not self.is_lost:
            self.is_lost = True
            self.connection.connection_lost(None)

    @property
    def is_settled(self) -> bool:
        return self.is_lost or len(self.answered) == len(self.asked)

    def check(self) -> None:
        for number, what in self.asked.items():
            answers = self.answered.get(number, [])
            if self.is_lost and not answers:
                continue
            waited = len(answers) == 2 and answers[0].kind == TYPE.PRODUCER_SUCCESS
            assert len(answers) == 1 or (waited and not answers[0].body.producer_ready), (what, answers)
        refusals = [one for one in self.others if getattr(one, "kind", None) == TYPE.ERROR]
        assert not self.is_lost or (self.is_guilty and refusals and refusals[-1].body.message), refusals
        assert self.is_lost or not refusals
        surprises = Counter(getattr(one, "kind", None) for one in self.others)
        for kind in (TYPE.SUCCESS, TYPE.PRODUCER_SUCCESS, TYPE.LOOKUP_RESPONSE, TYPE.ACK_RESPONSE):
            assert not surprises[kind], "an answer that nobody asked for"


# -- what is said --------------------------------------------------------------------------------------


def _id(talker: Talker) -> int:
    return talker.rng.randint(1, 4)


def _place(talker: Talker) -> pb.MessageIdData:
    """A message id: plausible, of the ends, or of nowhere."""
    rng = talker.rng
    ledger = rng.choice([0, 1, 2, 3, 4, 5, 8, 2**32, 2**63 - 1, 2**64 - 1])
    entry = rng.choice([0, 1, 2, 3, 5, 2**31, 2**32, 2**63 - 1, 2**64 - 1])
    made = pb.MessageIdData(ledgerId=ledger, entryId=entry)
    if rng.random() < 0.3:
        made.batch_index = rng.choice([-1, 0, 3, 2**31 - 1])
        made.batch_size = rng.choice([-5, 0, 4, 2**31 - 1])
        made.ack_set.extend(rng.choice([0, 1, 7, -1, 2**63 - 1]) for _ in range(rng.randint(0, 3)))
    return made


def subscribe(talker: Talker) -> bytes:
    rng = talker.rng
    body = pb.CommandSubscribe(
        topic=talker.topic
        if rng.random() < 0.9
        else rng.choice(["", "a/b", "persistent://no/where/t", "x://y"]),
        subscription=rng.choice(["s", "s", "t", "u", "", "n" * 600]),
        subType=rng.choice([0, 1, 2, 3]),  # type: ignore[arg-type]
        consumer_id=_id(talker),
        request_id=talker.request("SUBSCRIBE"),
        consumer_name=rng.choice(["", "a", "b"]),
        priority_level=rng.choice([0, 1, -3]),
        durable=rng.random() < 0.8,
        initialPosition=rng.choice([0, 1]),  # type: ignore[arg-type]
    )
    if rng.random() < 0.4:
        sharing = body.keySharedMeta
        sharing.keySharedMode = rng.choice([0, 1])  # type: ignore[assignment]
        sharing.allowOutOfOrderDelivery = rng.random() < 0.5
        for _ in range(rng.randint(0, 2)):
            sharing.hashRanges.add(start=rng.choice([-1, 0, 30_000]), end=rng.choice([10, 40_000, 2**31 - 1]))
    if rng.random() < 0.2:
        body.start_message_id.CopyFrom(_place(talker))
    if rng.random() < 0.1:
        body.start_message_rollback_duration_sec = rng.choice([1, 2**63])
    return commands.subscribe(body)


def flow(talker: Talker) -> bytes:
    return commands.flow(_id(talker), talker.rng.choice([0, 1, 100, 2**31, 2**32 - 1]))


def ack(talker: Talker) -> bytes:
    places = [_place(talker) for _ in range(talker.rng.randint(0, 4))]
    body = pb.CommandAck(
        consumer_id=_id(talker),
        ack_type=talker.rng.choice([0, 1]),  # type: ignore[arg-type]
        message_id=places,
    )
    if talker.rng.random() < 0.5:
        body.request_id = talker.request("ACK")
    return commands.frame(pb.BaseCommand(type=TYPE.ACK, ack=body))


def redeliver(talker: Talker) -> bytes:
    return commands.redeliver(_id(talker), [_place(talker) for _ in range(talker.rng.randint(0, 3))])


def seek(talker: Talker) -> bytes:
    body = pb.CommandSeek(consumer_id=_id(talker), request_id=talker.request("SEEK"))
    if talker.rng.random() < 0.5:
        body.message_id.CopyFrom(_place(talker))
    elif talker.rng.random() < 0.8:
        body.message_publish_time = talker.rng.choice([0, 1, 2**63, 2**64 - 1])
    return commands.frame(pb.BaseCommand(type=TYPE.SEEK, seek=body))


def unsubscribe(talker: Talker) -> bytes:
    body = pb.CommandUnsubscribe(
        consumer_id=_id(talker), request_id=talker.request("UNSUBSCRIBE"), force=talker.rng.random() < 0.5
    )
    return commands.frame(pb.BaseCommand(type=TYPE.UNSUBSCRIBE, unsubscribe=body))


def consumer_stats(talker: Talker) -> bytes:
    body = pb.CommandConsumerStats(consumer_id=_id(talker), request_id=talker.request("CONSUMER_STATS"))
    return commands.frame(pb.BaseCommand(type=TYPE.CONSUMER_STATS, consumerStats=body))


CONSUMERS: Final[dict[str, Callable[[Talker], bytes]]] = {
    "SUBSCRIBE": subscribe,
    "SUBSCRIBE again": subscribe,
    "FLOW": flow,
    "ACK": ack,
    "REDELIVER": redeliver,
    "SEEK": seek,
    "UNSUBSCRIBE": unsubscribe,
    "CLOSE_CONSUMER": lambda t: commands.close_consumer(_id(t), t.request("CLOSE_CONSUMER")),
    "GET_LAST_MESSAGE_ID": lambda t: commands.ask_last_message_id(_id(t), t.request("GET_LAST_MESSAGE_ID")),
    "CONSUMER_STATS": consumer_stats,
}


def producer(talker: Talker) -> bytes:
    rng = talker.rng
    body = pb.CommandProducer(
        topic=talker.topic if rng.random() < 0.9 else rng.choice(["", "a/b", "persistent://no/where/t"]),
        producer_id=_id(talker),
        request_id=talker.request("PRODUCER"),
        producer_name=rng.choice(["", "p", "q", "n" * 600]),
        producer_access_mode=rng.choice([0, 0, 0, 1, 2, 3]),  # type: ignore[arg-type]
    )
    if body.producer_access_mode == pb.WaitForExclusive:
        # A SEND before its turn has come costs the connection.
        talker.is_guilty = True
    return commands.producer(body)


def send(talker: Talker) -> bytes:
    talker.sequence += 1
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=talker.sequence, publish_time=1)
    entry = message.seal(metadata, b"random")
    return b"".join(commands.send(_id(talker), talker.sequence, 1, entry))


PRODUCERS: Final[dict[str, Callable[[Talker], bytes]]] = {
    "PRODUCER": producer,
    "SEND": send,
    "SEND again": send,
    "CLOSE_PRODUCER": lambda t: commands.close_producer(_id(t), t.request("CLOSE_PRODUCER")),
}


def _topic(talker: Talker) -> str:
    return talker.rng.choice(
        [talker.topic, talker.topic, "", "nonsense", "persistent://no/where/t", "a/b/c/d/e"]
    )


def _namespace(talker: Talker) -> str:
    return talker.rng.choice(["public/default", "public/default", "no/where", "", "/"])


def _pattern(talker: Talker) -> str:
    return talker.rng.choice([f"{NAMESPACE}/random-.*", "", ".*", "(", "(?=x)", "x" * 1000])


def _topics_of(talker: Talker) -> bytes:
    pattern, known = talker.rng.choice([None, _pattern(talker)]), talker.rng.choice([None, "00000000"])
    return commands.ask_topics(talker.request("TOPICS"), _namespace(talker), pattern, known)


def _watch(talker: Talker) -> bytes:
    asked = talker.request("WATCH_TOPIC_LIST")
    return commands.watch_topics(asked, _id(talker), _namespace(talker), _pattern(talker))


def _get_schema(talker: Talker) -> bytes:
    version = talker.rng.choice([None, b"", b"x", bytes(8), b"\xff" * 8])
    return ask_schema(talker.request("GET_SCHEMA"), _topic(talker), version)


def _bring_schema(talker: Talker) -> bytes:
    kind, definition = (
        talker.rng.randrange(22),
        talker.rng.choice([b"", b'"int"', b"{", talker.rng.randbytes(30)]),
    )
    return bring_schema(talker.request("GET_OR_CREATE_SCHEMA"), _topic(talker), kind, definition)


QUESTIONS: Final[dict[str, Callable[[Talker], bytes]]] = {
    "PING": lambda t: commands.PING,
    "PARTITIONED_METADATA": lambda t: commands.ask_partitions(t.request("PARTITIONS"), _topic(t)),
    "LOOKUP": lambda t: commands.ask_lookup(t.request("LOOKUP"), _topic(t)),
    "GET_TOPICS_OF_NAMESPACE": _topics_of,
    "WATCH_TOPIC_LIST": _watch,
    "WATCH_TOPIC_LIST_CLOSE": lambda t: commands.watch_topics_no_more(t.request("WATCH_CLOSE"), _id(t)),
    "GET_SCHEMA": _get_schema,
    "GET_OR_CREATE_SCHEMA": _bring_schema,
}


MISTAKES: Final[dict[str, Callable[[Talker], bytes]]] = {
    "a second CONNECT": lambda t: commands.connect("test"),
    "a broker's command": lambda t: commands.success(t.rng.randint(1, 9)),
    "a MESSAGE": lambda t: entry_frames.message_header(1, commands.message_id(1, 1), 2) + b"xx",
    "an unknown command": lambda t: b"\x00\x00\x00\x07\x00\x00\x00\x03\x08\xe7\x07",
    "garbage": lambda t: t.rng.randbytes(40),
    "a frame that is too large": lambda t: b"\x7f\xff\xff\xff\x00\x00\x00\x08" + bytes(64),
}

# -- the histories -------------------------------------------------------------------------------------


class Bystander(Client):
    """Publishes to the same topic and consumes from it, and must not notice anything."""

    def __init__(self, broker: Broker, topic: str) -> None:
        super().__init__(broker)
        self.topic = topic
        self.sent = 0
        self.got: list[bytes] = []

    async def open(self) -> None:
        await self.connect()
        self.send(
            commands.subscribe(
                pb.CommandSubscribe(
                    topic=self.topic, subscription="bystander", subType=0, consumer_id=1, request_id=1
                )  # type: ignore[arg-type]
            ),
            commands.flow(1, 1_000_000),
            commands.ask_lookup(2, self.topic),
        )
        await self.answers(2)

    def ping(self) -> None:
        self.send(commands.PING)

    def listen(self) -> Counter[int]:
        return Counter(getattr(one, "kind", TYPE.MESSAGE) for one in self.received())


def tables_of(rng: Random, guilty: bool) -> Mapping[str, Callable[[Talker], bytes]]:
    if guilty and rng.random() < 0.05:
        return MISTAKES
    return rng.choices([CONSUMERS, PRODUCERS, QUESTIONS], [6, 3, 1])[0]


async def play(broker: Broker, seed: int) -> None:
    rng = Random(seed)
    topic = f"{NAMESPACE}/random-{seed}"
    talkers = [Talker(broker, rng, topic) for _ in range(3)]
    bystander = Bystander(broker, topic)
    await bystander.open()
    for one in talkers:
        await one.connect()
    pings = 0
    for _ in range(120):
        index = rng.randrange(3)
        if not talkers[index].is_lost:
            # The first talker makes no mistakes, so nothing may close it.
            talkers[index].say(tables_of(rng, index > 0))
        if rng.random() < 0.3:
            bystander.ping()
            pings += 1
        for _ in range(rng.choice([0, 1, 3, 30])):
            await asyncio.sleep(0)
        for one in talkers:
            one.listen()
    async with asyncio.timeout(60):
        while not all(one.is_settled for one in talkers):
            await asyncio.sleep(0.001)
            for one in talkers:
                one.listen()
    for _ in range(50):
        await asyncio.sleep(0)
    for one in talkers:
        one.listen()
        one.check()
    heard = bystander.listen()
    assert heard[TYPE.PONG] == pings and not heard[TYPE.ERROR] and not heard[TYPE.CLOSE_CONSUMER]
    receipts = sum(
        getattr(answer, "kind", None) == TYPE.SEND_RECEIPT for one in talkers for answer in one.others
    )
    assert heard[TYPE.MESSAGE] >= receipts
    for one in [*talkers, bystander]:
        if not one.transport.closed:
            one.connection.connection_lost(None)


@pytest.mark.parametrize("seeds", [range(12), [*range(12, 24), 174]], ids=["first", "second"])
async def test_every_request_is_answered_once(broker: Broker, seeds: Iterable[int]) -> None:
    for seed in seeds:
        try:
            await play(broker, seed)
        except BaseException:
            print(f"seed {seed}")
            raise
