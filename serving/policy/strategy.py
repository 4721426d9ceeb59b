"""Schema compatibility strategies, as in [Pulsar]. Performs no I/O.

    BACKWARD      the new schema can read messages of the last one
    FORWARD       the last schema can read messages of the new one
    FULL          both
    …_TRANSITIVE  the same for all versions, not only the last
    ALWAYS_COMPATIBLE, ALWAYS_INCOMPATIBLE   any schema is compatible; no new schema is

`schema.compatibility` checks a schema against a strategy.

[Pulsar]: https://pulsar.apache.org/docs/next/schema-understand/#schema-compatibility-check-strategy
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class Strategy(StrEnum):
    ALWAYS_INCOMPATIBLE = "ALWAYS_INCOMPATIBLE"
    ALWAYS_COMPATIBLE = "ALWAYS_COMPATIBLE"
    BACKWARD = "BACKWARD"
    FORWARD = "FORWARD"
    FULL = "FULL"
    BACKWARD_TRANSITIVE = "BACKWARD_TRANSITIVE"
    FORWARD_TRANSITIVE = "FORWARD_TRANSITIVE"
    FULL_TRANSITIVE = "FULL_TRANSITIVE"

    @property
    def is_transitive(self) -> bool:
        return self.value.endswith("_TRANSITIVE")

    @property
    def asks_backward(self) -> bool:
        return self.value.startswith(("BACKWARD", "FULL"))

    @property
    def asks_forward(self) -> bool:
        return self.value.startswith(("FORWARD", "FULL"))


UNDEFINED: Final = "UNDEFINED"
"""Value that unsets the strategy, so that the level above applies."""

DEFAULT: Final = Strategy.FULL


def for_consumer(strategy: Strategy) -> Strategy:
    """Return the strategy for a consumer's schema, which must only be able to read the existing messages."""
    if strategy in (Strategy.ALWAYS_COMPATIBLE, Strategy.ALWAYS_INCOMPATIBLE):
        return strategy
    every = strategy.is_transitive and strategy.asks_backward
    return Strategy.BACKWARD_TRANSITIVE if every else Strategy.BACKWARD
