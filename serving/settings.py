"""The settings of a broker. See `quire.runtime.settings` for where values come from."""

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
    """One broker. `listen` is where it listens, `advertise` what clients are told.

    `advertised_listeners` is what those are told that name a listener, for they are in another network.
    """

    listen: str = setting(
        "127.0.0.1:6650", "Address that clients connect to; loopback unless told otherwise, port 0: any free."
    )
    advertise: str = setting("", "What lookups answer, pulsar://host:port; empty: the listening address.")
    advertise_tls: str = setting(
        "",
        "What lookups answer clients that speak TLS, pulsar+ssl://host:port; empty: the host of advertise.",
    )
    advertised_listeners: str = setting(
        "",
        "What lookups answer clients that ask for a listener by its name, NAME:pulsar://HOST:PORT with commas between; "
        "pulsar+ssl:// for TLS.",
    )
    cluster: str = setting("standalone", "Name of the cluster, as tools show it.")
    connections_max: int = setting(
        CONNECTIONS_MAX, "Client connections; with more the oldest that has not logged in is closed."
    )
    bytes_in_flight_max: int = setting(
        BYTES_IN_FLIGHT_MAX,
        "Accepted and not yet in the entry log; beyond it sockets are not read.",
        unit=BYTES,
    )
    tail_cache_bytes: int = setting(
        TAIL_CACHE_BYTES,
        "Confirmed blocks kept for readers that follow closely, over all topics.",
        unit=BYTES,
    )
    segment_bytes_max: int = setting(256 * MIB, "A segment is sealed when it has this size.", unit=BYTES)
    segment_age_ms_max: int = setting(
        4 * 3_600_000, "A segment that holds messages is sealed at this age.", unit=MILLISECONDS
    )
    retention_ms: int = setting(
        -1, "How long acknowledged messages are kept where no policy says; -1: for ever.", unit=MILLISECONDS
    )
    retention_bytes: int = setting(
        -1, "How much is kept of acknowledged messages where no policy says; -1: all.", unit=BYTES
    )
    message_bytes_max: int = setting(
        MESSAGE_BYTES_MAX, "Largest message, as clients are told; they chunk what is larger.", unit=BYTES
    )
    publish_messages_per_s: int = setting(
        0, "What a topic takes where no policy says; its producers are held off beyond it; 0: no limit."
    )
    publish_bytes_per_s: int = setting(
        0, "What a topic takes where no policy says, as above; 0: no limit.", unit=BYTES
    )
    broker_publish_messages_per_s: int = setting(
        0, "What all topics of this broker together take; producers are held off beyond it; 0: no limit."
    )
    broker_publish_bytes_per_s: int = setting(
        0, "What all topics of this broker together take, as above; 0: no limit.", unit=BYTES
    )
    broker_dispatch_messages_per_s: int = setting(
        0, "What all subscriptions of this broker together are sent; 0: no limit."
    )
    broker_dispatch_bytes_per_s: int = setting(
        0, "What all subscriptions of this broker together are sent, as above; 0: no limit.", unit=BYTES
    )
    message_ttl_ms: int = setting(
        0,
        "Messages older than this are acknowledged for everybody where no policy says; 0: never.",
        unit=MILLISECONDS,
    )
    delayed_delivery: bool = setting(
        True, "Shared subscriptions heed a message's time of delivery where no policy says otherwise."
    )
    delayed_delivery_tick_ms: int = setting(
        20, "How late a delayed message may be because others are delivered with it.", unit=MILLISECONDS
    )
    deduplication: bool = setting(False, "Drop what a producer sends twice, where no policy says otherwise.")
    broker_entry_metadata: bool = setting(
        False, "Tell clients that can take it each message's index in its topic, and when the broker took it."
    )
    auto_topic_creation: bool = setting(True, "Create a topic when a client asks for one that is not there.")
    namespace_bundles: int = setting(
        1, "Parts of a new namespace that brokers own one by one; more than one only helps a cluster."
    )
    keep_alive_ms: int = setting(
        30_000, "After this silence a client is pinged, after as much again it is dropped.", unit=MILLISECONDS
    )
    topic_idle_ms_max: int = setting(
        300_000,
        "A topic that nobody used for so long is unloaded, and loaded when it is asked for; 0: never.",
        unit=MILLISECONDS,
    )
    topic_loads_max: int = setting(200, "Topics that are loaded at the same time; more wait.")
    metrics_topics_max: int = setting(
        1_000,
        "Up to so many topics and subscriptions /metrics tells of each; with more, or 0, of namespaces alone.",
    )
    archive_delay_ms: int = setting(
        60_000, "A sealed segment waits this long before it is archived.", unit=MILLISECONDS
    )
    archive_lag_ms: int = setting(
        3_600_000, "How long bookies keep a segment after it was archived.", unit=MILLISECONDS
    )
    archive_sidecars: bool = setting(
        True,
        "A process of low priority writes a sidecar of each archived segment, where pyarrow is installed.",
    )

    @property
    def listeners(self) -> dict[str, str]:
        """URLs by the names of listeners. Raises `ConfigurationError`."""
        return self._listeners("pulsar")

    @property
    def listeners_tls(self) -> dict[str, str]:
        """The same for clients that speak TLS."""
        return self._listeners("pulsar+ssl")

    def _listeners(self, wanted: str) -> dict[str, str]:
        found: dict[str, str] = {}
        for one in filter(None, map(str.strip, self.advertised_listeners.split(","))):
            parts = LISTENER.fullmatch(one)
            if parts is None:
                raise ConfigurationError(
                    f"advertised_listeners: {one!r} is not a listener such as external:pulsar://host:6650"
                )
            name, scheme, address = parts.groups()
            parse_address(address, "advertised_listeners:")
            if scheme != wanted:
                continue
            if name in found:
                raise ConfigurationError(
                    f"advertised_listeners has {name!r} twice; each name has one URL, and one for TLS"
                )
            found[name] = f"{scheme}://{address}"
        return found

    def validate(self) -> None:
        """Raises `ConfigurationError` that names the setting."""
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
                f"message_bytes_max must be from {MESSAGE_BYTES_MIN} to {MESSAGE_BYTES_MAX}; clients chunk the rest"
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
                f"bytes_in_flight_max must hold two messages ({2 * MESSAGE_BYTES_MAX} bytes)"
            )
        parse_address(self.listen, "listen")
        _ = self.listeners, self.listeners_tls
        if self.advertise_tls and not self.advertise_tls.startswith("pulsar+ssl://"):
            raise ConfigurationError(
                f"advertise_tls {self.advertise_tls!r} is not a URL such as pulsar+ssl://host:6651"
            )
        if self.advertise and not self.advertise.startswith(("pulsar://", "pulsar+ssl://")):
            raise ConfigurationError(f"advertise {self.advertise!r} is not a URL such as pulsar://host:6650")
