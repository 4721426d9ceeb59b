"""Values in the JSON of requests: bounds, and the notations of some tools.

This module imports no HTTP, so that commands which parse policies start fast.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from quire.runtime.errors import ConfigurationError

INT64_MAX: Final = (1 << 63) - 1
PARTITIONS_MAX: Final = 10_000
"""Maximum number of partitions of a topic."""

_NUMBER: Final = re.compile(r"-?[0-9]{1,20}")


class OutOfRange(ConfigurationError):
    """Rejection (412, as in Pulsar) of a number that is out of a policy's range."""


def asks_for_nothing(value: Any) -> bool:
    """Return whether tools send this value for an unset field."""
    if isinstance(value, Mapping):
        return all(map(asks_for_nothing, value.values()))
    return value in (None, False, 0, -1, "", "UNDEFINED", "None") or value == []


def number(value: Any) -> Any:
    """Return a whole number, which some tools send in quotes; None for bool; anything else unchanged."""
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        return int(value)
    return None if isinstance(value, bool) else value
