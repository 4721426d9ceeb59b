"""`/quire/v1/topics/…/search`: one slice of a search over all messages of a topic (`operations/searching`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final

from msgspec import Meta, Struct

from quire.runtime.errors import ConfigurationError
from quire.security.authorization import Action
from quire.serving.admin import peek
from quire.serving.admin.looks import LOOK_HOLDS, MESSAGES_MAX, Look, Looks
from quire.serving.admin.peek import BEGIN, END, ByIndex, Start, start_of
from quire.serving.admin.route import TOPIC_NAME, Argument, Route, flag, query, query_number
from quire.serving.admin.storage import TOPIC
from quire.serving.broker import Broker
from quire.serving.names import TopicName
from quire.serving.operations.matching import Filter, Place

TEXT_CHARS_MAX: Final = 1000


class SearchSlice(Struct, rename="camel"):
    """Messages that one slice of a search found. Indexes are topic-wide numbers of messages, from 0."""

    messages: list[Look]
    next: str
    """Value of `from` for the next slice."""
    is_end: bool
    """True if the search has reached the end of the topic."""
    index: int
    """Index of the next message to be examined."""
    first_index: int
    end_index: int


def routes(broker: Broker) -> Sequence[Route]:
    searching, looks = (
        broker.admin.messages.searching,
        Looks(broker.registry.schemas, broker.services.helpers),
    )

    async def place_of(topic: TopicName, start: Start, since_ms: int) -> Place:
        if start == "latest":
            return END
        if isinstance(start, ByIndex):
            return await searching.place_of_index(topic, start)
        if start == BEGIN and since_ms:
            return await searching.place_of_time(topic, since_ms)
        return start

    async def search(
        topic: TopicName, start: Start, count: int, *, whole: bool, **conditions: Any
    ) -> SearchSlice:
        """Return the matching messages of the next part of the topic, and where to continue."""
        wanted = Filter(**conditions)
        found = await searching.slice(topic, await place_of(topic, start, wanted.since_ms), wanted, count)
        messages = await looks.of(topic, found.found, whole=whole)
        if len(messages) < len(found.found):
            found = await searching.shortened(topic, found, len(messages))
        return SearchSlice(
            messages,
            _text(found.place),
            found.is_end,
            found.next_index,
            found.first_index,
            found.end_index,
        )

    return (
        *peek.routes(broker),
        Route(
            "GET",
            f"{TOPIC}/search",
            search,
            TOPIC_NAME,
            query("from", start_of, "earliest"),
            query_number("count", "50", least=1, most=MESSAGES_MAX),
            flag("whole"),
            _condition("key"),
            _condition("value"),
            _condition("property", "prop"),
            query_number("sinceMs", "0", keyword="since_ms"),
            query_number("untilMs", "0", keyword="until_ms"),
            may=Action.CONSUME,
            holds=LOOK_HOLDS,
        ),
    )


def _condition(name: str, keyword: str = "") -> Argument:
    def parse(text: str) -> str:
        if len(text) > TEXT_CHARS_MAX:
            raise ConfigurationError(f"{name} in the query has more than {TEXT_CHARS_MAX} characters")
        return text

    return query(
        name, parse, "", kind=Annotated[str, Meta(max_length=TEXT_CHARS_MAX)], keyword=keyword or name
    )


def _text(place: Place) -> str:
    at = "{}:{}".format(*place.position)
    return f"{at}:{place.batch_index}" if place.batch_index else at
