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
GET /admin/v2/persistent/{tenant}/{namespace}
    [names of topics]
GET /admin/v2/persistent/{tenant}/{namespace}/{topic}/partitions
    {"partitions": n}
"""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import quote

from quire.runtime.rest import Admin
from quire.wire import topic_name

TIMEOUT_S: Final = 60
ATTEMPTS: Final = 4


class Broker:
    """One broker, by its URL. Holds nothing open, so it may be pickled. Every method raises as `Admin`'s do."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._admin = Admin(url, TIMEOUT_S, attempts=ATTEMPTS, is_neighbour=True)

    def segments(self, topic: str) -> dict[str, Any]:
        """What a topic consists of."""
        answer: dict[str, Any] = self._admin.get(f"/quire/v1/topics/{topic_name.path(topic)}/segments")
        return answer

    def blocks(self, topic: str, ledger_id: int, entry_id: int, bytes_max: int) -> bytes:
        """Whole blocks from the one with `entry_id` on."""
        query = f"ledger={ledger_id}&entry={entry_id}&bytes={bytes_max}"
        return self._admin.get_raw(f"/quire/v1/topics/{topic_name.path(topic)}/blocks?{query}")[1]

    def topics(self, tenant: str, namespace: str) -> list[str]:
        """Full names of a namespace's topics."""
        names: list[str] = self._admin.get(f"/admin/v2/persistent/{quote(tenant)}/{quote(namespace)}")
        return names

    def partitions(self, topic: str) -> int:
        """Number of partitions, 0 for a topic without."""
        return int(self._admin.get(f"/admin/v2/{topic_name.path(topic)}/partitions")["partitions"])
