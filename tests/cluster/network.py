"""Network between the processes of a cluster on one machine: every address that a process advertises is a proxy's.

    network = Network(lambda: {pid: name, …})
    address = await network.front("bookie-1", "127.0.0.1:4711")     # what bookie-1 advertises
    network.cut("broker-1", "bookie-1")                             # nothing arrives in either direction
    network.cut_one_way("broker-1", "zookeeper")                    # the server receives nothing, but can still send
    network.mend_all()

All connections come from 127.0.0.1, so the kernel is asked for the connecting process: `/proc/net/tcp` maps the port
to an inode, and `/proc/PID/fd` shows which process has it open. A connection of an unknown process is never cut.

All proxies run in a thread with its own event loop, so that traffic between the processes does not wait for a test that
is busy.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from .loop_thread import LoopThread
from .proxy import Direction, Link, Proxy

STRANGER = "stranger"


class Network:
    """Network of proxies. `names` returns the current processes' names by pid; the network's thread calls it."""

    def __init__(self, names: Callable[[], Mapping[int, str]]) -> None:
        self._names = names
        self._thread = LoopThread("network")
        self._proxies: list[Proxy] = []
        self._links: defaultdict[tuple[str, str], Link] = defaultdict(Link)
        """Links by (client, target). Several addresses of one target share a link."""

    async def front(self, target: str, address: str) -> str:
        """Start a proxy for `address` of the process `target`, and return the proxy's address."""
        return await self._thread.run(self._front(target, address))

    async def _front(self, target: str, address: str) -> str:
        def link_of(peer: tuple[str, int]) -> Link:
            return self._links[owner_of(peer[1], proxy.port, self._names()), target]

        proxy = Proxy(address, link_of)
        self._proxies.append(proxy)
        return await proxy.start()

    async def stop(self) -> None:
        await self._thread.run(self._stop())
        await self._thread.stop()

    async def _stop(self) -> None:
        self._mend_all()
        for link in self._links.values():
            link.reset()
        for proxy in self._proxies:
            await proxy.stop()

    # -- faults, which are in effect when these return ---------------------------------------------------

    def cut(self, one: str, other: str) -> None:
        """Cut the link in both directions, like a cable: nothing arrives, but connections stay open."""
        self._thread.call(self._cut, (one, other), (other, one))

    def cut_one_way(self, source: str, target: str) -> None:
        """Cut the link in one direction: bytes from `source` do not reach `target`."""
        self._thread.call(self._cut, (source, target))

    def refuse(self, one: str, other: str) -> None:
        """Reset all connections and refuse new ones, like a firewall."""
        self._thread.call(lambda: [link.refuse() for link in self._between(one, other)])

    def turn_away(self, one: str, other: str, answer: bytes) -> None:
        """Answer each HTTP request of `one` to `other` with `answer`. Requests in flight are lost."""
        self._thread.call(lambda: self._links[one, other].turn_away(answer))

    def slow(self, one: str, other: str, delay_s: float) -> None:
        """Add `delay_s` to both directions."""
        self._thread.call(lambda: [link.slow(delay_s) for link in self._between(one, other)])

    def mend(self, one: str, other: str) -> None:
        self._thread.call(lambda: [link.mend() for link in self._between(one, other)])

    def mend_all(self) -> None:
        self._thread.call(self._mend_all)

    # -- on the network's thread -----------------------------------------------------------------------

    def _cut(self, *pairs: tuple[str, str]) -> None:
        for source, target in pairs:
            for way in self._ways(source, target):
                way.cut()

    def _mend_all(self) -> None:
        for link in self._links.values():
            link.mend()

    def _between(self, one: str, other: str) -> tuple[Link, Link]:
        return self._links[one, other], self._links[other, one]

    def _ways(self, source: str, target: str) -> Iterable[Direction]:
        """Return the directions in which bytes flow from `source` to `target`, whichever of them connected."""
        return self._links[source, target].requests, self._links[target, source].answers


def owner_of(port: int, connected_to: int, names: Mapping[int, str]) -> str:
    """Return the name of the process that connected from `port` to the proxy's port `connected_to`."""
    inode = _inode(port, connected_to)
    if inode is not None:
        for pid, name in names.items():
            if f"socket:[{inode}]" in _open_files(pid):
                return name
    return STRANGER


def _inode(port: int, connected_to: int) -> str | None:
    local, remote = f":{port:04X}", f":{connected_to:04X}"
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        if local not in line:
            continue  # a quick test, because there may be thousands of lines
        fields = line.split()
        if fields[1].endswith(local) and fields[2].endswith(remote):
            return fields[9]
    return None


def _open_files(pid: int) -> Iterator[str]:
    folder = f"/proc/{pid}/fd"
    with suppress(OSError):  # the process has just ended
        for name in os.listdir(folder):
            with suppress(OSError):  # the file has just been closed
                yield os.readlink(f"{folder}/{name}")
