"""HTTP endpoints `/health` and `/metrics` of every process, for orchestrators and Prometheus.

Metrics are formatted (`exposition`) only on request, in pieces, each in its own iteration of the event loop (`slices`).
Concurrent requests share one text.
"""

from __future__ import annotations

import asyncio
import os
import resource
from collections.abc import Awaitable, Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from aiohttp import web

from quire import __version__
from quire.runtime.exposition import OPEN_METRICS, PROMETHEUS, pieces, wants_open_metrics
from quire.runtime.metrics import MetricSource, Values, all_of
from quire.runtime.slices import Slices

METRICS = "/metrics"
WITHOUT_NAMES = "names=false"
"""Query parameter that omits the metrics with names of topics."""

PATHS = ("/health", "/health/live", "/health/ready", METRICS, f"{METRICS}/")
"""Public paths: they describe the process, and show names only if `Scrapes.may_see_names` allows it."""


Sources = Sequence[MetricSource]


class Probed(Protocol):
    """Process with health probes and metrics."""

    def why_not_ready(self) -> Sequence[str]:
        """Return the reasons why the process should get no traffic now; empty if it is ready."""
        ...

    def warnings(self) -> Sequence[str]:
        """Return warnings and advice for the operator of a ready process."""
        ...

    def metrics(self) -> Values:
        """Return values by metric names."""
        ...


async def _nothing() -> Values:
    return {}


async def _everybody(_: web.Request) -> bool:
    return True


class Scrapes:
    """Handler of `/metrics`. The metrics of `names` have names of namespaces and topics, and need `may_see_names`."""

    def __init__(
        self,
        sources: Sources,
        names: Callable[[], Awaitable[Values]] = _nothing,
        may_see_names: Callable[[web.Request], Awaitable[bool]] = _everybody,
        slices: Slices | None = None,
    ) -> None:
        self._sources = (_build, of_process, *sources)
        self._names = names
        self._may_see_names = may_see_names
        self._slices = slices or Slices()
        self._under_way: dict[tuple[bool, bool], asyncio.Task[str]] = {}

    async def handle(self, request: web.Request) -> web.Response:
        open_metrics = wants_open_metrics(request.headers.get("Accept", ""))
        with_names = request.query_string != WITHOUT_NAMES and await self._may_see_names(request)
        text = await self.text(open_metrics=open_metrics, with_names=with_names)
        kind = OPEN_METRICS if open_metrics else PROMETHEUS
        return web.Response(body=text.encode(), headers={"Content-Type": kind})

    async def text(self, *, open_metrics: bool = False, with_names: bool = True) -> str:
        key = open_metrics, with_names
        task = self._under_way.get(key)
        if task is None:
            task = self._under_way[key] = asyncio.ensure_future(self._write(open_metrics, with_names))
            task.add_done_callback(lambda _: self._under_way.pop(key))
        return await asyncio.shield(task)

    async def values(self, *, with_names: bool = True) -> Values:
        """Return values by metric names."""
        return {**all_of(self._sources), **(await self._names() if with_names else {})}

    async def _write(self, open_metrics: bool, with_names: bool) -> str:
        found = []
        for piece in pieces(await self.values(with_names=with_names), open_metrics=open_metrics):
            found.append(piece)
            await self._slices.turn()
        return "".join(found)


def of_process() -> Values:
    """Return CPU time, memory and open files of this process, read from `/proc` (proc(5))."""
    try:
        stat = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()  # from its third field on
        open_fds = len(os.listdir("/proc/self/fd"))
    except OSError:
        return {}
    ticks = os.sysconf("SC_CLK_TCK")
    user, system, started, virtual_bytes, resident_pages = (
        float(stat[field]) for field in (11, 12, 19, 20, 21)
    )
    return {
        "process_cpu_seconds_total": (user + system) / ticks,
        "process_resident_memory_bytes": resident_pages * os.sysconf("SC_PAGESIZE"),
        "process_virtual_memory_bytes": virtual_bytes,
        "process_start_time_seconds": _boot_time() + started / ticks,
        "process_open_fds": open_fds,
        "process_max_fds": float(resource.getrlimit(resource.RLIMIT_NOFILE)[0]),
    }


@cache
def _boot_time() -> int:
    """Return the machine's boot time in seconds since 1970."""
    lines = Path("/proc/stat").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("btime "))


def _build() -> Values:
    return {"quire_build_info": {(__version__,): 1}}


def routes(target: Probed, scrapes: Scrapes) -> list[web.RouteDef]:
    return routes_with(scrapes.handle, target.why_not_ready, target.warnings)


def routes_with(
    metrics: Callable[[web.Request], Awaitable[web.Response]],
    why_not_ready: Callable[[], Sequence[str]],
    warnings: Callable[[], Sequence[str]] = tuple,
) -> list[web.RouteDef]:
    """Return the routes. `metrics` is the handler of `/metrics`; the other arguments are as in `Probed`."""

    async def live(_: web.Request) -> web.Response:
        return web.json_response({"live": True})

    async def ready(_: web.Request) -> web.Response:
        reasons = list(why_not_ready())
        told: dict[str, Any] = {"ready": not reasons, "reasons": reasons}
        if found := list(warnings()):
            told["warnings"] = found
        return web.json_response(told, status=503 if reasons else 200)

    handlers = (ready, live, ready, metrics, metrics)
    return [web.get(path, handler) for path, handler in zip(PATHS, handlers, strict=True)]
