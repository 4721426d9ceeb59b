"""The topics of a namespace as a table for people: a page of it, with what they take in and give out now.

By name, a page is cut from the names that the metadata store lists, a topic with partitions is one row, and only the
records of that page are read. By activity, each broker shows its busiest of what is loaded, partition by partition, and
the busiest of those are the page. So a page costs a list of names, or a look at what is loaded, however many topics
there are, and no topic is loaded for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, NamedTuple
from urllib.parse import quote

from msgspec import Struct, to_builtins
from msgspec.structs import replace

from quire.metadata.records import TopicRecord
from quire.serving.cluster.fan_out import FanOut
from quire.serving.cluster.registry import Registry
from quire.serving.cluster.topic_loader import subscriptions_of
from quire.serving.names import TopicName
from quire.serving.topic.services import Services
from quire.serving.topic.topic import AnyTopic

ROWS_MAX: Final = 500
TOPICS_A_TURN: Final = 100
"""A millisecond or two of looking at loaded topics (`slices`)."""

NAMES_A_TURN: Final = 1_000

Order = Literal["name", "in", "out", "backlog", "size"]


class TopicRow(Struct, rename="camel"):
    """A topic, or all partitions of one. Rates are per second; `topic` is its full name."""

    topic: str
    partitions: int = 0
    is_loaded: bool = False
    """Somebody used it a while ago. What is not loaded takes nothing in and gives nothing out."""
    msg_rate_in: float = 0.0
    msg_throughput_in: float = 0.0
    msg_rate_out: float = 0.0
    msg_throughput_out: float = 0.0
    storage_size: int | None = None
    """None: it is not loaded, and has more segments than its record holds."""
    producers: int = 0
    consumers: int = 0
    subscriptions: int = 0
    backlog: int = 0
    """Messages, of the subscription that is furthest behind; about, and added up over partitions."""
    blocked_reason: str = ""
    """Why some subscription gets nothing now."""


BY: Final[dict[str, Callable[[TopicRow], float]]] = {
    "in": lambda row: row.msg_rate_in,
    "out": lambda row: row.msg_rate_out,
    "backlog": lambda row: row.backlog,
    "size": lambda row: row.storage_size or 0,
}


class TopicPage(Struct, rename="camel"):
    """`total` rows there are in all, as far as is known: by activity, those of loaded topics."""

    total: int
    topics: list[TopicRow]
    silent: list[str] = []
    """Why brokers did not answer, whose topics look idle here."""


class Wanted(NamedTuple):
    """Which topics are asked for; `contains` is a part of a name, in any case."""

    tenant: str
    namespace: str
    domain: str
    contains: str = ""

    def includes(self, name: TopicName) -> bool:
        return name[:3] == (self.domain, self.tenant, self.namespace) and self.contains in name.local.lower()


class TopicTable:
    def __init__(self, registry: Registry, services: Services, fan_out: FanOut) -> None:
        self._registry = registry
        self._services = services
        self._fan_out = fan_out

    async def page(self, wanted: Wanted, order: Order, offset: int, limit: int) -> TopicPage:
        """Raises `NotFound` for an unknown namespace."""
        wanted = wanted._replace(contains=wanted.contains.lower())
        await self._registry.catalogue.namespaces.get(wanted.tenant, wanted.namespace)
        if order == "name":
            return await self._by_name(wanted, offset, limit)
        return await self._by_activity(wanted, order, offset, limit)

    # -- what this broker has loaded -------------------------------------------------------------------

    async def loaded_between(self, wanted: Wanted, first: str, last: str) -> TopicPage:
        """The rows of what is loaded here and has a local name, its own or its parent's, from `first` to `last`."""

        def is_meant(name: TopicName) -> bool:
            parent = name.parent
            return first <= name.local <= last or (parent is not None and first <= parent.local <= last)

        rows = await self._look(wanted._replace(contains=""), is_meant)
        return TopicPage(len(rows), rows)

    async def loaded_most(self, wanted: Wanted, order: Order, most: int) -> TopicPage:
        """The `most` rows that come first, of what is loaded here."""
        rows = await self._look(wanted._replace(contains=wanted.contains.lower()), lambda _: True)
        return TopicPage(len(rows), sorted(rows, key=BY[order], reverse=True)[:most])

    async def _look(self, wanted: Wanted, is_meant: Callable[[TopicName], bool]) -> list[TopicRow]:
        now_s, rows = self._services.clock.monotonic(), list[TopicRow]()
        async for some in self._services.slices.parts(self._registry.all(), NAMES_A_TURN):
            meant = [one for one in some if wanted.includes(one.topic_name) and is_meant(one.topic_name)]
            async for few in self._services.slices.parts(meant, TOPICS_A_TURN):
                rows += [_row(topic, now_s) for topic in few]
        return rows

    # -- of all brokers --------------------------------------------------------------------------------

    async def _by_name(self, wanted: Wanted, offset: int, limit: int) -> TopicPage:
        names = await self._names(wanted)
        shown = names[offset : offset + limit]
        if not shown:
            return TopicPage(len(names), [])
        first, last = shown[0].local, shown[-1].local
        here = await self.loaded_between(wanted, first, last)
        there = await self._elsewhere(wanted, first=first, last=last)
        records = await self._registry.records.find_all(shown)
        rows = {name: _resting(name, records.get(name)) for name in shown}
        for row in [*here.topics, *there.topics]:
            name = TopicName.parse(row.topic)
            holder = name if name in rows else name.parent or name
            if holder in rows:
                rows[holder] = _added(rows[holder], row)
        return TopicPage(len(names), list(rows.values()), there.silent)

    async def _by_activity(self, wanted: Wanted, order: Order, offset: int, limit: int) -> TopicPage:
        here = await self.loaded_most(wanted, order, offset + limit)
        there = await self._elsewhere(wanted, sort=order, limit=str(offset + limit))
        rows = sorted([*here.topics, *there.topics], key=BY[order], reverse=True)
        return TopicPage(here.total + there.total, rows[offset : offset + limit], there.silent)

    async def _names(self, wanted: Wanted) -> Sequence[TopicName]:
        """In order; partitions not, where their parent is there."""
        tenant, namespace, domain = wanted.tenant, wanted.namespace, wanted.domain
        if domain == "persistent":
            every = await self._registry.records.names(tenant, namespace)
        else:
            every = list(map(TopicName.parse, await self._fan_out.topics(tenant, namespace, domain)))
        there, found = set(every), list[TopicName]()
        async for some in self._services.slices.parts(every, NAMES_A_TURN):
            found += [name for name in some if wanted.includes(name) and name.parent not in there]
        return sorted(found)

    async def _elsewhere(self, wanted: Wanted, **asked: str) -> TopicPage:
        """What the other brokers have loaded of it, put together."""
        query = {"domain": wanted.domain, "contains": wanted.contains, **asked}
        path = f"{loaded_path(wanted.tenant, wanted.namespace)}?" + "&".join(
            f"{name}={quote(value, safe='')}" for name, value in query.items()
        )
        answers = await self._fan_out.others("GET", path)
        rows = [_row_of(row) for said in answers.said for row in said["topics"]]
        return TopicPage(sum(said["total"] for said in answers.said), rows, answers.silent)


def loaded_path(tenant: str, namespace: str) -> str:
    """Where one broker asks another for what it has loaded."""
    return f"/quire/v1/namespaces/{quote(tenant, safe='')}/{quote(namespace, safe='')}/topics/loaded"


def shown(page: TopicPage) -> dict[str, Any]:
    """As JSON."""
    found: dict[str, Any] = to_builtins(page)
    return found


def _row_of(said: dict[str, Any]) -> TopicRow:
    """Of another broker's JSON; what a newer one says besides is left out."""
    names = zip(TopicRow.__struct_encode_fields__, TopicRow.__struct_fields__, strict=True)
    return TopicRow(**{field: said[name] for name, field in names if name in said})


def _row(topic: AnyTopic, now_s: float) -> TopicRow:
    """Of a loaded topic; costs some microseconds, and some for each subscription."""
    subscriptions = [one.stats.glance() for one in subscriptions_of(topic)]
    rate, throughput = topic.received.per_second(now_s)
    return TopicRow(
        topic=topic.name,
        is_loaded=True,
        msg_rate_in=rate,
        msg_throughput_in=throughput,
        msg_rate_out=sum(one.msg_rate_out for one in subscriptions),
        msg_throughput_out=sum(one.msg_throughput_out for one in subscriptions),
        storage_size=sum(view.bytes for view in topic.log.segments()),
        producers=len(topic.producers.all()),
        consumers=sum(one.consumers for one in subscriptions),
        subscriptions=len(subscriptions),
        backlog=max((one.backlog for one in subscriptions), default=0),
        blocked_reason=next((one.blocked_reason for one in subscriptions if one.blocked_reason), ""),
    )


def _resting(name: TopicName, record: TopicRecord | None) -> TopicRow:
    """By its record alone."""
    if record is None:
        return TopicRow(str(name))
    if record.partitions:
        return TopicRow(str(name), record.partitions, storage_size=0)
    size = None if record.manifests else sum(segment.bytes for segment in record.segments)
    return TopicRow(str(name), storage_size=size)


def _added(row: TopicRow, loaded: TopicRow) -> TopicRow:
    """With what is told of the topic itself, or of one of its partitions."""
    if not row.partitions:
        return loaded
    return replace(
        row,
        is_loaded=True,
        msg_rate_in=row.msg_rate_in + loaded.msg_rate_in,
        msg_throughput_in=row.msg_throughput_in + loaded.msg_throughput_in,
        msg_rate_out=row.msg_rate_out + loaded.msg_rate_out,
        msg_throughput_out=row.msg_throughput_out + loaded.msg_throughput_out,
        storage_size=(row.storage_size or 0) + (loaded.storage_size or 0),
        producers=row.producers + loaded.producers,
        consumers=row.consumers + loaded.consumers,
        subscriptions=max(row.subscriptions, loaded.subscriptions),
        backlog=row.backlog + loaded.backlog,
        blocked_reason=row.blocked_reason or loaded.blocked_reason,
    )
