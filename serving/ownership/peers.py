"""REST requests to other brokers, for parts of a result that only they have, such as a partition's statistics.

The first request imports the HTTP client, so that a process can serve messages before it needs HTTP.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

from msgspec import ValidationError, convert

from quire.runtime.credentials import NOBODY
from quire.runtime.errors import QuireError, Unavailable
from quire.security.tls import FollowedContext
from quire.serving.model.ports import NotAllowed
from quire.serving.names import TopicName
from quire.serving.ownership.port import NotOwner
from quire.wire import topic_name

if TYPE_CHECKING:
    from aiohttp import ClientSession

TIMEOUT_S: Final = 30.0

T = TypeVar("T")


class Peers:
    """REST client for requests to other brokers. Without the TLS context `tls`, requests use plain HTTP."""

    def __init__(self, tls: FollowedContext | None = None) -> None:
        self._tls = tls
        self._session: ClientSession | None = None
        self.credentials = NOBODY
        """Credentials that this broker presents to other brokers."""

    def choose(self, http_url: str, http_url_tls: str) -> str:
        """Choose the URL for requests to another broker; an empty string if there is no usable one."""
        return http_url_tls if http_url_tls and self._tls is not None else http_url

    async def ask(self, method: str, elsewhere: NotOwner, path: str, body: Any = None) -> Any:
        """Send a request to the owner in `elsewhere`; return the JSON of its response, None if that is empty.

        `body` is sent as JSON unless it is None. Raises the errors that the owner's own methods raise.
        """
        owner = elsewhere.owner
        url = "" if owner is None else self.choose(owner.http_url, owner.http_url_tls)
        if not url:
            raise elsewhere
        return await self.ask_at(method, url, path, body)

    async def ask_at(
        self, method: str, http_url: str, path: str, body: Any = None, *, timeout_s: float = TIMEOUT_S
    ) -> Any:
        """Send a request as `ask` does, to the broker with the REST interface `http_url`."""
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


def reader_of(kind: type[T]) -> Callable[[Any], T]:
    """Return a function that reads JSON of another broker as `kind`, and skips fields that this version does not know.

    The function raises `Unavailable` for JSON that does not match `kind`.
    """

    def read(said: Any) -> T:
        try:
            return convert(said, kind)
        except ValidationError as error:
            raise Unavailable(f"another broker's answer cannot be read: {error}") from error

    return read


def topic_path(name: TopicName) -> str:
    """Return the path of the topic in the REST interface."""
    return f"/admin/v2/{topic_name.path(str(name))}"


def error_of(status: int, text: str) -> QuireError:
    """Map a response to the error that the other broker raised: 405 to `NotAllowed`, others as `rest.error_of` does."""
    from quire.runtime import rest

    return NotAllowed(rest.reason_of(status, text)) if status == 405 else rest.error_of(status, text)
