"""The REST interface of a broker in this process, over real HTTP."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import aiohttp
import pytest
from yarl import URL

from quire.process.listeners import listen, url_of
from quire.runtime.http_server import HttpServer
from quire.serving.admin.app import make_app
from quire.serving.broker import Broker

TOPIC = "/admin/v2/persistent/public/default/orders"


class Answer(NamedTuple):
    status: int
    body: Any
    """The JSON, None when there is none, else the text."""


class Rest:
    """A client of the REST interface that never raises: tests look at statuses."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self.session = session
        self.url = url

    async def ask(self, method: str, path: str, body: Any = None, **options: Any) -> Answer:
        """`body` is sent as JSON; `data` among the options as it is. The path is sent as it is written."""
        if body is not None:
            options["data"] = json.dumps(body)
        async with self.session.request(method, URL(self.url + path, encoded=True), **options) as answer:
            raw = await answer.read()
        try:
            return Answer(answer.status, json.loads(raw) if raw else None)
        except ValueError:
            return Answer(answer.status, raw.decode(errors="replace"))

    async def get(self, path: str, **options: Any) -> Answer:
        return await self.ask("GET", path, **options)

    async def put(self, path: str, body: Any = None, **options: Any) -> Answer:
        return await self.ask("PUT", path, body, **options)

    async def post(self, path: str, body: Any = None, **options: Any) -> Answer:
        return await self.ask("POST", path, body, **options)

    async def delete(self, path: str, **options: Any) -> Answer:
        return await self.ask("DELETE", path, **options)


@pytest.fixture
async def rest(broker: Broker) -> AsyncIterator[Rest]:
    async with serving_rest(broker) as served:
        yield served


@asynccontextmanager
async def serving_rest(broker: Broker) -> AsyncIterator[Rest]:
    server, sock = HttpServer(make_app(broker)), listen("127.0.0.1:0")
    await server.start()
    listener = await server.listen(sock)
    broker.addresses.http_url = url_of("http", sock)
    async with aiohttp.ClientSession() as session:
        yield Rest(session, broker.addresses.http_url)
    listener.close()
    await server.stop()
