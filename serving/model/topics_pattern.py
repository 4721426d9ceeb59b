r"""A client's pattern for topics' names, and the hash by which both sides know that they see the same. A core.

The pattern is anybody's text, and the broker that matches it serves others. So it is RE2's language, whose matching
takes time in proportion to the name, within a bound of memory; what RE2 does not know (look-around, back references)
is refused, as is what is too long; clients then filter by themselves. So they do where RE2 cannot be installed: its
Python package has parts in C++, and not for every machine.

A pattern is about the whole name without its domain, of a partition about its
topic's name:

    persistent://public/default/orders-.*    matches persistent://public/default/orders-eu-partition-3
    public/default/orders-.*                 the same

The hash is CRC-32C over the names, sorted and joined by commas, as eight hexadecimal digits with the lowest byte first.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

from crc32c import crc32c

from quire.runtime.errors import ConfigurationError
from quire.runtime.limits import TOPICS_PATTERN_CHARS_MAX, TOPICS_PATTERN_MEMORY_BYTES

_DOMAIN: Final = re.compile(r"(?:non-)?persistent://")
_PARTITION: Final = re.compile(r"-partition-[0-9]+$")


class TopicsPattern:
    """Raises `ConfigurationError` for a pattern that cannot be taken."""

    def __init__(self, text: str) -> None:
        if len(text) > TOPICS_PATTERN_CHARS_MAX:
            raise ConfigurationError(
                f"a pattern of {len(text)} characters is too long; {TOPICS_PATTERN_CHARS_MAX} are allowed"
            )
        self.text = text
        self._compiled = _compiled(_DOMAIN.sub("", text, count=1))

    def matches(self, topic: str) -> bool:
        """`topic` is a full name."""
        name = _PARTITION.sub("", topic.partition("://")[2])
        return self._compiled.fullmatch(name) is not None


def _compiled(text: str) -> Any:
    try:
        import re2
    except ImportError:
        raise ConfigurationError("this broker was installed without RE2: clients match patterns") from None
    options = re2.Options()
    options.max_mem = TOPICS_PATTERN_MEMORY_BYTES
    options.log_errors = False
    try:
        return re2.compile(text, options)
    except re2.error as error:
        why = error.args[0].decode(errors="replace") if error.args else "it is no pattern"
        raise ConfigurationError(f"the pattern {text!r} is not one of RE2's: {why}") from None


def topics_hash(topics: Iterable[str]) -> str:
    return crc32c(",".join(sorted(topics)).encode()).to_bytes(4, "little").hex()
