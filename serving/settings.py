"""Settings of a broker. `quire.runtime.settings` describes the sources of their values."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from quire.runtime.errors import ConfigurationError
from quire.runtime.limits import (
    BYTES_IN_FLIGHT_MAX,
    CONNECTIONS_MAX,
    MESSAGE_BYTES_MAX,
    MESSAGE_BYTES_MIN,
    MIB,
    TAIL_CACHE_BYTES,
)
from quire.runtime.settings import BYTES, MILLISECONDS, parse_address, setting

RATES: Final = tuple(
    f"{what}_{unit}_per_s"
    for what in ("publish", "broker_publish", "broker_dispatch")
    for unit in ("messages", "bytes")
)

LISTENER: Final = re.compile(r"([A-Za-z0-9_.-]+):(pulsar(?:\+ssl)?)://([^/]+)")


@dataclass(frozen=True)
class BrokerSettings:
    """Settings of one broker. The broker listens at `listen`, and lookups return `advertise`.

    For clients in other networks, which send a listener name, lookups return the listener's URL in
    `advertised_listeners`.
    """

    listen: str = setting(
        "127.0.0.1:6650", "Address that clients connect to; by default on loopback; port 0: any free port."
    )
    advertise: str = setting("", "URL that lookups return, pulsar://host:port; empty: the listening address.")
    advertise_tls: str = setting(
        "",
        "URL that lookups return to TLS clients, pulsar+ssl://host:port; empty: the host of advertise.",
    )
    advertised_listeners: str = setting(
        "",
        "URLs that lookups return to clients that send a listener name, NAME:pulsar://HOST:PORT, comma-separated; "
        "pulsar+ssl:// for TLS.",
    )
    cluster: str = setting("standalone", "Name of the cluster, as tools show it.")
    connections_max: int = setting(
        CONNECTIONS_MAX,
        "Maximum of client connections; beyond it the oldest that has not logged in is closed.",
    )
    bytes_in_flight_max: int = setting(
        BYTES_IN_FLIGHT_MAX,
        "Maximum of bytes accepted but not yet in the entry log; beyond it sockets are not read.",
        unit=BYTES,
    )
    tail_cache_bytes: int = setting(
        TAIL_CACHE_BYTES,
        "Memory for confirmed blocks, for tailing readers of all topics.",
        unit=BYTES,
    )
    segment_bytes_max: int = setting(256 * MIB, "A segment is sealed when it reaches this size.", unit=BYTES)
    segment_age_ms_max: int = setting(
        4 * 3_600_000, "A segment that contains messages is sealed at this age.", unit=MILLISECONDS
    )
    retention_ms: int = setting(
        -1,
        "Time for which acknowledged messages are kept, unless a policy sets it; -1: unlimited.",
        unit=MILLISECONDS,
    )
    retention_bytes: int = setting(
        -1,
        "Bytes of a topic's acknowledged messages that are kept, unless a policy sets it; -1: all.",
        unit=BYTES,
    )
    message_bytes_max: int = setting(
        MESSAGE_BYTES_MAX, "Largest message, announced to clients, which chunk larger ones.", unit=BYTES
    )
    publish_messages_per_s: int = setting(
        0, "Publish rate of a topic, unless a policy sets it; its producers are throttled; 0: no limit."
    )
    publish_bytes_per_s: int = setting(
        0, "Publish rate of a topic, unless a policy sets it, as above; 0: no limit.", unit=BYTES
    )
    broker_publish_messages_per_s: int = setting(
        0, "Publish rate of all topics of this broker together; producers are throttled; 0: no limit."
    )
    broker_publish_bytes_per_s: int = setting(
        0, "Publish rate of all topics of this broker together, as above; 0: no limit.", unit=BYTES
    )
    broker_dispatch_messages_per_s: int = setting(
        0, "Dispatch rate of all subscriptions of this broker together; 0: no limit."
    )
    broker_dispatch_bytes_per_s: int = setting(
        0, "Dispatch rate of all subscriptions of this broker together, as above; 0: no limit.", unit=BYTES
    )
    message_ttl_ms: int = setting(
        0,
        "Messages older than this are acknowledged in all subscriptions, unless a policy sets it; 0: never.",
        unit=MILLISECONDS,
    )
    delayed_delivery: bool = setting(
        True, "Shared subscriptions respect a message's delivery time, unless a policy says otherwise."
    )
    delayed_delivery_tick_ms: int = setting(
        20,
        "Maximum delay of a delayed message after its delivery time; messages of one tick are delivered together.",
        unit=MILLISECONDS,
    )
    deduplication: bool = setting(
        False, "Drop messages that a producer sends twice, unless a policy says otherwise."
    )
    broker_entry_metadata: bool = setting(
        False, "Send each message's index in its topic and its time of arrival to clients that support this."
    )
    auto_topic_creation: bool = setting(True, "Create a topic when a client uses one that does not exist.")
    namespace_bundles: int = setting(
        1, "Bundles of a new namespace, each owned by one broker; more than one is useful only in a cluster."
    )
    keep_alive_ms: int = setting(
        30_000,
        "A client that is silent for this time is pinged; after the same time again its connection is closed.",
        unit=MILLISECONDS,
    )
    topic_idle_ms_max: int = setting(
        300_000,
        "A topic that is unused for this time is unloaded, and loaded at its next use; 0: never.",
        unit=MILLISECONDS,
    )
    topic_loads_max: int = setting(200, "Maximum of topics that are loaded concurrently; further ones wait.")
    metrics_topics_max: int = setting(
        1_000,
        "Maximum of topics and subscriptions with series in /metrics; beyond it, or at 0, only namespaces have them.",
    )
    archive_delay_ms: int = setting(
        60_000, "A sealed segment waits this long before it is archived.", unit=MILLISECONDS
    )
    archive_lag_ms: int = setting(
        3_600_000, "Time for which bookies keep a segment after it was archived.", unit=MILLISECONDS
    )
    archive_sidecars: bool = setting(
        True,
        "A low-priority process writes a sidecar of each archived segment, if pyarrow is installed.",
    )

    @property
    def listeners(self) -> dict[str, str]:
        """URLs without TLS, by listener name. Raises `ConfigurationError` if `advertised_listeners` is invalid."""
        return self._listeners("pulsar")

    @property
    def listeners_tls(self) -> dict[str, str]:
        """URLs with TLS, by listener name. Raises `ConfigurationError` if `advertised_listeners` is invalid."""
        return self._listeners("pulsar+ssl")

    def _listeners(self, wanted: str) -> dict[str, str]:
        found: dict[str, str] = {}
        for one in filter(None, map(str.strip, self.advertised_listeners.split(","))):
            parts = LISTENER.fullmatch(one)
            if parts is None:
                raise ConfigurationError(
                    f"advertised_listeners: {one!r} is not a listener, such as external:pulsar://host:6650"
                )
            name, scheme, address = parts.groups()
            parse_address(address, "advertised_listeners:")
            if scheme != wanted:
                continue
            if name in found:
                raise ConfigurationError(
                    f"advertised_listeners contains {name!r} twice; each name may have one URL, and one for TLS"
                )
            found[name] = f"{scheme}://{address}"
        return found

    def validate(self) -> None:
        """Check all values. Raises `ConfigurationError` with the name of the invalid setting."""
        positive = ("connections_max", "bytes_in_flight_max", "segment_bytes_max", "segment_age_ms_max")
        more = ("keep_alive_ms", "topic_loads_max", "namespace_bundles", "delayed_delivery_tick_ms")
        for name in (*positive, *more):
            if getattr(self, name) <= 0:
                raise ConfigurationError(f"{name} must be greater than 0")
        for name in ("topic_idle_ms_max", "metrics_topics_max"):
            if getattr(self, name) < 0:
                raise ConfigurationError(f"{name} must be 0 (never) or more")
        if not MESSAGE_BYTES_MIN <= self.message_bytes_max <= MESSAGE_BYTES_MAX:
            raise ConfigurationError(
                f"message_bytes_max must be {MESSAGE_BYTES_MIN} to {MESSAGE_BYTES_MAX}; clients chunk larger messages"
            )
        for name in RATES:
            if getattr(self, name) < 0:
                raise ConfigurationError(f"{name} must be 0 (no limit) or more")
        if self.message_ttl_ms < 0:
            raise ConfigurationError("message_ttl_ms must be 0 (never) or more")
        for name in ("retention_ms", "retention_bytes"):
            if getattr(self, name) < -1:
                raise ConfigurationError(f"{name} must be -1 (no limit), 0 or more")
        if self.bytes_in_flight_max < 2 * MESSAGE_BYTES_MAX:
            raise ConfigurationError(
                f"bytes_in_flight_max must be at least two messages ({2 * MESSAGE_BYTES_MAX} bytes)"
            )
        parse_address(self.listen, "listen")
        _ = self.listeners, self.listeners_tls
        if self.advertise_tls and not self.advertise_tls.startswith("pulsar+ssl://"):
            raise ConfigurationError(
                f"advertise_tls {self.advertise_tls!r} is not a URL, such as pulsar+ssl://host:6651"
            )
        if self.advertise and not self.advertise.startswith(("pulsar://", "pulsar+ssl://")):
            raise ConfigurationError(f"advertise {self.advertise!r} is not a URL, such as pulsar://host:6650")
