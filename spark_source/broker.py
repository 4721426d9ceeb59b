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

import http.client
import json
import time
from typing import Any, Final
from urllib.error import HTTPError, URLError
from urllib.parse import quote
from urllib.request import ProxyHandler, build_opener

from quire.runtime.errors import ConfigurationError, NotFound, Unavailable

TIMEOUT_S: Final = 60
ATTEMPTS: Final = 4
PAUSE_S: Final = 0.25
"""Before the second attempt; doubled before each one after that."""


class Broker:
    """One broker, by its URL. Holds nothing open, so it may be pickled."""

    def __init__(self, url: str) -> None:
        self.url = url

    def segments(self, topic: str) -> dict[str, Any]:
        """What a topic consists of. Raises `NotFound`, `Unavailable`, `ConfigurationError`."""
        answer: dict[str, Any] = json.loads(self._get(f"/quire/v1/topics/{_path(topic)}/segments"))
        return answer

    def blocks(self, topic: str, ledger_id: int, entry_id: int, bytes_max: int) -> bytes:
        """Whole blocks from the one with `entry_id` on. Raises like `segments`."""
        query = f"ledger={ledger_id}&entry={entry_id}&bytes={bytes_max}"
        return self._get(f"/quire/v1/topics/{_path(topic)}/blocks?{query}")

    def topics(self, tenant: str, namespace: str) -> list[str]:
        """Full names of a namespace's topics. Raises like `segments`."""
        names: list[str] = json.loads(self._get(f"/admin/v2/persistent/{quote(tenant)}/{quote(namespace)}"))
        return names

    def partitions(self, topic: str) -> int:
        """Number of partitions, 0 for a topic without. Raises like `segments`."""
        answer = json.loads(self._get(f"/admin/v2/{_path(topic)}/partitions"))
        return int(answer["partitions"])

    def _get(self, path: str) -> bytes:
        for attempt in range(ATTEMPTS):
            if attempt:
                time.sleep(PAUSE_S * 2 ** (attempt - 1))
            try:
                return self._try(path)
            except Unavailable:
                if attempt == ATTEMPTS - 1:
                    raise
        raise AssertionError("unreachable")

    def _try(self, path: str) -> bytes:
        # A broker is a neighbour: proxies of the environment are for the world outside.
        opener = build_opener(ProxyHandler({}))
        try:
            with opener.open(self.url + path, timeout=TIMEOUT_S) as answer:
                body: bytes = answer.read()
                return body
        except HTTPError as error:
            reason = error.read(2000).decode("utf-8", "replace").strip() or error.reason
            if error.code == 404:
                raise NotFound(f"{self.url}{path} was not found: {reason}") from None
            if error.code >= 500 or error.code == 429:
                raise Unavailable(f"{self.url}{path} answered {error.code}: {reason}") from None
            raise ConfigurationError(f"{self.url}{path} was refused with {error.code}: {reason}") from None
        except (URLError, http.client.HTTPException, OSError) as error:
            what = error.reason if isinstance(error, URLError) else error
            raise Unavailable(f"the broker at {self.url} cannot be reached: {what}") from None


def _path(topic: str) -> str:
    """`persistent/tenant/namespace/topic` with each part escaped."""
    domain, _, rest = topic.partition("://")
    tenant, namespace, name = rest.split("/", 2)
    return "/".join(quote(part, safe="") for part in (domain, tenant, namespace, name))
