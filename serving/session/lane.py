"""Lane: queue of the commands for one producer, consumer or watcher id, in the client's order.

    free    each command is executed as it arrives
    busy    a command is in progress (`run_exclusively`), or a SEND waits until its topic accepts it (`pause`); later
            commands for this id wait

A waiting command is stored serialised, because a parsed acknowledgement of many ids takes ten times the memory. The
connection counts these bytes (`HeldBytes`), and stops reading the socket of a client that continues to send. It also
counts the bytes of a command of many ids that is in progress.

When the lane is free, waiting commands are passed to the connection as if they had just arrived. Large ones are passed
in time slices, during which the lane stays busy. If the producer or consumer was closed meanwhile (`close`), SENDs are
dropped, and requests get the same response as any request for an unknown id.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Final, NamedTuple

from google.protobuf.message import Message

from quire.runtime.limits import ENTRY_OVERHEAD_BYTES, KIB
from quire.serving.session.connection import Connection
from quire.wire import pulsar_pb2 as pb
from quire.wire.commands import Command
from quire.wire.frame import Send, SendRun

BYTES_AT_ONCE: Final = 16 * KIB
"""Number of bytes of waiting commands after whose execution a time slice (`runtime.slices`) ends."""

BYTES_OF_ALL: Final = 1 << 40

WAITING_BYTES: Final = 200
"""Memory, in bytes, of a waiting command in addition to its serialised size."""


class _Packed(NamedTuple):
    """Waiting command, serialised."""

    kind: pb.BaseCommand.Type
    made_by: type[Message]
    raw: bytes


class Lane:
    """Lane of one producer, consumer or watcher id. `kept_bytes` is passed to `keep`."""

    __slots__ = ("_connection", "_kept_bytes", "_waiting", "is_busy")

    def __init__(self, connection: Connection, kept_bytes: int = 0) -> None:
        self._connection = connection
        self._kept_bytes = 0
        self.keep(kept_bytes)
        self.is_busy = False
        self._waiting: deque[tuple[SendRun | Send | _Packed, int]] = deque()

    def keep(self, byte_count: int) -> None:
        """Count `byte_count` bytes in the budget `Services.kept` until the lane is closed.

        Replaces the former count.
        """
        if byte_count != self._kept_bytes:
            kept, owner = self._connection.context.kept, self._connection.peer.owner
            kept.take(owner, byte_count - self._kept_bytes)
            self._kept_bytes = byte_count

    def put_off(self, cut: SendRun | Send | Command) -> None:
        """Queue `cut` after the command in progress and all waiting ones."""
        self._waiting.append(self._held(cut))

    def put_back(self, cut: SendRun | Send) -> None:
        """Queue `cut` before all waiting ones, because it is next and its topic does not accept it yet."""
        self._waiting.appendleft(self._held(cut))

    def _held(self, cut: SendRun | Send | Command) -> tuple[SendRun | Send | _Packed, int]:
        waits: SendRun | Send | _Packed
        if isinstance(cut, SendRun):
            waits, weight = cut, cut.byte_count + ENTRY_OVERHEAD_BYTES * len(cut)
        elif isinstance(cut, Send):
            waits, weight = cut, len(cut.entry) + ENTRY_OVERHEAD_BYTES
        else:
            waits = _Packed(cut.kind, type(cut.body), cut.body.SerializeToString())
            weight = len(waits.raw)
        self._connection.held.hold(weight + WAITING_BYTES)
        return waits, weight + WAITING_BYTES

    def run_exclusively(self, work: Coroutine[Any, Any, None], what: str, byte_count: int = 0) -> None:
        """Execute `work`, which keeps `byte_count` bytes of its command in memory; later commands for this id wait."""
        assert not self.is_busy
        self.is_busy = True
        if byte_count:
            self._connection.held.hold(byte_count)
        self._connection.requests.start(work, what).add_done_callback(lambda _: self._done(byte_count))

    def _done(self, byte_count: int) -> None:
        # a closed connection has already released all its bytes
        if byte_count and not self._connection.is_closed:
            self._connection.held.release(byte_count)
        self._go_on()

    def pause(self, wait: Callable[[Callable[[], None]], None]) -> None:
        """Make all commands for this id wait until a callback is called; `wait` registers that callback."""
        self.is_busy = True
        wait(self._go_on)

    def close(self) -> None:
        """Execute all waiting commands, which find no producer, consumer or watcher of this id any more.

        The id may then be used again. If the connection is closed, drop the commands.
        """
        self.keep(0)
        if self._connection.is_closed:
            self._waiting.clear()
        self.is_busy = False
        self._carry_out(BYTES_OF_ALL)

    def _go_on(self) -> None:
        """Execute waiting commands, in time slices if they are large.

        SENDs need no slices, because they are already parsed.
        """
        of_commands = sum(weight for waits, weight in self._waiting if isinstance(waits, _Packed))
        self.is_busy = of_commands > BYTES_AT_ONCE
        if self.is_busy:
            self._connection.context.slices.put(self._take_slice)
        else:
            self._carry_out(BYTES_OF_ALL)

    def _take_slice(self) -> None:
        self.is_busy = False
        self._carry_out(BYTES_AT_ONCE)
        if self._waiting and not self.is_busy and not self._connection.is_closed:
            self.is_busy = True
            self._connection.context.slices.put(self._take_slice)

    def _carry_out(self, bytes_max: int) -> None:
        """Execute about `bytes_max` bytes of waiting commands while the lane is free.

        An error closes the connection.
        """
        connection = self._connection
        try:
            while self._waiting and not self.is_busy and not connection.is_closed and bytes_max > 0:
                waits, weight = self._waiting.popleft()
                if isinstance(waits, _Packed):
                    bytes_max -= weight
                    connection.carry_out((Command(waits.kind, waits.made_by.FromString(waits.raw)),))
                else:
                    connection.carry_out((waits,))
                connection.held.release(weight)
            connection.acknowledge_gathered()
        except Exception as error:
            connection.fail(error)
