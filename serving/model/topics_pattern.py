r"""Client's pattern for topic names, and the hash by which client and broker compare lists of topics. Performs no I/O.

[PIP-145](https://github.com/apache/pulsar/issues/14505) defines the hash and the matching in the broker.

A pattern is untrusted input, and the broker that matches it also serves other clients. So it must have the syntax of
[RE2](https://github.com/google/re2), which matches in time linear in the length of the name, and in bounded memory. A
pattern that RE2 does not support (look-around, back references) or that is too long is rejected, and the client filters
the names itself. The same applies if RE2 is not installed, because its Python package has a C++ extension, which does
not exist for every platform.

A pattern must match the whole topic name without its domain; for a partition, the name of its partitioned topic:

    persistent://public/default/orders-.*    matches persistent://public/default/orders-eu-partition-3
    public/default/orders-.*                 the same

The hash is CRC-32C over the names, sorted and joined by commas, as eight hexadecimal digits with the lowest byte first.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

from quire.runtime.errors import ConfigurationError
from quire.runtime.limits import TOPICS_PATTERN_CHARS_MAX, TOPICS_PATTERN_MEMORY_BYTES
from quire.wire.checksum import crc32c

_DOMAIN: Final = re.compile(r"(?:non-)?persistent://")
_PARTITION: Final = re.compile(r"-partition-[0-9]+$")


class TopicsPattern:
    """Compiled pattern. Raises `ConfigurationError` if RE2 rejects the text, or it is too long."""

    def __init__(self, text: str) -> None:
        if len(text) > TOPICS_PATTERN_CHARS_MAX:
            raise ConfigurationError(
                f"a pattern of {len(text)} characters is too long; the limit is {TOPICS_PATTERN_CHARS_MAX}"
            )
        self.text = text
        self._compiled = _compiled(_DOMAIN.sub("", text, count=1))

    def matches(self, topic: str) -> bool:
        """Return whether the pattern matches `topic`, a full name."""
        name = _PARTITION.sub("", topic.partition("://")[2])
        return self._compiled.fullmatch(name) is not None


def _compiled(text: str) -> Any:
    try:
        import re2
    except ImportError:
        raise ConfigurationError(
            "this broker was installed without RE2, so clients must match topic patterns themselves"
        ) from None
    options = re2.Options()
    options.max_mem = TOPICS_PATTERN_MEMORY_BYTES
    options.log_errors = False
    try:
        return re2.compile(text, options)
    except re2.error as error:
        why = error.args[0].decode(errors="replace") if error.args else "invalid syntax"
        raise ConfigurationError(f"RE2 cannot compile the pattern {text!r}: {why}") from None


def topics_hash(topics: Iterable[str]) -> str:
    return crc32c(",".join(sorted(topics)).encode()).to_bytes(4, "little").hex()
