"""Client connection: its parts, responses and close.

    inbound     reads the socket, unless paused (`Stop`)
    outbound    writes to the socket
    peer        identity and liveness of the client
    requests    asynchronous requests in progress
    held        bytes of commands that wait in lanes

A `Session` is a connection with producers, consumers and watchers that executes commands. After a protocol error of a
client, the broker sends an ERROR and closes this connection; other connections are not affected.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from quire.runtime.errors import QuireError, TooMany
from quire.serving.session.context import SessionContext
from quire.serving.session.inbound import Inbound, Receiver
from quire.serving.session.outbound import Outbound
from quire.serving.session.peer import Peer
from quire.serving.session.requests import HeldBytes, Requests
from quire.wire import commands
from quire.wire import pulsar_pb2 as pb
from quire.wire.block import Buffer
from quire.wire.error_codes import code_of
from quire.wire.frame import Cut

_log = logging.getLogger(__name__)


class Connection:
    """Client connection, as its producers, consumers and lanes use it. `begin` creates its parts."""

    def __init__(self, context: SessionContext) -> None:
        self.context = context
        self.inbound: Inbound
        self.outbound: Outbound
        self.peer: Peer
        self.requests: Requests
        self.held: HeldBytes

    def begin(self, transport: asyncio.Transport, receiver: Receiver, peer: Peer) -> None:
        """Create the parts of the connection. `receiver`, the session itself, executes commands."""
        self.peer = peer
        self.inbound = Inbound(self.context, receiver, transport)
        self.outbound = Outbound(transport, self.inbound, self.context.at_end_of_turn)
        self.requests = Requests(self.context, self.inbound)
        self.held = HeldBytes(self.context, self.inbound)

    @property
    def is_closed(self) -> bool:
        return self.outbound.is_closed

    def carry_out(self, cuts: Sequence[Cut]) -> None:
        """Execute commands that were just read, or that waited in a lane."""
        raise NotImplementedError

    def acknowledge_gathered(self) -> None:
        """Execute the acknowledgements that were collected from one read of the socket."""
        raise NotImplementedError

    def forget_producer(self, producer_id: int, end: object) -> None:
        """Remove a closed producer, unless its id is already used by another producer."""
        raise NotImplementedError

    def forget_consumer(self, consumer_id: int, end: object) -> None:
        """Remove a closed consumer, unless its id is already used by another consumer."""
        raise NotImplementedError

    def forget_watcher(self, watcher_id: int) -> None:
        """Remove a topic watcher."""
        raise NotImplementedError

    # -- responses -------------------------------------------------------------------------------------

    def write(self, data: Buffer) -> None:
        """Write `data`; see `Outbound.write`."""
        self.outbound.write(data)

    async def answer(
        self, what: str, work: Callable[[], Awaitable[bytes]], refusal: Callable[[pb.ServerError, str], bytes]
    ) -> None:
        """Await `work`, and write the response that it returns.

        If it fails, write the error response from `refusal`.
        """
        try:
            self.write(await work())
        except QuireError as error:
            self.write(refusal(*self.why_refused(what, error)))

    def refuse_request(self, what: str, request_id: int, error: QuireError) -> None:
        """Answer a request with an ERROR that contains the error's code and text."""
        self.write(commands.error(request_id, *self.why_refused(what, error)))

    def why_refused(self, what: str, error: QuireError) -> tuple[pb.ServerError, str]:
        """Return the error code and text for a rejected request, and log both at level DEBUG."""
        code, text = code_of(error), str(error)
        self._count(error)
        if _log.isEnabledFor(logging.DEBUG):
            name = pb.ServerError.Name(code)
            _log.debug(
                "request rejected: connection=%s command=%s code=%s reason=%s",
                self.peer.name,
                what,
                name,
                text,
            )
        return code, text

    def _count(self, error: BaseException) -> None:
        if isinstance(error, TooMany):
            self.context.limits_met[error.limit] += 1

    # -- end -------------------------------------------------------------------------------------------

    def fail(self, error: Exception) -> None:
        """Close the connection as `refuse` does; log an error that is not a `QuireError`, because it is a bug."""
        if not isinstance(error, QuireError):
            _log.error("internal error, closing a connection: connection=%s", self.peer.name, exc_info=error)
        self.refuse(error)

    def refuse(self, error: BaseException) -> None:
        """Send an ERROR and close the connection, after a protocol violation or if the broker cannot continue."""
        if self.is_closed:
            return
        self._count(error)
        _log.info("closing a connection: connection=%s reason=%s", self.peer.name, error)
        text = str(error) if isinstance(error, QuireError) else "internal error"
        self.write(commands.error(commands.NO_REQUEST, code_of(error), text))
        self.close()

    def close(self) -> None:
        """Send the queued bytes, then close the connection."""
        self.outbound.close()

    def keep_alive(self) -> None:
        """Send a ping to a silent client, or close its connection; called once per keep-alive interval."""
        self.peer.keep_alive(self.inbound, self.outbound)
