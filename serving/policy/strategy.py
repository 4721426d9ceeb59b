"""What is asked of a new schema, in Pulsar's words. A core.

    BACKWARD      who has the new schema reads what was written by the last one
    FORWARD       who has the last one reads what is written by the new one
    FULL          both
    …_TRANSITIVE  and so for every version, not only the last
    ALWAYS_COMPATIBLE, ALWAYS_INCOMPATIBLE   anything; nothing but what is there

`schema.compatibility` tells whether a schema keeps to it.
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
"""Leaves it to the level above."""

DEFAULT: Final = Strategy.FULL


def for_consumer(strategy: Strategy) -> Strategy:
    """What is asked of a consumer's schema, which is not written by: that it reads what is there."""
    if strategy in (Strategy.ALWAYS_COMPATIBLE, Strategy.ALWAYS_INCOMPATIBLE):
        return strategy
    every = strategy.is_transitive and strategy.asks_backward
    return Strategy.BACKWARD_TRANSITIVE if every else Strategy.BACKWARD
