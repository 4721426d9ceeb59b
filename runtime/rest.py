"""Blocking client of a broker's REST interface, for commands and Spark; mapping of HTTP statuses to errors.

A success is JSON or raw bytes. An error is JSON with the field `reason`, which becomes the message of the `QuireError`
for the status (`error_of`, also used between brokers). A broker that does not own the topic redirects to its owner by
307, which the client follows.

Standard library only: importing an HTTP client library would take longer than the request of a command.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from http.client import HTTPException, IncompleteRead
from ssl import SSLCertVerificationError
from typing import Any, Final
from urllib.error import HTTPError, URLError
from urllib.request import HTTPSHandler, OpenerDirector, ProxyHandler, Request, build_opener

from quire.runtime.credentials import NOBODY, Credentials
from quire.runtime.errors import (
    AlreadyExists,
    ConfigurationError,
    InUse,
    NotAuthenticated,
    NotAuthorized,
    NotFound,
    QuireError,
    Unavailable,
)
from quire.runtime.tls import ClientTls, why_failed

ANY_AUTHORITY: Final = ClientTls()
PORT: Final = 8080
TLS_PORT: Final = 8443
DEFAULT_URL: Final = f"http://127.0.0.1:{PORT}"
REDIRECTS_MAX: Final = 5
PAUSE_S: Final = 0.25
"""Delay before the second attempt in seconds; it doubles with each further attempt."""

_TRY_AGAIN: Final = (429, 500, 502, 503, 504)
_KINDS: Final[Mapping[int, type[QuireError]]] = {
    401: NotAuthenticated,
    403: NotAuthorized,
    404: NotFound,
    409: AlreadyExists,
    412: InUse,
    429: Unavailable,
    501: ConfigurationError,
    503: Unavailable,
    504: Unavailable,
}


@cache
def _direct() -> OpenerDirector:
    """Return the opener without proxies.

    It is cached, because creating it takes a millisecond, as long as a request.
    """
    return build_opener(ProxyHandler({}))


def error_of(status: int, text: str) -> QuireError:
    """Return the broker's error for the `status` and the body of a response."""
    kind = ConfigurationError if 400 <= status < 500 else QuireError
    return _KINDS.get(status, kind)(reason_of(status, text))


def reason_of(status: int, text: str) -> str:
    """Return the `reason` in a broker's error, else the text of the response."""
    try:
        return str(json.loads(text)["reason"])
    except (ValueError, KeyError, TypeError):
        return text.strip() or f"the broker returned status {status}"


class Admin:
    """Client of the REST interface at `url`. It keeps no connection open, so it may be pickled.

    - `attempts`: total number of attempts while brokers are unreachable or unavailable; more than one for reads only.
    - `is_neighbour`: ignore the proxies in the environment, because the broker is in the same network.
    - `tls`: used for https:// addresses.
    - `credentials`: presented to the broker, and to brokers to which it redirects.
    - `meanwhile`: context that is entered while the client waits for a response.

    Every method raises `NotFound`, `AlreadyExists`, `InUse`, `ConfigurationError`, `Unavailable`, or a plain
    `QuireError` for an internal error of the broker.
    """

    def __init__(
        self,
        url: str,
        timeout_s: float = 60.0,
        *,
        attempts: int = 1,
        is_neighbour: bool = False,
        tls: ClientTls = ANY_AUTHORITY,
        credentials: Credentials = NOBODY,
        meanwhile: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        if not url.startswith(("http://", "https://")):
            raise ConfigurationError(f"{url!r} is not the HTTP address of a broker, such as {DEFAULT_URL}")
        self.url = url.rstrip("/")
        self._timeout_s = timeout_s
        self._attempts = attempts
        self._is_neighbour = is_neighbour
        self.tls = tls
        self.credentials = credentials
        self._meanwhile = meanwhile

    def get(self, path: str) -> Any:
        return self._ask("GET", path, None)

    def put(self, path: str, body: Any = None) -> Any:
        return self._ask("PUT", path, body)

    def post(self, path: str, body: Any = None) -> Any:
        return self._ask("POST", path, body)

    def delete(self, path: str) -> Any:
        return self._ask("DELETE", path, None)

    def get_raw(self, path: str) -> tuple[Mapping[str, str], bytes]:
        """Send a GET request. Return the response's headers, by lower-case name, and its body."""
        return self._fetch("GET", path, None)

    def _ask(self, method: str, path: str, body: Any) -> Any:
        _, text = self._fetch(method, path, body)
        try:
            return json.loads(text) if text.strip() else None
        except ValueError:
            raise self._no_broker() from None

    def _fetch(self, method: str, path: str, body: Any) -> tuple[Mapping[str, str], bytes]:
        url, redirects, attempts = self.url + path, 0, 1
        while True:
            try:
                return self._open(method, url, body)
            except HTTPError as error:
                if error.code == 307 and redirects < REDIRECTS_MAX:
                    url, redirects = self._followed(error.headers["Location"]), redirects + 1
                    continue
                if error.code not in _TRY_AGAIN or attempts == self._attempts:
                    raise error_of(error.code, error.read().decode(errors="replace")) from None
            except (URLError, TimeoutError, ConnectionError, IncompleteRead) as error:
                if isinstance(getattr(error, "reason", None), SSLCertVerificationError):
                    raise self._not_trusted(error) from None
                if attempts == self._attempts:
                    raise self._unreachable(error) from None
            except HTTPException:
                raise self._no_broker() from None
            time.sleep(PAUSE_S * 2 ** (attempts - 1))
            url, redirects, attempts = self.url + path, 0, attempts + 1

    def _open(self, method: str, url: str, body: Any) -> tuple[Mapping[str, str], bytes]:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json", **self.credentials.headers()}
        request = Request(url, data, headers, method=method)
        with self._meanwhile(), self._opener(url).open(request, timeout=self._timeout_s) as answer:
            return {name.lower(): value for name, value in answer.headers.items()}, answer.read()

    def _opener(self, url: str) -> OpenerDirector:
        if url.startswith("https://"):
            tls = HTTPSHandler(context=self.tls.context())
            return build_opener(ProxyHandler({}), tls) if self._is_neighbour else build_opener(tls)
        return _direct() if self._is_neighbour else build_opener()

    def _unreachable(self, error: Exception) -> Unavailable:
        reason = getattr(error, "reason", error)
        return Unavailable(f"no broker answers at {self.url} ({reason}); is `quire standalone` running?")

    def _followed(self, location: str) -> str:
        if self.url.startswith("https://") and not location.startswith("https://"):
            raise ConfigurationError(
                f"{self.url} redirects to {location}, which has no TLS; enable TLS there, too"
            )
        return location

    def _not_trusted(self, error: Exception) -> ConfigurationError:
        why = why_failed(getattr(error, "reason", error))
        return ConfigurationError(
            f"{self.url} is not trusted: {why}; set the authority that signed its certificate"
        )

    def _no_broker(self) -> ConfigurationError:
        return ConfigurationError(
            f"{self.url} is not a broker's REST interface, such as {DEFAULT_URL}; "
            "check that it is not the port of Pulsar clients"
        )
