"""What a client may name things, and how much it may say of them: all that is kept has a bound.

How many ids an ACK or a REDELIVER has is bounded by a command's size, and a topic's name by `TopicName`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from quire.runtime.errors import ConfigurationError
from quire.runtime.limits import PROPERTIES_BYTES_MAX
from quire.serving.names import check_name
from quire.wire import pulsar_pb2 as pb


def refused_names(names: Mapping[str, str]) -> str:
    """What is wrong with the first of `names`, by what they are called, that cannot be; nothing when all can."""
    try:
        for what, name in names.items():
            check_name(what, name)
    except ConfigurationError as error:
        return str(error)
    return ""


def refused_properties(what: str, properties: Iterable[pb.KeyValue]) -> str:
    """What is wrong with them; nothing when they can be kept."""
    if sum(item.ByteSize() for item in properties) > PROPERTIES_BYTES_MAX:
        return f"{what} have {PROPERTIES_BYTES_MAX} bytes at most"
    return ""
