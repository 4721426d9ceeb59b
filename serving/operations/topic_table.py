"""Table of a namespace's topics for operators, in pages, with current rates.

In a table sorted by name, a page is a part of the list of names in the metadata store. A partitioned topic is one row,
and only the records of the page's topics are read. For a table sorted by activity, each broker returns its busiest
loaded topics, with a row for each partition, and the page contains the busiest of all. So a page requires a list of
names, or a scan of loaded topics, and loads no topic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, Literal, NamedTuple
from urllib.parse import quote

from msgspec import Struct
from msgspec.structs import replace

from quire.metadata.records import TopicRecord
from quire.serving.names import TopicName
from quire.serving.operations.fan_out import FanOut
from quire.serving.ownership.peers import reader_of
from quire.serving.registry.registry import Registry
from quire.serving.registry.topic_loader import subscriptions_of
from quire.serving.subscription.dispatch import blocked
from quire.serving.topic.services import Services
from quire.serving.topic.topic import AnyTopic

ROWS_MAX: Final = 500
TOPICS_A_TURN: Final = 100
"""Number of loaded topics visited in one event loop iteration (`slices`); they take a millisecond or two."""

NAMES_A_TURN: Final = 1_000

IDLE_REASONS: Final = frozenset((blocked.NO_CONSUMER, blocked.DELAYED, blocked.RATE_LIMITED, blocked.READING))
"""Reasons that require no action: they are part of normal operation, or end without help."""

Order = Literal["name", "in", "out", "backlog", "size"]


class TopicRow(Struct, rename="camel"):
    """Row of a topic, or of all its partitions. Rates are per second; `topic` is the full name."""

    topic: str
    partitions: int = 0
    is_loaded: bool = False
    """True if a broker has loaded the topic, because a client used it recently. An unloaded topic has no traffic."""
    msg_rate_in: float = 0.0
    msg_throughput_in: float = 0.0
    msg_rate_out: float = 0.0
    msg_throughput_out: float = 0.0
    storage_size: int | None = None
    """Size in bytes; None if the topic is not loaded and has more segments than its record contains."""
    producers: int = 0
    consumers: int = 0
    subscriptions: int = 0
    backlog: int = 0
    """Estimated number of messages in the largest backlog of a subscription, summed over partitions."""
    blocked_reason: str = ""
    """Reason why a subscription receives no messages now; empty if there is none.

    Of several reasons, one that requires an action comes first (`IDLE_REASONS`).
    """


SORT_KEYS: Final[dict[str, Callable[[TopicRow], float]]] = {
    "in": lambda row: row.msg_rate_in,
    "out": lambda row: row.msg_rate_out,
    "backlog": lambda row: row.backlog,
    "size": lambda row: row.storage_size or 0,
}


class TopicPage(Struct, rename="camel"):
    """Page of rows; `total` is the number of rows of the table, which has only loaded topics if sorted by activity."""

    total: int
    topics: list[TopicRow]
    silent: list[str] = []
    """Error texts of brokers that did not answer; their topics appear as idle."""


class TopicQuery(NamedTuple):
    """Query for topics; `contains` is a part of the name, case-insensitive."""

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

    async def page(self, wanted: TopicQuery, order: Order, offset: int, limit: int) -> TopicPage:
        """Return a page of the table. Raises `NotFound` for an unknown namespace."""
        wanted = wanted._replace(contains=wanted.contains.lower())
        await self._registry.catalogue.namespaces.get(wanted.tenant, wanted.namespace)
        if order == "name":
            return await self._by_name(wanted, offset, limit)
        return await self._by_activity(wanted, order, offset, limit)

    # -- loaded topics of this broker ------------------------------------------------------------------

    async def loaded_between(self, wanted: TopicQuery, first: str, last: str) -> TopicPage:
        """Return the rows of this broker's loaded topics whose local name, or parent's, is from `first` to `last`."""

        def matches(name: TopicName) -> bool:
            parent = name.parent
            return first <= name.local <= last or (parent is not None and first <= parent.local <= last)

        rows = await self._loaded_rows(wanted._replace(contains=""), matches)
        return TopicPage(len(rows), rows)

    async def loaded_most(self, wanted: TopicQuery, order: Order, most: int) -> TopicPage:
        """Return the first `most` rows, sorted by `order`, of this broker's loaded topics."""
        rows = await self._loaded_rows(wanted._replace(contains=wanted.contains.lower()), lambda _: True)
        return TopicPage(len(rows), sorted(rows, key=SORT_KEYS[order], reverse=True)[:most])

    async def _loaded_rows(self, wanted: TopicQuery, matches: Callable[[TopicName], bool]) -> list[TopicRow]:
        now_s, rows = self._services.clock.monotonic(), list[TopicRow]()
        async for some in self._services.slices.parts(self._registry.all(), NAMES_A_TURN):
            meant = [one for one in some if wanted.includes(one.topic_name) and matches(one.topic_name)]
            async for few in self._services.slices.parts(meant, TOPICS_A_TURN):
                rows += [_loaded_row(topic, now_s) for topic in few]
        return rows

    # -- all brokers -----------------------------------------------------------------------------------

    async def _by_name(self, wanted: TopicQuery, offset: int, limit: int) -> TopicPage:
        names = await self._names(wanted)
        shown = names[offset : offset + limit]
        if not shown:
            return TopicPage(len(names), [])
        first, last = shown[0].local, shown[-1].local
        here = await self.loaded_between(wanted, first, last)
        there = await self._loaded_elsewhere(wanted, first=first, last=last)
        records = await self._registry.records.find_all(shown)
        rows = {name: _unloaded_row(name, records.get(name)) for name in shown}
        for row in [*here.topics, *there.topics]:
            name = TopicName.parse(row.topic)
            holder = name if name in rows else name.parent or name
            if holder in rows:
                rows[holder] = _merged(rows[holder], row)
        return TopicPage(len(names), list(rows.values()), there.silent)

    async def _by_activity(self, wanted: TopicQuery, order: Order, offset: int, limit: int) -> TopicPage:
        here = await self.loaded_most(wanted, order, offset + limit)
        there = await self._loaded_elsewhere(wanted, sort=order, limit=str(offset + limit))
        rows = sorted([*here.topics, *there.topics], key=SORT_KEYS[order], reverse=True)
        return TopicPage(here.total + there.total, rows[offset : offset + limit], there.silent)

    async def _names(self, wanted: TopicQuery) -> Sequence[TopicName]:
        """List the names, sorted, without partitions that have a parent."""
        tenant, namespace, domain = wanted.tenant, wanted.namespace, wanted.domain
        if domain == "persistent":
            every = await self._registry.records.names(tenant, namespace)
        else:
            every = list(map(TopicName.parse, await self._fan_out.topics(tenant, namespace, domain)))
        there, found = set(every), list[TopicName]()
        async for some in self._services.slices.parts(every, NAMES_A_TURN):
            found += [name for name in some if wanted.includes(name) and name.parent not in there]
        return sorted(found)

    async def _loaded_elsewhere(self, wanted: TopicQuery, **asked: str) -> TopicPage:
        """Combine the rows of topics that the other brokers have loaded."""
        query = {"domain": wanted.domain, "contains": wanted.contains, **asked}
        path = f"{loaded_path(wanted.tenant, wanted.namespace)}?" + "&".join(
            f"{name}={quote(value, safe='')}" for name, value in query.items()
        )
        answers = await self._fan_out.ask_brokers("GET", path)
        pages = [reader_of(TopicPage)(said) for said in answers.said]
        rows = [row for page in pages for row in page.topics]
        return TopicPage(sum(page.total for page in pages), rows, answers.silent)


def loaded_path(tenant: str, namespace: str) -> str:
    """Return the path of the request for a broker's loaded topics."""
    return f"/quire/v1/namespaces/{quote(tenant, safe='')}/{quote(namespace, safe='')}/topics/loaded"


def _loaded_row(topic: AnyTopic, now_s: float) -> TopicRow:
    """Create the row of a loaded topic; takes some microseconds per topic and per subscription."""
    subscriptions = [one.stats.summary() for one in subscriptions_of(topic)]
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
        blocked_reason=_worst(one.blocked_reason for one in subscriptions),
    )


def _unloaded_row(name: TopicName, record: TopicRecord | None) -> TopicRow:
    """Create the row of an unloaded topic from its record."""
    if record is None:
        return TopicRow(str(name))
    if record.partitions:
        return TopicRow(str(name), record.partitions, storage_size=0)
    size = None if record.manifests else sum(segment.bytes for segment in record.segments)
    return TopicRow(str(name), storage_size=size)


def _merged(row: TopicRow, loaded: TopicRow) -> TopicRow:
    """Merge a row with that of the loaded topic, or of one of its loaded partitions."""
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
        blocked_reason=_worst((row.blocked_reason, loaded.blocked_reason)),
    )


def _worst(reasons: Iterable[str]) -> str:
    """Return a reason that requires an action, or else any reason."""
    every = list(filter(None, reasons))
    return next((one for one in every if one not in IDLE_REASONS), every[0] if every else "")
