"""`/quire/v1/topics/…/messages`: readable messages, decoded by their schemas, which stay unacknowledged (`looks`)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final, Literal

from quire.runtime.errors import ConfigurationError
from quire.security.authorization import Action
from quire.serving.admin import publish
from quire.serving.admin.looks import LOOK_HOLDS, MESSAGES_MAX, Look, Looks
from quire.serving.admin.requests import natural
from quire.serving.admin.route import SUBSCRIPTION_NAME, TOPIC_NAME, Natural, Route, query, query_number
from quire.serving.admin.storage import TOPIC
from quire.serving.broker import Broker
from quire.serving.model.ports import EARLIEST, LATEST, Position
from quire.serving.names import TopicName
from quire.serving.operations.matching import DECODED_BYTES_MAX, Found, Place, plain_of, version_of
from quire.serving.operations.peeking import Entry
from quire.wire.message import Undecodable, messages_of, read_metadata

Latest = Literal["latest"]
INDEX: Final = "index:"


class ByIndex(int):
    """Topic-wide index of a message."""


Start = Latest | Place | ByIndex


def routes(broker: Broker) -> Sequence[Route]:
    looks_at, helpers = broker.admin.messages.peeking, broker.services.helpers
    looks = Looks(broker.registry.schemas, helpers)

    async def since(
        start: Start, time: int | None, before: Place | None, count: int, topic: TopicName
    ) -> list[Look]:
        """Return the last messages, or those from a place, an index or a time on, or the last ones before a place."""
        if before is not None:
            entries = await looks_at.before(topic, before.position, before.batch_index > 0, count)
            return await read(topic, entries, count, before=before)
        if time is not None:
            return await read(topic, await looks_at.since_time(topic, time, count), count)
        if isinstance(start, ByIndex):
            start = await broker.admin.messages.searching.place_of_index(topic, start)
        if isinstance(start, Place):
            return await read(topic, await looks_at.since(topic, start.position, count), count, start=start)
        return await read(topic, await looks_at.last(topic, count), count, before=END)

    async def waiting(count: int, topic: TopicName, subscription: str) -> list[Look]:
        return await read(topic, await looks_at.unacknowledged(topic, subscription, count), count)

    async def read(
        topic: TopicName,
        entries: Sequence[Entry],
        count: int,
        *,
        start: Place = BEGIN,
        before: Place | None = None,
    ) -> list[Look]:
        found: list[Found] = await helpers.run(partial(_messages, entries, count, start, before))
        return await looks.of(topic, found)

    count = query_number("count", "20", least=1, most=MESSAGES_MAX)
    return (
        *publish.routes(broker),
        Route(
            "GET",
            f"{TOPIC}/messages",
            since,
            query("from", start_of, "latest"),
            query("time", _time, kind=Natural),
            query("before", _before),
            count,
            TOPIC_NAME,
            may=Action.CONSUME,
            holds=LOOK_HOLDS,
        ),
        Route(
            "GET",
            f"{TOPIC}/subscription/{{subscription}}/messages",
            waiting,
            count,
            TOPIC_NAME,
            SUBSCRIPTION_NAME,
            may=Action.CONSUME,
            holds=LOOK_HOLDS,
        ),
    )


BEGIN: Final = Place(EARLIEST)
END: Final = Place(LATEST)


def start_of(text: str) -> Start:
    """Parse the start of a list or a search. Raises `ConfigurationError`."""
    if text == "latest":
        return "latest"
    if text == "earliest":
        return BEGIN
    if text.startswith(INDEX):
        return ByIndex(natural(text.removeprefix(INDEX), "the index"))
    return _place(text, "from")


def _before(text: str | None) -> Place | None:
    return None if text is None else _place(text, "before")


def _place(text: str, name: str) -> Place:
    ledger, colon, rest = text.partition(":")
    entry, colon_2, index = rest.partition(":")
    if not colon:
        kinds = "latest, earliest, index:NUMBER or " if name == "from" else ""
        raise ConfigurationError(
            f"{name} in the query must be {kinds}LEDGER:ENTRY or LEDGER:ENTRY:INDEX, not {text[:40]!r}"
        )
    position = Position(natural(ledger, "the ledger"), natural(entry, "the entry"))
    return Place(position, natural(index, "the index") if colon_2 else 0)


def _time(text: str | None) -> int | None:
    return None if text is None else natural(text, "time in the query")


# -- on helper threads ---------------------------------------------------------------------------------


def _messages(entries: Sequence[Entry], count: int, start: Place, before: Place | None) -> list[Found]:
    """Return the first `count` messages from `start` on, or the last ones before `before`.

    The result has fewer messages if the entries are too large.
    """
    found: list[Found] = []
    looked_at = 0
    for entry in entries if before is None else reversed(entries):
        inside = [
            one for one in _inside(entry) if start <= one.place and (before is None or one.place < before)
        ]
        looked_at += sum(len(one.message.payload or b"") for one in inside if one.message is not None)
        found = [*found, *inside] if before is None else [*inside, *found]
        if len(found) >= count or looked_at > DECODED_BYTES_MAX:
            break
    return found[:count] if before is None else found[-count:]


def _inside(entry: Entry) -> list[Found]:
    """Return the messages of an entry, or the reason why it cannot be decoded."""
    place = Place(entry.position)
    if entry.problem:
        return [Found(place, problem=entry.problem)]
    try:
        metadata, payload = read_metadata(entry.raw)
        every = messages_of(metadata, plain_of(metadata, payload))
    except Undecodable as error:
        return [Found(place, problem=str(error))]
    version = version_of(metadata)
    return [
        Found(Place(entry.position, max(0, one.batch_index)), one, version)
        for one in every
        if not one.compacted_out and (not entry.left or entry.left >> one.batch_index & 1)
    ]
