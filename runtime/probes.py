"""`/health`, `/metrics`: what every process answers orchestrators and Prometheus.

Metrics are numbers that the rooms keep; they become text (`exposition`) only when somebody asks, in pieces, each in a
turn of the event loop of its own (`slices`). Who asks while that is under way gets the same text.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, Protocol

from aiohttp import web
from prometheus_client import ProcessCollector

from quire import __version__
from quire.runtime.exposition import OPEN_METRICS, PROMETHEUS, pieces, wants_open_metrics
from quire.runtime.metric_table import BY_NAME
from quire.runtime.metrics import MetricSource, Values, all_of
from quire.runtime.slices import Slices

PATHS = ("/health", "/health/live", "/health/ready", "/metrics", "/metrics/")
"""What everybody may ask: it tells of the process, and of nothing that is kept in it but to `Scrapes.may_see_names`."""


Sources = Sequence[MetricSource]


class Probed(Protocol):
    """A process that is looked at."""

    def why_not_ready(self) -> Sequence[str]:
        """Reasons why it should get no traffic now; empty when it should."""
        ...

    def warnings(self) -> Sequence[str]:
        """What a person should look at though it is ready, with what to do."""
        ...

    def metrics(self) -> Values:
        """By names of the table."""
        ...


async def _nothing() -> Values:
    return {}


async def _everybody(_: web.Request) -> bool:
    return True


class Scrapes:
    """Answers `/metrics`. `names` has what tells of namespaces and topics, for whom `may_see_names` lets see them."""

    def __init__(
        self,
        sources: Sources,
        names: Callable[[], Awaitable[Values]] = _nothing,
        may_see_names: Callable[[web.Request], Awaitable[bool]] = _everybody,
        slices: Slices | None = None,
    ) -> None:
        self._sources = (_build, _Process().metrics, *sources)
        self._names = names
        self._may_see_names = may_see_names
        self._slices = slices or Slices()
        self._under_way: dict[tuple[bool, bool], asyncio.Task[str]] = {}

    async def handle(self, request: web.Request) -> web.Response:
        open_metrics = wants_open_metrics(request.headers.get("Accept", ""))
        text = await self.text(open_metrics=open_metrics, with_names=await self._may_see_names(request))
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
        """By names of the table."""
        return {**all_of(self._sources), **(await self._names() if with_names else {})}

    async def _write(self, open_metrics: bool, with_names: bool) -> str:
        found = []
        for piece in pieces(await self.values(with_names=with_names), open_metrics=open_metrics):
            found.append(piece)
            await self._slices.turn()
        return "".join(found)


class _Process:
    """Its CPU time, memory and files, as Prometheus' own client reads them."""

    def __init__(self) -> None:
        self._collector = ProcessCollector(registry=None)

    def metrics(self) -> Values:
        return dict(self._samples())

    def _samples(self) -> Iterator[tuple[str, float]]:
        for family in self._collector.collect():
            for sample in family.samples:
                if sample.name in BY_NAME:
                    yield sample.name, sample.value


def _build() -> Values:
    return {"quire_build_info": {(__version__,): 1}}


def routes(target: Probed, scrapes: Scrapes) -> list[web.RouteDef]:
    return routes_with(scrapes.handle, target.why_not_ready, target.warnings)


def routes_with(
    metrics: Callable[[web.Request], Awaitable[web.Response]],
    why_not_ready: Callable[[], Sequence[str]],
    warnings: Callable[[], Sequence[str]] = tuple,
) -> list[web.RouteDef]:
    """`metrics` answers with them; the others are as `Probed` says."""

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
