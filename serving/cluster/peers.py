"""Other brokers, asked over REST: for the parts of an answer that only they have, such as a partition's statistics.

Numbers of several brokers' answers are added up, lists put together (`added_up`).

What speaks HTTP is imported by the first who asks, for a process may serve messages before it serves HTTP.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from quire.runtime.credentials import NOBODY
from quire.runtime.errors import QuireError, Unavailable
from quire.security.tls import FollowedContext
from quire.serving.cluster.port import NotOwner
from quire.serving.model.ports import NotAllowed
from quire.serving.names import TopicName
from quire.wire import topic_name

if TYPE_CHECKING:
    from aiohttp import ClientSession

TIMEOUT_S: Final = 30.0


class Peers:
    """`tls`: how this broker calls others by TLS; without it, it does not."""

    def __init__(self, tls: FollowedContext | None = None) -> None:
        self._tls = tls
        self._session: ClientSession | None = None
        self.credentials = NOBODY
        """What this broker presents to others."""

    def choose(self, http_url: str, http_url_tls: str) -> str:
        """At which of its URLs another broker is asked; "" when there is none."""
        return http_url_tls if http_url_tls and self._tls is not None else http_url

    async def ask(self, method: str, elsewhere: NotOwner, path: str, body: Any = None) -> Any:
        """The JSON that the owner answers, None when it has nothing to say. Raises as the owner's own methods would.

        `body` is sent as JSON, if there is one.
        """
        owner = elsewhere.owner
        url = "" if owner is None else self.choose(owner.http_url, owner.http_url_tls)
        if not url:
            raise elsewhere
        return await self.ask_at(method, url, path, body)

    async def ask_at(
        self, method: str, http_url: str, path: str, body: Any = None, *, timeout_s: float = TIMEOUT_S
    ) -> Any:
        """As `ask`, of the broker whose REST interface is at `http_url`."""
        import aiohttp
        from yarl import URL

        if self._session is None:
            self._session = aiohttp.ClientSession()
        url = URL(http_url + path, encoded=True)
        timeout, tls = (
            aiohttp.ClientTimeout(total=timeout_s),
            True if self._tls is None else self._tls.current(),
        )
        try:
            async with self._session.request(
                method, url, json=body, timeout=timeout, ssl=tls, headers=self.credentials.headers()
            ) as answer:
                text = await answer.text()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise Unavailable(f"{http_url} does not answer: {str(error) or 'time-out'}") from error
        if answer.status >= 400:
            raise error_of(answer.status, text)
        return json.loads(text) if text else None

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None


def added_up(answers: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """One JSON object out of several of the same fields, which are numbers or lists."""
    total: dict[str, Any] = {}
    for answer in answers:
        for name, value in answer.items():
            total[name] = total[name] + value if name in total else value
    return total


def topic_path(name: TopicName) -> str:
    """The topic's resource in the REST interface."""
    return f"/admin/v2/{topic_name.path(str(name))}"


def error_of(status: int, text: str) -> QuireError:
    """The error that the other broker raised: as `rest` has it, and what only brokers know."""
    from quire.runtime import rest

    return NotAllowed(rest.reason_of(status, text)) if status == 405 else rest.error_of(status, text)
