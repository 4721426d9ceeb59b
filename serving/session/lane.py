"""The commands for one producer, consumer or watcher id, in the client's order.

    free    each is carried out as it comes
    busy    one is under way (`run_exclusively`), or a SEND waits until its topic takes it (`pause`): what comes
            meanwhile waits

A command waits as its bytes, for parsed an acknowledgement of many ids takes ten times as much and more. What waits
is weighed and counts in what its connection holds, so that a peer that sends on is not read; so does a command of many
ids while it is under way.

What waited is handed to the connection anew, as if it had come just now, and in slices when it is much: a lane that
carries it out is busy. When the producer or consumer was closed
meanwhile (`close`), it finds nobody: SENDs are dropped, requests are answered as all that come too late.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from google.protobuf.message import Message

from quire.runtime.limits import ENTRY_OVERHEAD_BYTES, HELD_BYTES_PER_CONNECTION_MAX, KIB
from quire.serving.session.inbound import Inbound, Stop
from quire.wire.commands import Command
from quire.wire.frame import Send, SendRun

if TYPE_CHECKING:
    from quire.serving.session.connection import Connection
    from quire.serving.session.sessions import Sessions

BYTES_AT_ONCE: Final = 16 * KIB
"""Of commands, what is carried out in one go but for the last of them; more goes on in slices (`runtime.slices`)."""

BYTES_OF_ALL: Final = 1 << 40

WAITING_BYTES: Final = 200
"""What it takes to let something wait, beside its bytes."""


class _Packed(NamedTuple):
    """A command as it waits."""

    kind: int
    made_by: type[Message]
    raw: bytes


class HeldBytes:
    """What waits in the lanes of one connection.

    It has a budget of its own, so that many who must wait stop each other and not everybody else.
    """

    def __init__(self, host: Sessions, inbound: Inbound) -> None:
        self._host = host
        self._inbound = inbound
        self._byte_count = 0

    def hold(self, byte_count: int) -> None:
        """So much waits in a lane for its turn."""
        self._byte_count += byte_count
        self._host.held.take(byte_count)
        if self._is_too_much():
            self._inbound.stop(Stop.HELD)

    def release(self, byte_count: int) -> None:
        """It waits no longer."""
        self._byte_count -= byte_count
        self._host.held.give_back(byte_count)
        self._host.budget.look_again()
        if not self._is_too_much():
            self._inbound.go_on(Stop.HELD)

    def release_all(self) -> None:
        """The connection is gone."""
        self._host.held.give_back(self._byte_count)
        self._byte_count = 0

    def _is_too_much(self) -> bool:
        held = self._byte_count
        return held >= HELD_BYTES_PER_CONNECTION_MAX or (held > 0 and self._host.held.is_spent)


class Lane:
    __slots__ = ("_connection", "_waiting", "is_busy")

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.is_busy = False
        self._waiting: deque[tuple[SendRun | Send | _Packed, int]] = deque()

    def put_off(self, cut: SendRun | Send | Command) -> None:
        """`cut` waits for what is under way."""
        self._waiting.append(self._held(cut))

    def put_back(self, cut: SendRun | Send) -> None:
        """Its turn had come, and it must wait on: before everything else."""
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
        """Carry out `work`, which keeps so many bytes of its command; what comes for this id meanwhile waits."""
        assert not self.is_busy
        self.is_busy = True
        if byte_count:
            self._connection.held.hold(byte_count)
        self._connection.requests.start(work, what).add_done_callback(lambda _: self._done(byte_count))

    def _done(self, byte_count: int) -> None:
        # What a connection holds when it ends is given back then.
        if byte_count and not self._connection.is_closed:
            self._connection.held.release(byte_count)
        self._go_on()

    def pause(self, wait: Callable[[Callable[[], None]], None]) -> None:
        """Let everything wait until `wait` calls back."""
        self.is_busy = True
        wait(self._go_on)

    def close(self) -> None:
        """Nobody has this id any more: nothing waits for it, nor for a slice, since another may have the id next."""
        if self._connection.is_closed:
            self._waiting.clear()
        self.is_busy = False
        self._carry_out(BYTES_OF_ALL)

    def _go_on(self) -> None:
        """Carry out what waited, commands in slices when they are much. SENDs are not: they wait as they are."""
        of_commands = sum(weight for waits, weight in self._waiting if isinstance(waits, _Packed))
        self.is_busy = of_commands > BYTES_AT_ONCE
        if self.is_busy:
            self._connection.host.slices.put(self._take_slice)
        else:
            self._carry_out(BYTES_OF_ALL)

    def _take_slice(self) -> None:
        self.is_busy = False
        self._carry_out(BYTES_AT_ONCE)
        if self._waiting and not self.is_busy and not self._connection.is_closed:
            self.is_busy = True
            self._connection.host.slices.put(self._take_slice)

    def _carry_out(self, bytes_max: int) -> None:
        """A mistake in what waited costs the connection, as always; one that is closed carries nothing out."""
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
