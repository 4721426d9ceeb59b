"""Blocking client, by the standard library, of the broker's HTTP endpoints that a query needs.

GET /quire/v1/topics/{domain}/{tenant}/{namespace}/{topic}/segments
    {"topic": name, "partitions": n, "generation": n, "end": {"ledger": …, "entry": …}, "segments": [{"ledger_id",
    "first_index", "last_entry", "messages", "bytes", "first_clock_ms", "last_clock_ms", "created_ms", "sealed_ms",
    "publish_min_ms", "publish_max_ms", "state", "archive": {"store", "name", "bytes", "crc"} or null,
    "on_bookies": bool}, …]}
    "end" is the last confirmed entry; "generation" changes when the topic is deleted and created again. A
    partitioned topic has partitions > 0 and no segments; its partitions are topics NAME-partition-i.
    With ?start_ms=S&end_ms=E a segment that is not archived also has "first_entry" and "end_entry": all entries that
    were published in [S, E) are in [first_entry, end_entry). A broker that does not know this range omits both fields.
GET /quire/v1/topics/{domain}/{tenant}/{namespace}/{topic}/blocks?ledger=L&entry=E&bytes=N
    whole consecutive confirmed blocks, beginning with the block that contains E; empty if there is no such block; 404
    if the segment was trimmed
GET /admin/v2/tenants, /admin/v2/namespaces/{tenant}
    [names]; the name of a namespace is TENANT/NAMESPACE
GET /admin/v2/persistent/{tenant}/{namespace}
    [names of topics]
GET /admin/v2/persistent/{tenant}/{namespace}/{topic}/partitions
    {"partitions": n}
GET …/{topic}/lastMessageId
    {"ledgerId": …, "entryId": …}: the last confirmed entry
GET …/{topic}/getMessageIdByIndex?index=I, …/{topic}/messageid/TIME_MS
    the same for the entry that contains the message of that index, or for the first entry published at or after TIME_MS
GET …/{topic}/internalStats
    {"ledgers": [{"firstIndex", "messages", …}, …], "cursors": {name: {"markDeletePosition": "LEDGER:ENTRY",
    "properties": {…}}, …}, …}; the cursors are those of durable subscriptions
GET /admin/v2/schemas/{tenant}/{namespace}/{topic}/schema[/VERSION]
    {"version": n, "type": "AVRO", "data": the definition, …}
PUT …/{topic}/subscription/NAME, POST …/{topic}/subscription/NAME/resetcursor
    {"ledgerId": …, "entryId": …, "properties": {…}}: the next entry to be read; -1 and -1 mean the topic's first entry
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
TIME_MS_MAX: Final = 10**18 - 1
"""Maximum time that a broker accepts in a URL's query."""


class Cursor(NamedTuple):
    """Cursor of a durable subscription: its mark-delete position and its properties.

    All entries up to and including that position are acknowledged.
    """

    ledger_id: int
    entry_id: int
    properties: Mapping[str, str]


class Broker:
    """Broker at a URL. It keeps no connection, so it can be pickled. Methods raise the errors of `Admin`."""

    def __init__(self, url: str, tls: ClientTls = ANY_AUTHORITY, credentials: Credentials = NOBODY) -> None:
        self.url = url
        self._admin = Admin(
            url, TIMEOUT_S, attempts=ATTEMPTS, is_neighbour=True, tls=tls, credentials=credentials
        )

    def segments(self, topic: str, start_ms: int | None = None, end_ms: int | None = None) -> dict[str, Any]:
        """Return the broker's list of a topic's segments, with ranges of entries if publish times are given.

        Raises `ConfigurationError` if the server is not a Quire broker.
        """
        times = {"start_ms": start_ms, "end_ms": end_ms}
        query = "&".join(f"{name}={min(ms, TIME_MS_MAX)}" for name, ms in times.items() if ms is not None)
        try:
            answer = self._admin.get(
                f"/quire/v1/topics/{topic_name.path(topic)}/segments{'?' if query else ''}{query}"
            )
        except NotFound as error:
            if str(error).startswith("<"):  # an error page of another HTTP server
                raise self._no_broker() from None
            raise
        if not isinstance(answer, dict) or not answer.keys() >= {"topic", "partitions", "end", "segments"}:
            raise self._no_broker()
        return answer

    def _no_broker(self) -> ConfigurationError:
        return ConfigurationError(
            f"the server at {self.url} is not a Quire broker; service_url is a broker's HTTP address"
        )

    def blocks(self, topic: str, ledger_id: int, entry_id: int, bytes_max: int) -> bytes:
        """Return whole blocks, beginning with the block that contains `entry_id`."""
        query = f"ledger={ledger_id}&entry={entry_id}&bytes={bytes_max}"
        return self._admin.get_raw(f"/quire/v1/topics/{topic_name.path(topic)}/blocks?{query}")[1]

    def namespaces(self) -> list[tuple[str, str]]:
        """Return all namespaces of all tenants, as (tenant, namespace)."""
        tenants: list[str] = self._admin.get("/admin/v2/tenants")
        return [
            (tenant, name.partition("/")[2])
            for tenant in tenants
            for name in self._admin.get(f"/admin/v2/namespaces/{quote(tenant)}")
        ]

    def topics(self, tenant: str, namespace: str) -> list[str]:
        """Return the full names of a namespace's topics."""
        names: list[str] = self._admin.get(f"/admin/v2/persistent/{quote(tenant)}/{quote(namespace)}")
        return names

    def partitions(self, topic: str) -> int:
        """Return the number of partitions; 0 for a topic that is not partitioned."""
        return int(self._admin.get(f"/admin/v2/{topic_name.path(topic)}/partitions")["partitions"])

    def last_confirmed(self, topic: str) -> tuple[int, int]:
        """Return ledger and entry of the last confirmed entry."""
        return _position(self._admin.get(f"/admin/v2/{topic_name.path(topic)}/lastMessageId"))

    def position_of_index(self, topic: str, index: int) -> tuple[int, int]:
        """Return ledger and entry of the message with this index. Raises `NotFound` if there is no such message."""
        return _position(
            self._admin.get(f"/admin/v2/{topic_name.path(topic)}/getMessageIdByIndex?index={index}")
        )

    def position_at_time(self, topic: str, time_ms: int) -> tuple[int, int]:
        """Return the position of the first entry published at `time_ms` or later.

        If there is no such entry, return the position after the last entry.
        """
        return _position(self._admin.get(f"/admin/v2/{topic_name.path(topic)}/messageid/{time_ms}"))

    def next_index(self, topic: str) -> int:
        """Return the index of the next message to be published to a topic that is not partitioned."""
        ledgers = self._admin.get(f"/admin/v2/{topic_name.path(topic)}/internalStats")["ledgers"]
        return int(ledgers[-1]["firstIndex"]) + int(ledgers[-1]["messages"]) if ledgers else 0

    def is_compacted(self, topic: str) -> bool:
        """Return whether an unpartitioned topic has been compacted by the broker."""
        stats = self._admin.get(f"/admin/v2/{topic_name.path(topic)}/internalStats")
        return int(stats["compactedLedger"]["ledgerId"]) >= 0

    def schema(self, topic: str, version: int | None = None) -> dict[str, Any]:
        """Return a version of a topic's schema, by default the newest one. Raises `NotFound`."""
        place = topic_name.path(topic).partition("/")[2]
        tail = "" if version is None else f"/{version}"
        answer: dict[str, Any] = self._admin.get(f"/admin/v2/schemas/{place}/schema{tail}")
        return answer

    # -- durable subscriptions -------------------------------------------------------------------------

    def cursor(self, topic: str, subscription: str) -> Cursor | None:
        """Return the cursor of a subscription to an unpartitioned topic; None if it does not exist."""
        stats = self._admin.get(f"/admin/v2/{topic_name.path(topic)}/internalStats")
        found = stats["cursors"].get(subscription)
        if found is None:
            return None
        ledger_id, _, entry_id = found["markDeletePosition"].partition(":")
        properties = (
            found.get("subscriptionProperties") or found["properties"]
        )  # brokers before 1.1 return only markDeletePosition
        return Cursor(int(ledger_id), int(entry_id), properties or {})

    def subscribe(
        self, topic: str, subscription: str, ledger_id: int, entry_id: int, properties: Mapping[str, str]
    ) -> None:
        """Create a durable subscription that reads the given entry first. Raises `AlreadyExists`."""
        body = {"ledgerId": ledger_id, "entryId": entry_id, "properties": dict(properties)}
        self._admin.put(_subscription(topic, subscription), body)

    def reset_cursor(self, topic: str, subscription: str, ledger_id: int, entry_id: int) -> None:
        """Move a subscription to the given entry, which is read next. Raises `NotFound`."""
        body = {"ledgerId": ledger_id, "entryId": entry_id}
        self._admin.post(f"{_subscription(topic, subscription)}/resetcursor", body)


def _subscription(topic: str, name: str) -> str:
    return f"/admin/v2/{topic_name.path(topic)}/subscription/{topic_name.escaped_subscription(name)}"


def _position(answer: dict[str, Any]) -> tuple[int, int]:
    return int(answer["ledgerId"]), int(answer["entryId"])
