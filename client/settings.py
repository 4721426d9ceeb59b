"""Settings of clients, producers and consumers.

By default, batches contain up to 1,000 messages and wait at most 1 ms, and all queues are bounded. Code that takes
settings from a user calls `validate`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from quire.runtime.errors import ConfigurationError
from quire.runtime.limits import BATCH_MESSAGES_MAX, KIB, MESSAGE_BYTES_MAX, MIB
from quire.runtime.settings import BYTES, MILLISECONDS, setting
from quire.wire.compression import NAMES

CRYPTO_FAILURES: Final = ("fail", "discard", "consume")


@dataclass(frozen=True)
class ClientSettings:
    """Settings of a client, for all its producers and consumers."""

    operation_timeout_ms: int = setting(
        30_000, "Timeout of a request, and of creating a producer or consumer.", unit=MILLISECONDS
    )
    connect_timeout_ms: int = setting(10_000, "Timeout of one connection attempt.", unit=MILLISECONDS)
    keep_alive_ms: int = setting(
        30_000,
        "Time without received data after which a ping is sent; after the same time again the connection is closed.",
        unit=MILLISECONDS,
    )
    backoff_first_ms: int = setting(
        20, "Delay before the first new attempt; it doubles with each attempt.", unit=MILLISECONDS
    )
    backoff_max_ms: int = setting(10_000, "Maximum delay between attempts.", unit=MILLISECONDS)
    partitions_poll_ms: int = setting(
        60_000, "Interval of checking partitioned topics for new partitions.", unit=MILLISECONDS
    )

    def validate(self) -> None:
        for name in ("operation_timeout_ms", "connect_timeout_ms", "keep_alive_ms", "partitions_poll_ms"):
            _require(getattr(self, name) > 0, f"{name} must be positive")
        _require(
            0 < self.backoff_first_ms <= self.backoff_max_ms,
            "backoff_first_ms must be positive and at most backoff_max_ms",
        )


@dataclass(frozen=True)
class ProducerSettings:
    """Settings of a producer: batching, and limits of the messages in flight."""

    compression: str = setting("none", "Compression of payloads: none, lz4, zlib, zstd or snappy.")
    batching: bool = setting(True, "Send several messages as one entry.")
    batch_messages_max: int = setting(1_000, "Maximum number of messages in one batch.")
    batch_bytes_max: int = setting(128 * KIB, "Maximum size of one batch before compression.", unit=BYTES)
    batch_delay_ms: int = setting(1, "Time that a batch waits for more messages.", unit=MILLISECONDS)
    batch_by_key: bool = setting(
        False, "Batch only messages of the same key, as key-shared subscriptions require."
    )
    chunking: bool = setting(False, "Send messages that are too large for one entry as several chunks.")
    in_flight_messages_max: int = setting(
        50_000, "Maximum number of messages without a receipt; further senders wait."
    )
    in_flight_bytes_max: int = setting(
        64 * MIB, "Maximum size of all messages without a receipt; further senders wait.", unit=BYTES
    )
    send_timeout_ms: int = setting(
        30_000, "Time after which a message without a receipt fails with `PublishUnknown`.", unit=MILLISECONDS
    )
    routing: str = setting("round-robin", "Partition of messages without a key: round-robin or single.")
    hashing: str = setting("java", "Hash of keys that selects the partition: java or murmur3.")

    def validate(self) -> None:
        _require(self.compression in NAMES, f"compression must be one of {', '.join(NAMES)}")
        _require(0 < self.batch_messages_max <= BATCH_MESSAGES_MAX, "batch_messages_max is out of range")
        _require(0 < self.batch_bytes_max <= MESSAGE_BYTES_MAX, "batch_bytes_max is out of range")
        _require(self.batch_delay_ms >= 0, "batch_delay_ms is negative")
        _require(self.in_flight_messages_max > 0, "in_flight_messages_max must be positive")
        _require(self.in_flight_bytes_max > 0, "in_flight_bytes_max must be positive")
        _require(self.send_timeout_ms > 0, "send_timeout_ms must be positive")
        _require(self.routing in ("round-robin", "single"), "routing must be round-robin or single")
        _require(self.hashing in ("java", "murmur3"), "hashing must be java or murmur3")


@dataclass(frozen=True)
class ConsumerSettings:
    """Settings of a consumer: prefetching, acknowledgements and redelivery."""

    prefetch_messages_max: int = setting(5_000, "Maximum number of prefetched messages, per partition.")
    prefetch_bytes_max: int = setting(
        32 * MIB, "Approximate maximum size of prefetched messages, per partition.", unit=BYTES
    )
    ack_delay_ms: int = setting(
        20, "Time that acks are collected before they are sent together.", unit=MILLISECONDS
    )
    ack_group_max: int = setting(1_000, "Number of waiting acks that are sent without a further delay.")
    nack_delay_ms: int = setting(
        1_000, "Time after a negative ack until redelivery is requested.", unit=MILLISECONDS
    )
    nack_multiplier: float = setting(1.0, "Factor by which the nack delay increases with each redelivery.")
    nack_delay_max_ms: int = setting(60_000, "Maximum nack delay.", unit=MILLISECONDS)
    ack_timeout_ms: int = setting(
        0,
        "Time after which an unacknowledged message is redelivered; 0: never.",
        unit=MILLISECONDS,
    )
    batch_index_ack: bool = setting(True, "Acknowledge single messages of a batch at the broker.")
    chunked_messages_max: int = setting(
        10, "Maximum number of incomplete chunked messages, per partition; above it the oldest is discarded."
    )
    chunks_expire_ms: int = setting(
        60_000,
        "Time after which chunks of an incomplete message are acknowledged, or on shared subscriptions redelivered.",
        unit=MILLISECONDS,
    )
    crypto_failure: str = setting(
        "fail",
        "Handling of an entry that cannot be decrypted: fail (`MessageUndecodable`), discard, or consume it encrypted.",
    )

    def validate(self) -> None:
        _require(self.prefetch_messages_max > 0, "prefetch_messages_max must be positive")
        _require(self.prefetch_bytes_max > 0, "prefetch_bytes_max must be positive")
        _require(
            self.ack_delay_ms >= 0 and self.nack_delay_ms >= 0,
            "ack_delay_ms and nack_delay_ms must not be negative",
        )
        _require(self.ack_group_max > 0, "ack_group_max must be positive")
        _require(self.ack_timeout_ms >= 0, "ack_timeout_ms is negative")
        _require(self.nack_multiplier >= 1, "nack_multiplier is below 1")
        _require(self.chunked_messages_max > 0, "chunked_messages_max must be positive")
        _require(self.chunks_expire_ms > 0, "chunks_expire_ms must be positive")
        _require(
            self.crypto_failure in CRYPTO_FAILURES,
            f"crypto_failure must be one of {', '.join(CRYPTO_FAILURES)}",
        )


def _require(holds: bool, sentence: str) -> None:
    if not holds:
        raise ConfigurationError(sentence)
