"""Asking a broker's REST interface, for commands that need no event loop.

Standard library only: a client library's import would take longer than the request.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote
from urllib.request import Request, urlopen

import click

from quire.runtime.errors import AlreadyExists, ConfigurationError, InUse, NotFound, QuireError, Unavailable
from quire.wire import topic_name

PORT = 8080
DEFAULT_URL = f"http://127.0.0.1:{PORT}"
COMPLETION_S = 1.0

admin_url_option = click.option(
    "--admin-url",
    default=lambda: os.environ.get("QUIRE_ADMIN_URL", DEFAULT_URL),
    show_default=False,
    metavar="URL",
    help="HTTP address of a broker (environment: QUIRE_ADMIN_URL).  [http://127.0.0.1:8080]",
)


def _complete_topics(context: click.Context, _: click.Parameter, begin: str) -> list[str]:
    """For the shell's tab key: the topics of public/default, or of the namespace that is typed (tenant/namespace/…)."""
    namespace, slash, _begin = begin.rpartition("/")
    url = context.params.get("admin_url") or os.environ.get("QUIRE_ADMIN_URL", DEFAULT_URL)
    try:
        names = Admin(url, COMPLETION_S).get(f"/admin/v2/persistent/{quote(namespace or 'public/default')}")
    except QuireError:
        return []
    found = (f"{namespace}{slash}{name.rpartition('/')[2]}" for name in names)
    return sorted(name for name in found if name.startswith(begin))


topic_argument = click.argument("topic", shell_complete=_complete_topics)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")


class Admin:
    """A broker's REST interface. Errors come as the `QuireError` that fits the status."""

    def __init__(self, url: str, timeout_s: float = 60.0) -> None:
        if not url.startswith(("http://", "https://")):
            raise ConfigurationError(f"{url!r} is not the HTTP address of a broker, such as {DEFAULT_URL}")
        self._url = url.rstrip("/")
        self._timeout_s = timeout_s

    def get(self, path: str) -> Any:
        return self._ask("GET", path, None)

    def put(self, path: str, body: Any = None) -> Any:
        return self._ask("PUT", path, body)

    def post(self, path: str, body: Any = None) -> Any:
        return self._ask("POST", path, body)

    def delete(self, path: str) -> Any:
        return self._ask("DELETE", path, None)

    def get_raw(self, path: str) -> tuple[Mapping[str, str], bytes]:
        """The answer's headers, by names in small letters, and its body as it is."""
        return self._fetch("GET", path, None)

    def _ask(self, method: str, path: str, body: Any) -> Any:
        _, text = self._fetch(method, path, body)
        try:
            return json.loads(text) if text.strip() else None
        except ValueError:
            raise ConfigurationError(_no_http(self._url)) from None

    def _fetch(
        self, method: str, path: str, body: Any, redirects_left: int = 5
    ) -> tuple[Mapping[str, str], bytes]:
        """`path`, or a URL where the topic's own broker is."""
        data = None if body is None else json.dumps(body).encode()
        request = Request(
            path if "://" in path else self._url + path,
            data,
            {"Content-Type": "application/json"},
            method=method,
        )
        try:
            with urlopen(request, timeout=self._timeout_s) as answer:
                return {name.lower(): value for name, value in answer.headers.items()}, answer.read()
        except HTTPError as error:
            if error.code == 307 and redirects_left:
                return self._fetch(method, error.headers["Location"], body, redirects_left - 1)
            raise _error_of(error) from None
        except (URLError, TimeoutError, ConnectionError) as error:
            reason = getattr(error, "reason", error)
            raise Unavailable(
                f"no broker answers at {self._url} ({reason}); is `quire standalone` running?"
            ) from None
        except HTTPException:
            raise ConfigurationError(_no_http(self._url)) from None


def _no_http(url: str) -> str:
    return f"what answers at {url} is not a broker's REST interface, such as {DEFAULT_URL}; is it the clients' port?"


def _error_of(error: HTTPError) -> QuireError:
    reason = _reason(error)
    if error.code == 404:
        return NotFound(reason)
    if error.code == 409:
        return AlreadyExists(reason)
    if error.code == 412:
        return InUse(reason)
    if error.code in (400, 405, 413, 422, 501):
        return ConfigurationError(reason)
    if error.code in (429, 503, 504):
        return Unavailable(reason)
    return QuireError(reason)


def _reason(error: HTTPError) -> str:
    text = error.read().decode(errors="replace")
    try:
        return str(json.loads(text)["reason"])
    except (ValueError, KeyError, TypeError):
        return text.strip() or f"the broker answered {error.code} {error.reason}"


def topic_path(topic: str) -> str:
    """`persistent://t/n/x`, `t/n/x` or `x` as the path `persistent/t/n/x`. Raises `ConfigurationError`."""
    return "/".join(quote(part, safe="") for part in topic_name.split(topic))
