"""Acknowledgements: what they may name, when they are answered, and what survives a restart."""

from __future__ import annotations

import asyncio
import tracemalloc

from quire.ledger.state_log import RECORD_BYTES_MAX
from quire.runtime.clock import ManualClock
from quire.runtime.errors import NotFound, QuireError, Unavailable
from quire.serving.model.ports import NotAllowed, Position
from quire.serving.policy.resolved import TopicPolicies
from quire.serving.subscription.subscriptions import (
    CursorStore,
    Subscriptions,
)
from quire.wire import commands
from tests.serving.subscription.fakes import ids
from tests.serving.subscription.stand import SHARED, Stand, settle


async def test_an_acknowledgement_is_answered_when_it_is_durable(stand: Stand) -> None:
    made, _ = await stand.consumer()
    stand.topic.publish([1, 1, 1])
    stand.log.is_automatic = False
    answers: list[QuireError | None] = []
    made.ack(ids((1, 0)), done=answers.append)
    made.ack(ids((1, 1)), done=answers.append)
    before = len(stand.log.records)
    await settle()
    assert len(stand.log.records) == before + 1, "one record for all acknowledgements of a turn"
    assert answers == []
    stand.log.sync()
    assert answers == [None, None]
    made.ack(ids((1, 1)), done=answers.append)
    await settle()
    stand.log.sync(Unavailable("gone"))
    assert isinstance(answers[2], Unavailable)


async def test_a_restart_redelivers_exactly_what_was_not_durably_acknowledged(stand: Stand) -> None:
    made, _ = await stand.consumer(SHARED)
    stand.topic.publish([1] * 10)
    made.ack(ids((1, 0), (1, 1), (1, 4)))
    made.ack([commands.message_id(1, 6)])
    made.redeliver(ids((1, 7)))
    await settle()
    stand.log.is_automatic = False
    made.ack(ids((1, 9)))
    await settle()
    stand.restart()
    stand.log.is_automatic = True
    assert await stand.backlog() == 6
    _, port = await stand.consumer(SHARED)
    got = port.messages()
    assert [one.message_id.entryId for one in got] == [2, 3, 5, 7, 8, 9]
    assert [one.redelivery_count for one in got] == [0, 0, 0, 1, 0, 0]


async def test_single_messages_of_a_batch(stand: Stand) -> None:
    made, port = await stand.consumer(SHARED)
    stand.topic.publish([4, 4])
    port.messages()
    made.ack([commands.message_id(1, 0, ack_set=[0b1101], batch_size=4)])
    made.ack([commands.message_id(1, 0, ack_set=[0b0111], batch_size=4)])
    assert await stand.backlog() == 6
    assert made.unacked == 6
    await settle()
    stand.restart()
    made, port = await stand.consumer(SHARED, permits=2)
    (got,) = port.messages()
    assert list(got.ack_set) == [0b0101] and got.message_id.entryId == 0
    assert made.permits == 0, "only the unacknowledged messages count"
    made.ack([commands.message_id(1, 0, ack_set=[0], batch_size=4)])
    assert await stand.backlog() == 4


async def test_a_cumulative_acknowledgement_within_a_batch(stand: Stand) -> None:
    made, _ = await stand.consumer()
    stand.topic.publish([2, 3, 3])
    made.ack([commands.message_id(1, 1, ack_set=[0b100], batch_size=3)], cumulative=True)
    assert made.subscription.mark_delete == Position(1, 0)
    assert await stand.backlog() == 4


async def test_a_shared_subscription_takes_no_cumulative_acknowledgement(stand: Stand) -> None:
    made, _ = await stand.consumer(SHARED)
    stand.topic.publish([1, 1])
    answers: list[QuireError | None] = []
    made.ack(ids((1, 1)), cumulative=True, done=answers.append)
    assert isinstance(answers[0], NotAllowed)
    assert await stand.backlog() == 2


async def test_ids_that_do_not_exist_are_passed_over(stand: Stand) -> None:
    made, _ = await stand.consumer()
    stand.topic.publish([1, 1])
    made.ack(ids((1, 5), (1, 2**64 - 1), (99, 0), (2**64 - 1, 2**64 - 1), (0, 3)))
    made.ack(ids((99, 4)), cumulative=True)
    made.ack([commands.message_id(1, 77, ack_set=[1], batch_size=2)])
    made.ack([commands.message_id(1, 2**64 - 1, ack_set=[1], batch_size=2)], cumulative=True)
    assert await stand.backlog() == 2
    assert not made.subscription.cursor.acked and not made.subscription.cursor.partial


async def test_a_consumer_that_holds_too_much_waits_for_its_acknowledgements(stand: Stand) -> None:
    stand.topic.policies = TopicPolicies(unacked_messages_max=4)
    made, port = await stand.consumer(SHARED)
    stand.topic.publish([1] * 4)
    stand.topic.publish([1] * 2)
    assert port.positions() == [(1, 0), (1, 1), (1, 2), (1, 3)]
    assert made.stats().blocked_consumer_on_unacked_msgs
    made.ack(ids((1, 2)))
    assert port.positions() == [(1, 4), (1, 5)]
    stand.topic.publish([1])
    assert port.positions() == []
    stand.topic.policies = TopicPolicies(unacked_messages_max=0)
    stand.subscriptions.policies_changed()
    assert port.positions() == [(1, 6)], "the policy was changed: there is no limit now"


async def test_cursors_of_another_generation_are_not_taken_up(stand: Stand) -> None:
    await stand.consumer()
    later = Subscriptions(stand.topic, stand.store, 8, ManualClock())
    later.load()
    assert list(later) == []


async def test_the_backlog_is_exact_when_acknowledgements_come_before_the_messages_are_read(
    stand: Stand,
) -> None:
    stand.topic.publish([1, 3, 5, 1])
    stand.topic.publish([2, 2])
    made, port = await stand.consumer(permits=0)
    made.ack(ids((1, 1), (1, 4)))
    made.ack([commands.message_id(1, 2, ack_set=[0b10001], batch_size=5)])
    assert await stand.backlog() == 14 - 3 - 2 - 3
    made.flow(100)
    assert port.positions() == [(1, 0), (1, 2), (1, 3), (1, 5)]
    assert await stand.backlog() == 6


async def test_the_same_snapshot_gives_the_same_store(stand: Stand) -> None:
    made, _ = await stand.consumer(SHARED)
    stand.topic.publish([1] * 10)
    made.ack(ids((1, 3), (1, 5)))
    made.redeliver(ids((1, 4)))
    again = CursorStore()
    for record in stand.store.snapshot():
        again.apply(record)
    assert list(again.snapshot()) == list(stand.store.snapshot())


async def test_an_acknowledgement_is_answered_only_when_it_or_the_deletion_is_durable(stand: Stand) -> None:
    """Acknowledged and unsubscribed in one turn: a crash before the deletion is durable brings the message back."""
    consumer, _ = await stand.consumer()
    stand.topic.publish([1])
    await settle()
    stand.log.is_automatic = False
    answers: list[QuireError | None] = []
    consumer.ack(ids((1, 0)), done=answers.append)
    deletion = asyncio.ensure_future(stand.subscriptions.delete("s", force=True))
    await settle()
    assert answers == []
    stand.log.sync()
    await deletion
    assert answers == [None]
    consumer.ack(ids((1, 0)), done=answers.append)
    assert isinstance(answers[-1], NotFound), "nothing is done for a consumer that is closed"


async def test_what_one_turn_acknowledges_is_cut_to_records_that_a_log_takes(stand: Stand) -> None:
    """A client that acknowledges parts of huge batches, with more bits than any batch has."""
    consumer, _ = await stand.consumer(SHARED, permits=0)
    stand.topic.publish([1_000_000] * 12)
    words = [-2] + [-1] * 80_000
    done: list[QuireError | None] = []
    for entry in range(12):
        one = commands.message_id(1, entry)
        one.ack_set.extend(words)
        consumer.ack([one], done=done.append)
    await settle()
    assert done == [None] * 12
    assert max(map(len, stand.log.records)) <= RECORD_BYTES_MAX
    stand.restart()
    found = stand.subscriptions.get("s")
    assert found is not None
    assert [found.cursor.remaining(Position(1, entry)) for entry in range(12)] == [(1 << 1_000_000) - 2] * 12


async def test_an_id_costs_what_its_bits_cost_whatever_size_it_claims(stand: Stand) -> None:
    """A megabyte of ids, each of a batch of a million as it says, took the loop for eight seconds."""
    consumer, _ = await stand.consumer(SHARED, permits=0)
    stand.topic.publish([1] * 20)
    many = []
    for entry in range(20):
        many.append(commands.message_id(1, entry))
        many[-1].ack_set.append(1)
        many[-1].batch_size = 1_000_000
    tracemalloc.start()
    try:
        consumer.ack(many)
        assert tracemalloc.get_traced_memory()[1] < 100_000, "a million bits are 125 KB"
    finally:
        tracemalloc.stop()
    found = stand.subscriptions.get("s")
    assert found is not None and found.cursor.remaining(Position(1, 7)) == 1


async def test_bits_behind_the_last_word_are_acknowledged(stand: Stand) -> None:
    """Clients leave out the words that are zero; what they say of a batch that was not dispatched is believed."""
    consumer, _ = await stand.consumer(SHARED, permits=0)
    stand.topic.publish([100, 100, 64, 3])
    for entry, words, size in ((0, [-1], 100), (1, [-1, -1], 100), (2, [-1], 0), (3, [5], 3)):
        one = commands.message_id(1, entry)
        one.ack_set.extend(words)
        one.batch_size = size
        consumer.ack([one])
    found = stand.subscriptions.get("s")
    assert found is not None
    left = [found.cursor.remaining(Position(1, entry)) for entry in range(4)]
    assert left == [(1 << 64) - 1, 0, (1 << 64) - 1, 5], "0 is all of it"


async def test_a_snapshot_in_the_turn_of_a_redelivery_counts_it_once(stand: Stand) -> None:
    consumer, _ = await stand.consumer(SHARED)
    stand.topic.publish([1])
    await settle()
    consumer.redeliver(ids((1, 0)))
    snapshot = list(stand.store.snapshot())
    before = len(stand.log.records)
    await settle()
    found = CursorStore()
    for record in [*snapshot, *stand.log.records[before:]]:
        found.apply(record)
    [cursor] = found.of_topic(stand.topic.name)
    assert cursor.redeliveries.count(Position(1, 0)) == 1
