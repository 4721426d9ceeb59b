"""Other brokers, asked over REST: for the parts of an answer that only they have, such as a partition's statistics."""

from __future__ import annotations

import json
from typing import Any, Final
from urllib.parse import quote

import aiohttp
from yarl import URL

from quire.runtime.errors import ConfigurationError, InUse, NotFound, QuireError, Unavailable
from quire.serving.names import TopicName
from quire.serving.ownership.port import NotOwner

TIMEOUT_S: Final = 30.0


class Peers:
    """See the top of the file."""

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None

    async def ask(self, method: str, elsewhere: NotOwner, path: str, body: Any = None) -> Any:
        """The JSON that the owner answers, None when it has nothing to say. Raises as the owner's own methods would.

        `body` is sent as JSON, if there is one.
        """
        if elsewhere.owner is None or not elsewhere.owner.http_url:
            raise elsewhere
        if self._session is None:
            self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=TIMEOUT_S))
        url = URL(elsewhere.owner.http_url + path, encoded=True)
        try:
            async with self._session.request(method, url, json=body) as answer:
                text = await answer.text()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise Unavailable(f"broker {elsewhere.owner.broker_id} does not answer: {error}") from error
        if answer.status >= 400:
            raise _error(answer.status, text)
        return json.loads(text) if text else None

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None


def topic_path(name: TopicName) -> str:
    """The topic's resource in the REST interface."""
    return "/admin/v2/" + "/".join(quote(part, safe="") for part in name)


def _error(status: int, text: str) -> QuireError:
    try:
        reason = str(json.loads(text)["reason"])
    except (ValueError, KeyError, TypeError):
        reason = f"the topic's broker answered {status}"
    kinds: dict[int, type[QuireError]] = {400: ConfigurationError, 404: NotFound, 412: InUse}
    return kinds.get(status, Unavailable)(reason)
