"""The client's settings: one frozen dataclass each for the client, a producer and a consumer.

The defaults are safe and fast: batches of up to 1,000 messages that wait at most a millisecond, and nothing that is
unbounded. `validate` is called by whoever takes settings from a user.
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
    """What all producers and consumers of a client share."""

    operation_timeout_ms: int = setting(
        30_000, "How long a request, or creating a producer or consumer, may take.", unit=MILLISECONDS
    )
    connect_timeout_ms: int = setting(10_000, "How long one connection attempt may take.", unit=MILLISECONDS)
    keep_alive_ms: int = setting(
        30_000,
        "A ping after this much silence; after as much again the connection is given up.",
        unit=MILLISECONDS,
    )
    backoff_first_ms: int = setting(
        20, "The wait before the first new attempt; it doubles.", unit=MILLISECONDS
    )
    backoff_max_ms: int = setting(10_000, "The longest wait between attempts.", unit=MILLISECONDS)
    partitions_poll_ms: int = setting(
        60_000, "How often a partitioned topic is asked whether it has grown.", unit=MILLISECONDS
    )

    def validate(self) -> None:
        for name in ("operation_timeout_ms", "connect_timeout_ms", "keep_alive_ms", "partitions_poll_ms"):
            _require(getattr(self, name) > 0, f"{name} must be positive")
        _require(0 < self.backoff_first_ms <= self.backoff_max_ms, "backoff_first_ms exceeds backoff_max_ms")


@dataclass(frozen=True)
class ProducerSettings:
    """How a producer batches, and how much it may have in flight."""

    compression: str = setting("none", "none, lz4, zlib, zstd or snappy.")
    batching: bool = setting(True, "Send several messages as one entry.")
    batch_messages_max: int = setting(1_000, "Messages in one batch.")
    batch_bytes_max: int = setting(128 * KIB, "Bytes in one batch, before compression.", unit=BYTES)
    batch_delay_ms: int = setting(1, "How long a batch waits for more messages.", unit=MILLISECONDS)
    batch_by_key: bool = setting(
        False, "Only messages of one key in a batch, as Key_Shared subscriptions need it."
    )
    chunking: bool = setting(False, "Send messages that are too large for one entry in several.")
    in_flight_messages_max: int = setting(50_000, "Messages without a receipt; beyond it senders wait.")
    in_flight_bytes_max: int = setting(
        64 * MIB, "Bytes without a receipt; beyond it senders wait.", unit=BYTES
    )
    send_timeout_ms: int = setting(
        30_000, "After this a message without a receipt is given up as unknown.", unit=MILLISECONDS
    )
    routing: str = setting("round-robin", "For messages without key: round-robin or single (one partition).")
    hashing: str = setting("java", "Of keys, to choose a partition: java or murmur3.")

    def validate(self) -> None:
        _require(self.compression in NAMES, f"compression is one of {', '.join(NAMES)}")
        _require(0 < self.batch_messages_max <= BATCH_MESSAGES_MAX, "batch_messages_max is out of range")
        _require(0 < self.batch_bytes_max <= MESSAGE_BYTES_MAX, "batch_bytes_max is out of range")
        _require(self.batch_delay_ms >= 0, "batch_delay_ms is negative")
        _require(self.in_flight_messages_max > 0, "in_flight_messages_max must be positive")
        _require(self.in_flight_bytes_max > 0, "in_flight_bytes_max must be positive")
        _require(self.send_timeout_ms > 0, "send_timeout_ms must be positive")
        _require(self.routing in ("round-robin", "single"), "routing is round-robin or single")
        _require(self.hashing in ("java", "murmur3"), "hashing is java or murmur3")


@dataclass(frozen=True)
class ConsumerSettings:
    """How much a consumer fetches ahead, and how it groups acknowledgements."""

    prefetch_messages_max: int = setting(5_000, "Messages fetched ahead, per partition.")
    prefetch_bytes_max: int = setting(
        32 * MIB, "About how many bytes are fetched ahead, per partition.", unit=BYTES
    )
    ack_delay_ms: int = setting(20, "How long acks are gathered before they are sent.", unit=MILLISECONDS)
    ack_group_max: int = setting(1_000, "Acks in one command; so many are sent at once.")
    nack_delay_ms: int = setting(
        1_000, "How long after a negative ack a message is asked for again.", unit=MILLISECONDS
    )
    nack_multiplier: float = setting(1.0, "The delay is so many times as long with each redelivery.")
    nack_delay_max_ms: int = setting(60_000, "What the delay grows to.", unit=MILLISECONDS)
    ack_timeout_ms: int = setting(
        0,
        "A message that is not acknowledged so long after it was received comes again; 0: never.",
        unit=MILLISECONDS,
    )
    batch_index_ack: bool = setting(True, "Tell the broker which messages of a batch are acknowledged.")
    chunked_messages_max: int = setting(
        10, "Messages in chunks that are incomplete at once, per partition; of more the oldest is given up."
    )
    chunks_expire_ms: int = setting(
        60_000,
        "Chunks whose rest did not come so long are acknowledged; those of shared subscriptions are given back.",
        unit=MILLISECONDS,
    )
    crypto_failure: str = setting(
        "fail", "What no key fits: fail (`MessageUndecodable`), discard, or consume it as it is, encrypted."
    )

    def validate(self) -> None:
        _require(self.prefetch_messages_max > 0, "prefetch_messages_max must be positive")
        _require(self.prefetch_bytes_max > 0, "prefetch_bytes_max must be positive")
        _require(self.ack_delay_ms >= 0 and self.nack_delay_ms >= 0, "a delay is negative")
        _require(self.ack_group_max > 0, "ack_group_max must be positive")
        _require(self.ack_timeout_ms >= 0, "ack_timeout_ms is negative")
        _require(self.nack_multiplier >= 1, "nack_multiplier is below 1")
        _require(self.chunked_messages_max > 0, "chunked_messages_max must be positive")
        _require(self.chunks_expire_ms > 0, "chunks_expire_ms must be positive")
        _require(
            self.crypto_failure in CRYPTO_FAILURES, f"crypto_failure is one of {', '.join(CRYPTO_FAILURES)}"
        )


def _require(holds: bool, sentence: str) -> None:
    if not holds:
        raise ConfigurationError(sentence)
