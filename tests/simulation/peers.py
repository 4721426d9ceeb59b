"""REST requests between simulated brokers: production handlers, with the simulated network's delays and cuts.

Requests are not encoded as HTTP: they are passed to the other broker's application as aiohttp would, in a task of that
broker's process. A request to a broker that is dead or cut off times out.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any, Final
from urllib.parse import urlsplit

from aiohttp import web
from aiohttp.base_protocol import BaseProtocol
from aiohttp.streams import StreamReader
from aiohttp.test_utils import make_mocked_request

from quire.runtime.errors import Unavailable
from quire.serving.ownership.peers import TIMEOUT_S, Peers, error_of

from .faults import Cluster

REDIRECTS_MAX: Final = 5
PATIENCE_S: Final = 5.0


class SimulatedPeers(Peers):
    """Client of `host` for the REST interfaces of all brokers."""

    def __init__(self, cluster: Cluster, host: str) -> None:
        super().__init__()
        self._cluster = cluster
        self._host = host

    async def ask_at(
        self, method: str, http_url: str, path: str, body: Any = None, *, timeout_s: float = TIMEOUT_S
    ) -> Any:
        try:
            async with asyncio.timeout(min(timeout_s, PATIENCE_S)):
                status, text = await self._follow(method, http_url + path, body)
        except TimeoutError:
            raise Unavailable(f"the broker at {http_url} does not answer: time-out") from None
        if status >= 400:
            raise error_of(status, text)
        return json.loads(text) if text else None

    async def _follow(self, method: str, url: str, body: Any) -> tuple[int, str]:
        for _ in range(REDIRECTS_MAX):
            response = await self._request(method, url, body)
            if response.status != 307:
                return response.status, response.text or ""
            url = response.headers["Location"]
        raise Unavailable(f"{url} redirects for ever")

    async def _request(self, method: str, url: str, body: Any) -> web.Response:
        network, parts = self._cluster.network, urlsplit(url)
        host = next(one for one in self._cluster.others if one.host == parts.hostname)
        await asyncio.sleep(network.delay(self._host, host.host))
        app: web.Application | None = getattr(host, "rest", None)
        if host.process is None or app is None:
            raise Unavailable(f"nobody listens at {url}")
        future: asyncio.Future[web.Response] = asyncio.get_running_loop().create_future()
        if not network.is_cut(self._host, host.host):
            path = parts.path + (f"?{parts.query}" if parts.query else "")
            host.process.start(self._serve(app, host.host, method, path, body, future))
        return await future

    async def _serve(
        self,
        app: web.Application,
        host: str,
        method: str,
        path: str,
        body: Any,
        future: asyncio.Future[web.Response],
    ) -> None:
        response = await handle(app, method, path, body)
        await asyncio.sleep(self._cluster.network.delay(host, self._host))
        if not future.done() and not self._cluster.network.is_cut(host, self._host):
            future.set_result(response)


async def handle(app: web.Application, method: str, path: str, body: Any = None) -> web.Response:
    """Pass a request to a broker's REST application, and return the response."""
    loop = asyncio.get_running_loop()
    payload = StreamReader(BaseProtocol(loop), 1 << 16, loop=loop)
    if body is not None:
        payload.feed_data(json.dumps(body).encode())
    payload.feed_eof()
    headers = {"Content-Type": "application/json"} if body is not None else {}
    try:
        response = await app._handle(make_mocked_request(method, path, headers, app=app, payload=payload))
    except web.HTTPException as error:
        response = error
    assert isinstance(response, web.Response)
    return response
