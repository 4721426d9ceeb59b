"""Messages as people read them: decoded by their schemas, with long values truncated.

Entries and values are decoded on helper threads, because clients determine their content, and decoding may take long.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final, Literal

from msgspec import Struct

from quire.runtime.limits import FRAME_BYTES_MAX
from quire.runtime.threads import DaemonThreads
from quire.serving.names import TopicName
from quire.serving.operations import peeking
from quire.serving.operations.matching import DECODED_BYTES_MAX, Found
from quire.serving.schema.definition import Definition
from quire.serving.schema.reading import VALUE_BYTES_MAX, shown
from quire.serving.schema.registry import Schemas
from quire.wire.message import DecodedMessage

MESSAGES_MAX: Final = 100
TEXT_CHARS_MAX: Final = 4096
WHOLE_CHARS_MAX: Final = 3 * VALUE_BYTES_MAX
"""Limit, in characters, of a value's text: in lists, and in downloads."""

WHOLE_ANSWER_CHARS_MAX: Final = 2 << 20
"""Number of characters of an answer with whole messages after which it has no further message."""

LOOK_HOLDS: Final = peeking.BYTES_MAX + FRAME_BYTES_MAX + 2 * DECODED_BYTES_MAX
"""Memory, in bytes, for the entries and their decompressed payloads."""

PROPERTIES_MAX: Final = 50
PROPERTY_CHARS_MAX: Final = 500


class Look(Struct, rename="camel"):
    """Message; if `problem` is not empty, an entry or value that cannot be decoded, with the reason."""

    position: str
    """`ledger:entry`, followed by `:index` for a message of a batch."""
    publish_time_ms: int = 0
    event_time_ms: int = 0
    producer: str = ""
    sequence_id: int = -1
    key: str | None = None
    properties: dict[str, str] = {}
    size: int = 0
    schema_version: int | None = None
    text: str | None = None
    """Value as text; None if the value is null."""
    form: Literal["json", "text", "hex"] = "text"
    is_cut: bool = False
    problem: str = ""


class Looks:
    """Converter of found messages."""

    def __init__(self, schemas: Schemas, helpers: DaemonThreads) -> None:
        self._schemas = schemas
        self._helpers = helpers

    async def of(self, topic: TopicName, found: Sequence[Found], *, whole: bool = False) -> list[Look]:
        """Return messages of a topic as text.

        With `whole`, nothing is truncated but very long values, and the result has only the first messages if all
        would exceed `WHOLE_ANSWER_CHARS_MAX`.
        """
        definitions: dict[int | None, Definition | None] = {}
        for version in {one.version for one in found if one.message is not None}:
            known = await self._schemas.find(topic.parent or topic, version)
            definitions[version] = None if known is None else known.definition
        looks: list[Look] = await self._helpers.run(partial(_looks, found, definitions, whole))
        return looks


def _looks(
    found: Sequence[Found], definitions: Mapping[int | None, Definition | None], whole: bool
) -> list[Look]:
    looks, chars = list[Look](), 0
    for one in found:
        if one.message is None:
            looks.append(Look(str(one), problem=one.problem))
            continue
        if whole and chars > WHOLE_ANSWER_CHARS_MAX:
            break
        look = _look(one, one.message, definitions[one.version], whole)
        chars += _chars(look)
        looks.append(look)
    return looks


def _chars(look: Look) -> int:
    properties = sum(len(key) + len(value) for key, value in look.properties.items())
    return len(look.text or "") + len(look.key or "") + properties


def _look(found: Found, message: DecodedMessage, definition: Definition | None, whole: bool) -> Look:
    chars_max = WHOLE_CHARS_MAX if whole else TEXT_CHARS_MAX
    few, short = (slice(None), slice(None)) if whole else (slice(PROPERTIES_MAX), slice(PROPERTY_CHARS_MAX))
    look = Look(
        str(found),
        message.publish_time_ms,
        message.event_time_ms,
        message.producer_name,
        message.sequence_id,
        None if message.key is None else message.key[short],
        {key[short]: value[short] for key, value in list(message.properties.items())[few]},
        len(message.payload or b""),
        found.version,
    )
    if message.payload is not None:
        value = shown(message.payload, definition, _key_bytes(message))
        look.text, look.form, look.problem = value.text[:chars_max], value.form, value.problem
        look.is_cut = len(value.text) > chars_max
    return look


def _key_bytes(message: DecodedMessage) -> bytes | None:
    if message.key is None or not message.key_is_base64:
        return None if message.key is None else message.key.encode()
    try:
        return b64decode(message.key, validate=True)
    except ValueError:
        return message.key.encode()
