"""Every command that a client may send, and its handler."""

from __future__ import annotations

from typing import Final

from quire.serving.session import consume, handshake, lookup, produce, topic_watch
from quire.serving.session.connection import Handler

TABLE: Final[dict[int, Handler]] = {
    **handshake.HANDLERS,
    **lookup.HANDLERS,
    **produce.HANDLERS,
    **consume.HANDLERS,
    **topic_watch.HANDLERS,
}
