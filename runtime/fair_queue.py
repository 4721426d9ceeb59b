"""Fair queue of bounded length (longest queue drop). Performs no I/O.

There is one queue for each host (a /64 of IPv6), and one for items without an address. Round robin serves first the
neighbourhoods (/24, or /48 of IPv6), then the hosts in each. When the queue is full, the newest item of the longest
host queue in the longest neighbourhood is dropped. So a flood delays and drops only its own items, even if it comes
from a whole neighbourhood of addresses.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

from quire.runtime.network import network_of, site_of

T = TypeVar("T")


class FairQueue(Generic[T]):
    """Fair queue of at most `length_max` items."""

    def __init__(self, length_max: int) -> None:
        assert length_max > 0
        self._length_max = length_max
        self._sites: dict[str, dict[str, deque[T]]] = {}
        """Queues by neighbourhood and host, in the order in which they are served next."""
        self._at: dict[T, tuple[str, str]] = {}

    def __len__(self) -> int:
        return len(self._at)

    def __contains__(self, item: T) -> bool:
        return item in self._at

    def put(self, item: T, address: str) -> T | None:
        """Append an item from `/host:port`.

        If the queue is full, drop an item, perhaps `item` itself, and return it; else return None.
        """
        site, host = self._at[item] = site_of(address), network_of(address)
        self._sites.setdefault(site, {}).setdefault(host, deque()).append(item)
        if len(self._at) <= self._length_max:
            return None
        dropped = self._longest(site, host)[-1]
        self.remove(dropped)
        return dropped

    def _longest(self, site: str, host: str) -> deque[T]:
        """Return the longest queue. Among equally long ones, choose that of `site` and `host`, else the last one."""
        sites = self._sites
        site = max((site, *reversed(sites)), key=lambda one: sum(map(len, sites[one].values())))
        hosts = sites[site]
        own = (host,) if host in hosts else ()
        return hosts[max((*own, *reversed(hosts)), key=lambda one: len(hosts[one]))]

    @property
    def first(self) -> T | None:
        """Next item; None if the queue is empty."""
        for hosts in self._sites.values():
            for waiting in hosts.values():
                return waiting[0]
        return None

    def take(self) -> T | None:
        """Remove and return the next item; None if the queue is empty."""
        if not self._at:
            return None
        site = next(iter(self._sites))
        hosts = self._sites.pop(site)
        host = next(iter(hosts))
        waiting = hosts.pop(host)
        item = waiting.popleft()
        del self._at[item]
        if waiting:
            hosts[host] = waiting
        if hosts:
            self._sites[site] = hosts
        return item

    def remove(self, item: T) -> bool:
        """Remove an item. Return False if it is not in the queue."""
        at = self._at.pop(item, None)
        if at is None:
            return False
        site, host = at
        hosts = self._sites[site]
        hosts[host].remove(item)
        if not hosts[host]:
            del hosts[host]
        if not hosts:
            del self._sites[site]
        return True
