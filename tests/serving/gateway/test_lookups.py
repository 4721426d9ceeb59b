"""Questions through the gateway: redirects are followed, strangers refused, "try again" tried elsewhere."""

from __future__ import annotations

from typing import Any

import pytest

from quire.metadata import paths
from quire.wire import commands
from quire.wire import pulsar_pb2 as pb

from .conftest import Front
from .raw import not_now, owner, redirect

TOPIC = "persistent://public/default/t"


async def ask(front: Front) -> Any:
    raw = await front.lookups()
    raw.write(commands.ask_lookup(7, TOPIC))
    answer = await raw.next()
    assert answer.kind == pb.BaseCommand.LOOKUP_RESPONSE
    assert answer.body.request_id == 7  # type: ignore[attr-defined]
    return answer.body


async def test_the_owner_is_told_with_the_word_to_come_through_here(front: Front, script: Any) -> None:
    broker = await script(owner("pulsar://owner:6650"))
    await front.register("a", broker.url)
    answer = await ask(front)
    assert answer.brokerServiceUrl == "pulsar://owner:6650"
    assert answer.proxy_through_service_url
    assert answer.response == pb.CommandLookupTopicResponse.Connect


async def test_a_redirect_is_followed_here(front: Front, script: Any) -> None:
    second = await script(owner("pulsar://owner:6650"))
    first = await script(redirect(second.url))
    await front.register("a", first.url)
    raw = await front.lookups()  # asks the only broker there is
    await front.register("b", second.url)
    raw.write(commands.ask_lookup(1, TOPIC))
    answer: Any = (await raw.next()).body
    assert answer.brokerServiceUrl == "pulsar://owner:6650"
    assert second.received[-1].body.authoritative, "the second broker must know that it was named"


async def test_requests_at_the_same_time_share_a_connection_to_a_broker(front: Front, script: Any) -> None:
    second = await script(*[owner("pulsar://owner:6650")] * 3)
    first = await script(*[redirect(second.url)] * 3)
    await front.register("a", first.url)
    raw = await front.lookups()
    await front.register("b", second.url)
    raw.write(b"".join(commands.ask_lookup(request_id, TOPIC) for request_id in range(3)))
    answers: list[Any] = [(await raw.next()).body for _ in range(3)]
    assert {one.request_id for one in answers} == {0, 1, 2}
    assert {one.brokerServiceUrl for one in answers} == {"pulsar://owner:6650"}
    assert second.arrived.qsize() == 1, "the gateway would close no other one with the client's connection"


async def test_a_redirect_to_a_dead_broker_is_asked_anew(front: Front, script: Any) -> None:
    gone, new = await script(), await script(owner("pulsar://owner:6650"))
    first = await script(redirect(gone.url), redirect(new.url))
    await front.register("a", first.url)
    raw = await front.lookups()
    await front.register("gone", gone.url)
    await front.register("new", new.url)
    await gone.stop()
    front.gateway.brokers.choose = lambda but="": front.gateway.brokers.all()[0]  # type: ignore[method-assign]
    raw.write(commands.ask_lookup(1, TOPIC))
    answer: Any = (await raw.next()).body
    assert answer.brokerServiceUrl == "pulsar://owner:6650"
    assert not first.received[-1].body.authoritative, "the question is as the client put it"


async def test_a_redirect_to_a_stranger_is_not_followed(
    front: Front, script: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quire.gateway.lookups.RETRY_S_MAX", 0.0)
    stranger = await script(owner("pulsar://owner:6650"))
    broker = await script(redirect(stranger.url))
    await front.register("a", broker.url)
    answer = await ask(front)
    assert answer.response == pb.CommandLookupTopicResponse.Failed
    assert answer.error == pb.ServiceNotReady
    assert not stranger.received


async def test_another_broker_is_asked_when_one_cannot_answer_now(front: Front, script: Any) -> None:
    doubting = await script(not_now)
    sure = await script(owner("pulsar://owner:6650"))
    await front.register("a", doubting.url)
    raw = await front.lookups()
    await front.register("b", sure.url)
    raw.write(commands.ask_lookup(1, TOPIC))
    answer: Any = (await raw.next()).body
    assert answer.brokerServiceUrl == "pulsar://owner:6650"
    assert len(doubting.received) == 2, "CONNECT and the question"


async def test_another_broker_is_asked_when_one_dies(front: Front, script: Any) -> None:
    dying = await script(not_now)
    await front.register("a", dying.url)
    raw = await front.lookups()
    sure = await script(owner("pulsar://owner:6650"))
    await front.register("b", sure.url)
    await dying.stop()
    raw.write(commands.ask_lookup(1, TOPIC))
    answer: Any = (await raw.next()).body
    assert answer.brokerServiceUrl == "pulsar://owner:6650"


async def test_no_broker_is_told_as_try_again(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quire.gateway.lookups.RETRY_S_MAX", 0.0)
    raw = await front.connect()
    answer = await raw.next()
    assert answer.kind == pb.BaseCommand.ERROR
    assert answer.body.error == pb.ServiceNotReady  # type: ignore[attr-defined]
    with pytest.raises(EOFError):
        await raw.next()


async def test_a_connection_for_questions_takes_nothing_else(front: Front, script: Any) -> None:
    await front.register("a", (await script(not_now)).url)
    raw = await front.lookups()
    raw.write(commands.producer(pb.CommandProducer(topic=TOPIC, producer_id=1, request_id=1)))
    answer = await raw.next()
    assert answer.kind == pb.BaseCommand.ERROR
    assert "look the topic up" in answer.body.message  # type: ignore[attr-defined]
    with pytest.raises(EOFError):
        await raw.next()


async def test_what_is_no_command_costs_one_connection(front: Front) -> None:
    raw = await front.connect()
    raw.write(b"\x00\x00\x00\x10\x00\x00\x00\x02nonsense")
    other = await front.connect("pulsar://nobody:1")
    assert (await other.next()).kind == pb.BaseCommand.ERROR


async def test_too_many_connections_are_refused(front: Front) -> None:
    several = [await front.connect() for _ in range(10)]
    one_more = await front.connect()
    answer = await one_more.next()
    assert answer.body.error == pb.TooManyRequests  # type: ignore[attr-defined]
    for raw in several:
        raw.close()


async def test_brokers_that_were_known_are_used_while_the_store_is_away(front: Front, script: Any) -> None:
    broker = await script(owner("pulsar://owner:6650"))
    await front.register("a", broker.url)
    front.gateways_store.suspend()
    front.gateway.brokers._followed._on_change(paths.BROKERS)
    assert (await ask(front)).brokerServiceUrl == "pulsar://owner:6650"
