"""The schedule of an open loop: latencies count from when a message was due, also while the broker stalls."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest

from quire.client import Client, ProducerSettings
from quire.perf import payload
from quire.perf.job import Publishing
from quire.perf.pacer import NS_PER_S, Pacer, window
from quire.perf.publishing import PUBLISH, Publisher
from quire.perf.tally import Tally
from quire.wire import pulsar_pb2 as pb
from tests.client.fake_broker import FakeBroker

pytestmark = pytest.mark.timeout(600, method="thread")  # the pacer takes SIGALRM

TOPIC = "persistent://public/default/t"


@pytest.fixture
async def broker() -> AsyncIterator[FakeBroker]:
    made = FakeBroker()
    await made.start()
    yield made
    await made.stop()


async def published(
    broker: FakeBroker, share: int, settings: ProducerSettings, rate: float = 0.0, stall_s: float = 0.0
) -> Tally:
    """Publish `share` messages. The broker holds all receipts for `stall_s` from the begin."""
    tallies = {PUBLISH: Tally()}
    async with Client(broker.url) as client, client.producer("t", settings=settings) as producer:
        pacer, of = Pacer(), window(time.time_ns(), 0.0, 0.0)
        how = Publishing(settings, 100, "text", rate)
        if stall_s:
            broker.hold_receipts()
        publishing = asyncio.create_task(Publisher(producer, tallies, pacer, of, how, share).run(0.0))
        if stall_s:
            await pacer.until(of.begin + round(stall_s * NS_PER_S))
            broker.release_receipts()
        await publishing
        pacer.close()
    return tallies[PUBLISH]


async def test_a_stall_delays_each_message_that_was_due_in_it(broker: FakeBroker) -> None:
    """With one message in flight the client sends nothing during the stall, and yet all those messages are late."""
    one_at_a_time = ProducerSettings(batching=False, in_flight_messages_max=1)
    tally = await published(broker, 100, one_at_a_time, rate=200.0, stall_s=0.5)
    assert tally.messages == 100
    assert tally.latencies.max >= 490_000_000
    assert tally.latencies.percentile(50) >= 200_000_000, "half of the messages were due in the first 0.25 s"


async def test_shares_sizes_and_times_in_payloads(broker: FakeBroker) -> None:
    before = time.time_ns()
    tally = await published(broker, 250, ProducerSettings())
    stored = broker.messages(TOPIC)
    assert (tally.messages, tally.bytes, tally.all_messages, len(stored)) == (250, 25_000, 250, 250)
    dues = [payload.due_of(one.payload) for one in stored]
    assert all(due is not None and before <= due <= time.time_ns() for due in dues)
    assert {len(one.payload or b"") for one in stored} == {100}


async def test_refused_messages_are_counted_with_the_reason(broker: FakeBroker) -> None:
    broker.send_errors.append((pb.NotAllowedError, "not you"))
    tally = await published(broker, 3, ProducerSettings(batching=False))
    assert (tally.messages, tally.failed) == (2, 1) and "not you" in tally.failure


@pytest.mark.parametrize("kind", payload.BODIES)
@pytest.mark.parametrize("size", [0, 5, payload.STAMP_BYTES, 1000])
def test_payloads_have_their_size_and_their_time(kind: str, size: int) -> None:
    rest = payload.body(kind, size, seed=1)
    if size < payload.STAMP_BYTES:
        assert len(rest) == size and payload.due_of(rest) is None
        return
    whole = payload.stamp(12_345) + rest
    assert len(whole) == size and payload.due_of(whole) == 12_345
    assert payload.due_of(b"x" * size) is None


async def test_an_interrupted_run_counts_messages_without_a_receipt(broker: FakeBroker) -> None:
    tallies, settings = {PUBLISH: Tally()}, ProducerSettings(batching=False)
    async with Client(broker.url) as client, client.producer("t", settings=settings) as producer:
        pacer, of = Pacer(), window(time.time_ns(), 0.0, 0.0)
        broker.hold_receipts()
        one = Publisher(producer, tallies, pacer, of, Publishing(settings, 100, "zeros", 0.0), 5)
        publishing = asyncio.create_task(one.run(0.0))
        await broker.until(lambda: len(broker.stored) == 5)
        publishing.cancel()
        await asyncio.wait([publishing])
        one.give_up()
        pacer.close()
        assert (tallies[PUBLISH].messages, tallies[PUBLISH].failed) == (0, 5)
        assert tallies[PUBLISH].last_ns >= of.begin, "the time without receipts counts"
        broker.release_receipts()
