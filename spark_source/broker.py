"""The broker's HTTP endpoints that a query needs, in blocking calls from the standard library.

GET /quire/v1/topics/{domain}/{tenant}/{namespace}/{topic}/segments
    {"topic": name, "partitions": n, "end": {"ledger": …, "entry": …}, "segments": [{"ledger_id", "first_index",
    "last_entry", "messages", "bytes", "first_clock_ms", "last_clock_ms", "state",
    "archive": {"store", "name", "bytes", "crc"} or null, "on_bookies": bool}, …]}
    "end" is the last confirmed entry. A partitioned topic has partitions > 0 and no segments: ask for
    NAME-partition-i.
GET /quire/v1/topics/{domain}/{tenant}/{namespace}/{topic}/blocks?ledger=L&entry=E&bytes=N
    whole consecutive blocks from the one that contains E on, confirmed ones only; empty when there is none;
    404 when the segment was trimmed
GET /admin/v2/tenants, /admin/v2/namespaces/{tenant}
    [names]; those of namespaces begin with their tenant's
GET /admin/v2/persistent/{tenant}/{namespace}
    [names of topics]
GET /admin/v2/persistent/{tenant}/{namespace}/{topic}/partitions
    {"partitions": n}
GET …/{topic}/lastMessageId
    {"ledgerId": …, "entryId": …}: the last confirmed entry
GET …/{topic}/getMessageIdByIndex?index=I, …/{topic}/messageid/TIME_MS
    the same, of the entry that holds the message with that index, of the first one published at that time or later
GET …/{topic}/internalStats
    {"ledgers": [{"firstIndex", "messages", …}, …], "cursors": {name: {"markDeletePosition": "LEDGER:ENTRY",
    "properties": {…}}, …}, …}; the cursors are those of durable subscriptions
GET /admin/v2/schemas/{tenant}/{namespace}/{topic}/schema[/VERSION]
    {"version": n, "type": "AVRO", "data": the definition, …}
PUT …/{topic}/subscription/NAME, POST …/{topic}/subscription/NAME/resetcursor
    {"ledgerId": …, "entryId": …, "properties": {…}}: the entry that is next; -1 and -1 are the first one
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from quire.runtime.credentials import NOBODY, Credentials
from quire.runtime.errors import ConfigurationError, NotFound
from quire.runtime.rest import ANY_AUTHORITY, Admin
from quire.runtime.tls import ClientTls
from quire.wire import topic_name

TIMEOUT_S: Final = 60
ATTEMPTS: Final = 4


class Cursor(NamedTuple):
    """Where a durable subscription stands: everything up to and with this entry is acknowledged."""

    ledger_id: int
    entry_id: int
    properties: Mapping[str, str]


class Broker:
    """One broker, by its URL. Holds nothing open, so it may be pickled. Every method raises as `Admin`'s do."""

    def __init__(self, url: str, tls: ClientTls = ANY_AUTHORITY, credentials: Credentials = NOBODY) -> None:
        self.url = url
        self._admin = Admin(
            url, TIMEOUT_S, attempts=ATTEMPTS, is_neighbour=True, tls=tls, credentials=credentials
        )

    def segments(self, topic: str) -> dict[str, Any]:
        """What a topic consists of. Raises `ConfigurationError` where it is no broker that answers."""
        try:
            answer = self._admin.get(f"/quire/v1/topics/{topic_name.path(topic)}/segments")
        except NotFound as error:
            if str(error).startswith("<"):  # a page of some other server's
                raise self._no_broker() from None
            raise
        if not isinstance(answer, dict) or not answer.keys() >= {"topic", "partitions", "end", "segments"}:
            raise self._no_broker()
        return answer

    def _no_broker(self) -> ConfigurationError:
        return ConfigurationError(
            f"what answers at {self.url} is no broker of Quire; service_url is its HTTP address"
        )

    def blocks(self, topic: str, ledger_id: int, entry_id: int, bytes_max: int) -> bytes:
        """Whole blocks from the one with `entry_id` on."""
        query = f"ledger={ledger_id}&entry={entry_id}&bytes={bytes_max}"
        return self._admin.get_raw(f"/quire/v1/topics/{topic_name.path(topic)}/blocks?{query}")[1]

    def namespaces(self) -> list[tuple[str, str]]:
        """Every tenant's namespaces."""
        tenants: list[str] = self._admin.get("/admin/v2/tenants")
        return [
            (tenant, name.partition("/")[2])
            for tenant in tenants
            for name in self._admin.get(f"/admin/v2/namespaces/{quote(tenant)}")
        ]

    def topics(self, tenant: str, namespace: str) -> list[str]:
        """Full names of a namespace's topics."""
        names: list[str] = self._admin.get(f"/admin/v2/persistent/{quote(tenant)}/{quote(namespace)}")
        return names

    def partitions(self, topic: str) -> int:
        """Number of partitions, 0 for a topic without."""
        return int(self._admin.get(f"/admin/v2/{topic_name.path(topic)}/partitions")["partitions"])

    def last_confirmed(self, topic: str) -> tuple[int, int]:
        """Ledger and entry."""
        return _position(self._admin.get(f"/admin/v2/{topic_name.path(topic)}/lastMessageId"))

    def position_of_index(self, topic: str, index: int) -> tuple[int, int]:
        """Ledger and entry that hold the message with this index. Raises `NotFound` when there is none."""
        return _position(
            self._admin.get(f"/admin/v2/{topic_name.path(topic)}/getMessageIdByIndex?index={index}")
        )

    def position_at_time(self, topic: str, time_ms: int) -> tuple[int, int]:
        """The first entry that was published at `time_ms` or later; after the last one when there is none."""
        return _position(self._admin.get(f"/admin/v2/{topic_name.path(topic)}/messageid/{time_ms}"))

    def next_index(self, topic: str) -> int:
        """The index of the message that is published next to a topic without partitions."""
        ledgers = self._admin.get(f"/admin/v2/{topic_name.path(topic)}/internalStats")["ledgers"]
        return int(ledgers[-1]["firstIndex"]) + int(ledgers[-1]["messages"]) if ledgers else 0

    def is_compacted(self, topic: str) -> bool:
        """Whether a compaction of a topic without partitions has left a result."""
        stats = self._admin.get(f"/admin/v2/{topic_name.path(topic)}/internalStats")
        return int(stats["compactedLedger"]["ledgerId"]) >= 0

    def schema(self, topic: str, version: int | None = None) -> dict[str, Any]:
        """The newest version of a topic's schema, or that one. Raises `NotFound`."""
        place = topic_name.path(topic).partition("/")[2]
        tail = "" if version is None else f"/{version}"
        answer: dict[str, Any] = self._admin.get(f"/admin/v2/schemas/{place}/schema{tail}")
        return answer

    # -- durable subscriptions -------------------------------------------------------------------------

    def cursor(self, topic: str, subscription: str) -> Cursor | None:
        """Where a subscription of a topic without partitions stands; None when there is none."""
        stats = self._admin.get(f"/admin/v2/{topic_name.path(topic)}/internalStats")
        found = stats["cursors"].get(subscription)
        if found is None:
            return None
        ledger_id, _, entry_id = found["markDeletePosition"].partition(":")
        return Cursor(int(ledger_id), int(entry_id), found["properties"] or {})

    def subscribe(
        self, topic: str, subscription: str, ledger_id: int, entry_id: int, properties: Mapping[str, str]
    ) -> None:
        """Make a durable subscription that has an entry next. Raises `AlreadyExists`."""
        body = {"ledgerId": ledger_id, "entryId": entry_id, "properties": dict(properties)}
        self._admin.put(_subscription(topic, subscription), body)

    def reset_cursor(self, topic: str, subscription: str, ledger_id: int, entry_id: int) -> None:
        """An entry is next. Raises `NotFound`."""
        body = {"ledgerId": ledger_id, "entryId": entry_id}
        self._admin.post(f"{_subscription(topic, subscription)}/resetcursor", body)


def _subscription(topic: str, name: str) -> str:
    return f"/admin/v2/{topic_name.path(topic)}/subscription/{quote(name, safe='')}"


def _position(answer: dict[str, Any]) -> tuple[int, int]:
    return int(answer["ledgerId"]), int(answer["entryId"])
