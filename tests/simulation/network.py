"""Simulated network: connections between processes, with delays, cuts in one or both directions, and resets.

A connection consists of two *pipes*, one for each direction. A pipe keeps its bytes in order, and delivers them in
pieces of any size. Different connections overtake one another.

    cut(a, b)       bytes from a to b are held back, as by TCP retransmission; a connection that waits too long is lost
    reset(a, b)     all connections between a and b are lost at once; a part of the bytes in flight still arrives
    slow(a, factor) all traffic from and to a takes longer

A process that dies loses its connections. Its peers learn of it soon, by a TCP reset. If the machine has died, too,
they learn of it when their kernels give up.
"""

from __future__ import annotations

import asyncio
from asyncio import BufferedProtocol
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from .loop import PROCESS, Process
from .world import World

LATENCY_S: Final = 0.0002
KERNEL_GIVES_UP_S: Final = 12.0
HIGH_BYTES: Final = 256 * 1024
EPSILON_S: Final = 1e-9
_FIRST_PORT: Final = 40_000


class _Server:
    """Server object with the used methods of `create_server`'s result."""

    def __init__(self, network: Network, process: Process, factory: Callable[[], Any], port: int) -> None:
        self.network, self.process, self.factory = network, process, factory
        self.address = (process.host, port)
        self.sockets = [self]

    def getsockname(self) -> tuple[str, int]:
        return self.address

    def close(self) -> None:
        if self.network.servers.get(self.address) is self:
            del self.network.servers[self.address]

    async def wait_closed(self) -> None:
        pass


class Network:
    def __init__(self, world: World) -> None:
        self.world = world
        self.loop = world.loop
        self.rng = world.rng("network")
        self.servers: dict[tuple[str, int], _Server] = {}
        self.ends: dict[Transport, None] = {}
        self.cuts: set[tuple[str, str]] = set()
        self.slowness: dict[str, float] = {}
        self.latency_s = LATENCY_S
        self._last_port = _FIRST_PORT
        self.loop.connect = self._connect
        self.loop.serve = self._serve

    # -- faults ----------------------------------------------------------------------------------------
    def cut(self, source: str, target: str) -> None:
        self.cuts.add((source, target))

    def heal(self, source: str, target: str) -> None:
        self.cuts.discard((source, target))
        for end in list(self.ends):
            if (end.process.host, end.peer.process.host) == (source, target):
                end.pipe_goes_on()

    def reset(self, one: str, other: str) -> None:
        for end in list(self.ends):
            if end.process.host == one and end.peer.process.host == other:
                end.lose(ConnectionResetError("reset"), partly=True)

    def half_open(self, one: str, other: str, seconds: float) -> None:
        """Reset the connections of `one` to `other`, which learns of it later, and until then gets bytes in flight."""
        for end in list(self.ends):
            if end.process.host == one and end.peer.process.host == other:
                end.lose_alone(ConnectionResetError("reset"), seconds)

    def slow(self, host: str, factor: float) -> None:
        self.slowness[host] = factor

    def died(self, process: Process, *, silently: bool) -> None:
        """Close a dead process's connections. Peers learn of it soon, or (`silently`) when their kernels give up."""
        for address in [each for each, server in self.servers.items() if server.process is process]:
            del self.servers[address]
        for end in [each for each in self.ends if each.process is process]:
            end.vanish(KERNEL_GIVES_UP_S if silently else self.delay(process.host, end.peer.process.host))

    # -- for the loop ----------------------------------------------------------------------------------
    def delay(self, source: str, target: str) -> float:
        factor = max(self.slowness.get(source, 1.0), self.slowness.get(target, 1.0))
        return self.latency_s * (0.5 + self.rng.expovariate(1.0)) * factor

    def is_cut(self, source: str, target: str) -> bool:
        return (source, target) in self.cuts

    def _serve(self, factory: Callable[[], Any], host: str, port: int) -> _Server:
        process = PROCESS.get()
        assert process is not None
        if not port:
            self._last_port += 1
            port = self._last_port
        server = _Server(self, process, factory, port)
        self.servers[server.address] = server
        return server

    async def _connect(self, factory: Callable[[], Any], host: str, port: int) -> tuple[Transport, Any]:
        process = PROCESS.get()
        assert process is not None
        await asyncio.sleep(self.delay(process.host, host))
        if self.is_cut(process.host, host) or self.is_cut(host, process.host):
            await asyncio.sleep(60)
            raise TimeoutError("no answer")
        server = self.servers.get((host, port))
        if server is None:
            raise ConnectionRefusedError(f"{host}:{port} refuses")
        mine, theirs = Transport(self, process), Transport(self, server.process)
        mine.peer, theirs.peer = theirs, mine
        self.ends[mine] = self.ends[theirs] = None
        theirs.at(0.0, theirs.begin, server.factory)
        await asyncio.sleep(self.delay(host, process.host))
        protocol = factory()
        mine.begin(lambda: protocol)
        return mine, protocol


class Transport(asyncio.Transport):
    """One end of a connection, and the pipe to the other end."""

    peer: Transport

    def __init__(self, network: Network, process: Process) -> None:
        super().__init__()
        self._network = network
        self._loop = network.loop
        self.process = process
        self._protocol: Any = None
        self._closing = False
        self._lost = False
        self._held: deque[bytes] = deque()
        """Pieces that are held back by a cut."""
        self._last_at = 0.0
        self._on_the_way = 0
        self._is_full = False
        self._reading = True
        self._unread: deque[bytes | None] = deque()
        """Pieces that arrived, but were not passed to the protocol yet; None is the end of the stream."""

    def at(self, delay_s: float, act: Callable[..., None], *args: Any) -> None:
        """Call `act` in this end's process after `delay_s`, after all calls scheduled before it."""
        self._last_at = max(self._last_at + EPSILON_S, self._loop.time() + delay_s)
        self._loop.call_at(self._last_at, act, *args, context=self.process.context)

    def begin(self, factory: Callable[[], Any]) -> None:
        if not self._lost:
            self._protocol = factory()
            self._protocol.connection_made(self)
            self._take()

    # -- asyncio's side --------------------------------------------------------------------------------
    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return (self.peer.process.host, 1) if name == "peername" else default

    def is_closing(self) -> bool:
        return self._closing or self._lost

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return self._on_the_way

    def get_protocol(self) -> Any:
        return self._protocol

    def set_protocol(self, protocol: Any) -> None:
        self._protocol = protocol

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True
        if self._unread:
            self._loop.call_soon(self._take)

    def is_reading(self) -> bool:
        return self._reading

    def write(self, data: Any) -> None:
        self.writelines((data,))

    def writelines(self, list_of_data: Any) -> None:
        if self._closing or self._lost:
            return
        data = b"".join(list_of_data)
        if not data:
            return
        self._on_the_way += len(data)
        self._held.append(data)
        self.pipe_goes_on()
        if self._on_the_way > HIGH_BYTES and not self._is_full:
            self._is_full = True
            self._protocol.pause_writing()

    def write_eof(self) -> None:
        raise NotImplementedError

    def can_write_eof(self) -> bool:
        return False

    def close(self) -> None:
        """Close the connection after all written bytes were sent."""
        if not self._closing and not self._lost:
            self._closing = True
            self._held.append(b"")
            self.pipe_goes_on()
            self._loop.call_soon(self._end, None, context=self.process.context)

    def abort(self) -> None:
        if not self._lost:
            self._closing = True
            self._loop.call_soon(self._end, None, context=self.process.context)
            self.peer.at(
                self._network.delay(self.process.host, self.peer.process.host),
                self.peer._end,
                ConnectionResetError("reset by peer"),
            )

    # -- the pipe --------------------------------------------------------------------------------------
    def pipe_goes_on(self) -> None:
        """Send the pieces that are held back, unless the link is cut. After a long cut, lose the connection."""
        network, here, there = self._network, self.process.host, self.peer.process.host
        if network.is_cut(here, there):
            self._loop.call_later(
                KERNEL_GIVES_UP_S, self._give_up_if_cut, len(self._held), context=network.world.context
            )
            return
        while self._held:
            data = self._held.popleft()
            self.peer.at(network.delay(here, there), self.peer._arrive, data)

    def _give_up_if_cut(self, waiting: int) -> None:
        if self._held and waiting and self._network.is_cut(self.process.host, self.peer.process.host):
            self.lose(TimeoutError("the kernel gave up"))

    def _arrive(self, data: bytes) -> None:
        if self._lost:
            return
        self._unread.append(data or None)
        self._take()

    def _take(self) -> None:
        if self._protocol is None:
            return
        while self._reading and self._unread and not self._lost:
            data = self._unread.popleft()
            if data is None:
                self._end(None)
                return
            self._feed(data)
            self.peer._arrived(len(data))

    def _feed(self, data: bytes) -> None:
        """Pass bytes to the protocol, in one piece or two."""
        network = self._network
        if len(data) > 1 and network.rng.random() < 0.1:
            middle = network.rng.randrange(1, len(data))
            self._give(memoryview(data)[:middle])
            if not self._lost:
                self._give(memoryview(data)[middle:])
        else:
            self._give(memoryview(data))

    def _give(self, data: memoryview) -> None:
        protocol = self._protocol
        if not isinstance(protocol, BufferedProtocol):
            protocol.data_received(bytes(data))
            return
        while data and not self._lost:
            room = memoryview(protocol.get_buffer(-1))
            count = min(len(room), len(data))
            room[:count] = data[:count]
            data = data[count:]
            protocol.buffer_updated(count)

    def _arrived(self, count: int) -> None:
        self._on_the_way -= count
        if self._is_full and self._on_the_way < HIGH_BYTES // 4 and not self._lost:
            self._is_full = False
            self._loop.call_soon(self._resume, context=self.process.context)

    def _resume(self) -> None:
        if not self._lost:
            self._protocol.resume_writing()

    # -- the end ---------------------------------------------------------------------------------------
    def _end(self, error: Exception | None) -> None:
        if self._lost:
            return
        self._lost = True
        self._network.ends.pop(self, None)
        if error is None and not self._closing:
            self.peer._loop.call_later(
                self._network.delay(self.process.host, self.peer.process.host),
                self.peer._end,
                None,
                context=self.peer.process.context,
            )
        if self._protocol is not None:
            self._protocol.connection_lost(error)

    def lose(self, error: Exception, *, partly: bool = False) -> None:
        """Reset the connection at both ends. With `partly`, some of the bytes in flight may still arrive."""
        for end in (self, self.peer):
            end._held.clear()
            delay_s = self._network.rng.random() * 0.002 if partly else 0.0
            self._loop.call_later(delay_s, end._end, error, context=end.process.context)

    def lose_alone(self, error: Exception, peer_hears_s: float) -> None:
        """Reset the connection at this end, and at the other end after `peer_hears_s`."""
        self._loop.call_soon(self._end, error, context=self.process.context)
        self.peer.at(peer_hears_s, self.peer._end, error)

    def vanish(self, peer_hears_s: float) -> None:
        """Remove this end, whose process is dead, and reset the other end after `peer_hears_s`."""
        self._lost = True
        self._network.ends.pop(self, None)
        if not self.peer._lost:
            self.peer.at(peer_hears_s, self.peer._end, ConnectionResetError("reset by peer"))
