"""Search over all messages of a topic: what is found, slice by slice, and pages of messages around a place."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

import pulsar
import pytest

from quire.serving.admin import looks
from quire.serving.broker import Broker
from quire.serving.model.ports import Position
from quire.serving.names import TopicName
from quire.serving.operations import matching, searching
from quire.serving.operations.matching import Filter, Place, Scan
from quire.wire import block
from quire.wire import pulsar_pb2 as pb
from quire.wire.message import OutgoingMessage, encode_batch, encode_one
from tests.serving.admin.conftest import TOPIC, Rest
from tests.serving.conftest import in_thread

TOPIC_QUIRE = "/quire/v1/topics/persistent/public/default/orders"
SEARCH, MESSAGES = f"{TOPIC_QUIRE}/search", f"{TOPIC_QUIRE}/messages"
EVIL = "<img src=x onerror=alert(1)>"


def fill(client: pulsar.Client) -> None:
    """Ten single messages, then batches of five: compressed, then not; one encoded by no one."""
    producer = client.create_producer("orders")
    for number in range(10):
        producer.send(f"single {number}".encode(), {"n": str(number)}, partition_key=f"k{number % 3}")
    producer.send(EVIL.encode(), {EVIL: EVIL}, partition_key=EVIL)
    for codec in (pulsar.CompressionType.ZLib, pulsar.CompressionType.NONE):
        batched = client.create_producer(
            "orders", compression_type=codec, batching_enabled=True, batching_max_publish_delay_ms=60_000
        )
        for number in range(5):
            batched.send_async(f"batched {number}".encode(), lambda *_: None, {"n": "b"}, f"b{number}")
        batched.flush()


async def search(rest: Rest, **conditions: Any) -> list[dict[str, Any]]:
    """All that is found, by slices."""
    found: list[dict[str, Any]] = []
    start = conditions.pop("start", "earliest")
    while True:
        answer = await rest.get(f"{SEARCH}?{urlencode({**conditions, 'from': start})}")
        assert answer.status == 200, answer
        found += answer.body["messages"]
        if answer.body["isEnd"]:
            assert answer.body["index"] == answer.body["endIndex"]
            return found
        assert answer.body["next"] != start
        start = answer.body["next"]


def texts(messages: list[dict[str, Any]]) -> list[str]:
    return [one["text"] for one in messages]


async def test_messages_are_found_by_key_value_and_property(rest: Rest, client: pulsar.Client) -> None:
    await in_thread(lambda: fill(client))
    assert len(await search(rest)) == 21
    assert texts(await search(rest, key="k1")) == ["single 1", "single 4", "single 7"]
    assert texts(await search(rest, key="b3")) == ["batched 3"] * 2
    assert await search(rest, key="k") == [], "a key is compared as a whole"
    assert texts(await search(rest, value="d 4")) == ["batched 4"] * 2
    assert texts(await search(rest, property="n=7")) == ["single 7"]
    assert len(await search(rest, property="n")) == 20 and not await search(rest, property="n=")
    assert texts(await search(rest, key="k1", value="4")) == ["single 4"]
    (evil,) = await search(rest, key=EVIL, value=EVIL, property=f"{EVIL}={EVIL}")
    assert evil["text"] == EVIL


async def test_slices_continue_where_the_last_one_ended(
    rest: Rest, client: pulsar.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await in_thread(lambda: fill(client))
    every = [one["position"] for one in await search(rest)]
    assert len(set(every)) == 21
    for count in (1, 2, 4, 20):
        assert [one["position"] for one in await search(rest, count=count)] == every
    first = (await rest.get(f"{SEARCH}?count=13&from=earliest")).body
    assert (
        first["index"] == 13 and first["firstIndex"] == 0 and first["endIndex"] == 21 and not first["isEnd"]
    )
    monkeypatch.setattr(searching, "SLICE_BYTES_MAX", 1)
    assert [one["position"] for one in await search(rest)] == every
    monkeypatch.setattr(searching, "SLICE_S", 0.0)
    endless = (await rest.get(f"{SEARCH}?from=earliest")).body
    assert endless["messages"] == [] and not endless["isEnd"]


def test_a_scan_ends_at_its_limit_of_decompressed_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Entries of a few bytes may decompress to many, whether or not a message matches."""
    big = OutgoingMessage(bytes(1000))
    entries = [encode_batch([big, big], "p", 0, 1, pb.ZSTD) for _ in range(9)]
    entries.append(encode_one(OutgoingMessage(b"the needle"), "p", 0, 1))
    cut = bytes(block.cut(7, 0, -1, 0, 0, entries, [2] * 9 + [1]))
    decompressed: list[int] = []
    plain_of = matching.plain_of

    def counting(metadata: pb.MessageMetadata, payload: memoryview) -> memoryview:
        decompressed[-1] += metadata.uncompressed_size
        return plain_of(metadata, payload)

    monkeypatch.setattr(matching, "plain_of", counting)
    monkeypatch.setattr(matching, "DECODED_BYTES_MAX", 5000)
    place, found = Place(Position(7, 0)), []
    while place.position.entry_id < len(entries):
        decompressed.append(0)
        scanned = Scan(Filter(value="needle"), 50).of([cut], place)
        assert scanned.place > place and scanned.next_index == min(2 * scanned.place.position.entry_id, 19)
        found, place = [*found, *scanned.found], scanned.place
    assert [str(one) for one in found] == ["7:9"]
    assert max(decompressed) <= 5000 + decompressed[0] // 3 and len(decompressed) == 4


async def test_a_search_goes_over_sealed_and_trimmed_segments(
    rest: Rest, client: pulsar.Client, broker: Broker
) -> None:
    await in_thread(lambda: fill(client))
    await rest.put(f"{TOPIC_QUIRE}/seal")
    await in_thread(lambda: client.create_producer("orders").send(b"single 10"))
    ledgers = [one["ledgerId"] for one in (await rest.get(f"{TOPIC}/internalStats")).body["ledgers"]]
    assert texts(await search(rest, value="single 1")) == ["single 1", "single 10"]
    assert texts(await search(rest, start=f"{ledgers[0] - 1}:7", value="single 10")) == ["single 10"]
    assert await search(rest, start="latest") == []
    assert await search(rest, start="9999999:0") == []


async def test_a_time_range_is_by_publish_time(rest: Rest, client: pulsar.Client) -> None:
    await in_thread(lambda: fill(client))
    times = [one["publishTimeMs"] for one in await search(rest)]
    middle = times[6]
    late = [time for time in times if time >= middle]
    assert len(await search(rest, sinceMs=middle)) == len(late)
    assert len(await search(rest, untilMs=middle)) == 21 - len(late)
    assert await search(rest, sinceMs=times[-1] + 1) == []


async def test_a_search_begins_at_an_index(rest: Rest, client: pulsar.Client) -> None:
    await in_thread(lambda: fill(client))
    assert texts(await search(rest, start="index:19")) == ["batched 3", "batched 4"]
    assert texts((await rest.get(f"{MESSAGES}?from=index:14&count=2")).body) == ["batched 3", "batched 4"]
    assert await search(rest, start="index:99") == []


async def test_pages_before_and_after_a_place(rest: Rest, client: pulsar.Client) -> None:
    await in_thread(lambda: fill(client))
    every = [one["position"] for one in await search(rest)]
    back, before = [], ""
    while True:
        page = (await rest.get(f"{MESSAGES}?count=4{before}")).body
        if not page:
            break
        back = [*(one["position"] for one in page), *back]
        before = f"&before={back[0]}"
    assert back == every, "also where a page begins within a batch"
    for number in (3, 12, 17):
        page = (await rest.get(f"{MESSAGES}?from={every[number]}&count=100")).body
        assert [one["position"] for one in page] == every[number:]


async def test_a_download_has_whole_values(rest: Rest, client: pulsar.Client) -> None:
    await in_thread(lambda: client.create_producer("orders").send(b"x" * 200_000))
    (look,) = await search(rest, whole="true")
    assert look["text"] == "x" * 200_000 and not look["isCut"]
    (look,) = await search(rest)
    assert look["isCut"]


async def test_a_download_has_a_limited_number_of_characters_in_each_slice(
    rest: Rest, client: pulsar.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await in_thread(lambda: fill(client))
    every = await search(rest, whole="true")
    monkeypatch.setattr(looks, "WHOLE_ANSWER_CHARS_MAX", 30)
    first = (await rest.get(f"{SEARCH}?whole=true")).body
    assert texts(first["messages"]) == ["single 0", "single 1", "single 2"], "with keys and properties"
    assert (first["index"], first["isEnd"], first["next"]) == (3, False, every[3]["position"])
    in_batch = (await rest.get(f"{SEARCH}?whole=true&from=index:14")).body
    assert in_batch["next"] == every[14 + len(in_batch["messages"])]["position"]
    assert in_batch["index"] == 14 + len(in_batch["messages"]) < 19
    assert await search(rest, whole="true") == every
    assert (await rest.get(SEARCH)).body["isEnd"], "messages in a list are short anyway"


async def test_damage_is_reported_and_the_search_goes_on(
    rest: Rest, client: pulsar.Client, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    from quire.runtime.errors import CorruptionError
    from quire.serving.topic.log import LedgerLog

    await in_thread(lambda: fill(client))
    await rest.put(f"{TOPIC_QUIRE}/seal")
    await in_thread(lambda: client.create_producer("orders").send(b"after"))
    topic = await broker.registry.open_persistent(TopicName.parse("orders"))
    damaged = topic.log.segments()[0].ledger_id
    read = LedgerLog.read

    async def reading(self: LedgerLog, position: Any, bytes_max: int) -> Any:
        if position.ledger_id == damaged:
            raise CorruptionError("a bit is rotten")
        return await read(self, position, bytes_max)

    monkeypatch.setattr(LedgerLog, "read", reading)
    monkeypatch.setattr(LedgerLog, "cached", lambda *_: ())
    lost, after = await search(rest)
    assert "a bit is rotten" in lost["problem"] and after["text"] == "after"


@pytest.mark.parametrize(
    "query", ["count=0", "count=101", "from=x", "from=1:2:x", "from=index:x", "sinceMs=-1", "whole=maybe"]
)
async def test_what_makes_no_sense_is_refused(rest: Rest, query: str) -> None:
    await rest.put(TOPIC, {})
    assert (await rest.get(f"{SEARCH}?{query}")).status == 400
    assert (await rest.get(f"{SEARCH}?key={'x' * 1001}")).status == 400


async def test_of_a_topic_with_partitions_one_is_searched(rest: Rest) -> None:
    await rest.put(f"{TOPIC}/partitions", 2)
    assert (await rest.get(SEARCH)).status == 405
