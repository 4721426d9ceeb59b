"""Static files of the console over HTTP, with a Content Security Policy that allows only these files.

The files are read once into a table. A request's path is a key of that table, never a file name. The files need no
authentication, because they contain no data of a cluster; their REST requests contain the user's credentials.

The policy allows scripts, styles and requests of this origin only, and none of them inline. Text cannot become HTML:
[Trusted Types] are required, and no Trusted Types policy is allowed. The page cannot be framed, cannot submit forms,
and sends no referrer.

[Trusted Types]: https://www.w3.org/TR/trusted-types/
"""

from __future__ import annotations

import gzip
from functools import cache
from hashlib import sha256
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Final, NamedTuple

from aiohttp import web

from quire.runtime.http_server import CONSOLE, browser_to_console

POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
HEADERS: Final = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",  # browsers revalidate each file, so that versions are never mixed
    "Vary": "Accept-Encoding",
}
KINDS: Final = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}


class File(NamedTuple):
    """Static file: its content type, its content, plain and compressed, and its ETag."""

    kind: str
    plain: bytes
    zipped: bytes
    tag: str


@cache
def static_files() -> dict[str, File]:
    """Return the files by their paths below `/console/`; the empty path is the page itself."""
    found = dict(_walk(files("quire.serving.console") / "static", ""))
    return {**found, "": found["index.html"]}


def _walk(folder: Traversable, prefix: str) -> list[tuple[str, File]]:
    found: list[tuple[str, File]] = []
    for one in sorted(folder.iterdir(), key=lambda each: each.name):
        if one.is_dir():
            found += _walk(one, f"{prefix}{one.name}/")
        elif (kind := KINDS.get(f".{one.name.rpartition('.')[2]}")) is not None:
            plain = one.read_bytes()
            tag = f'"{sha256(plain).hexdigest()[:16]}"'
            found.append((prefix + one.name, File(kind, plain, gzip.compress(plain, mtime=0), tag)))
    return found


async def _show(request: web.Request) -> web.Response:
    file = static_files().get(request.match_info.get("file", ""))
    if file is None:
        raise web.HTTPNotFound
    headers = {**HEADERS, "ETag": file.tag}
    if request.headers.get("If-None-Match") == file.tag:
        return web.Response(status=304, headers=headers)
    body = file.plain
    if "gzip" in request.headers.get("Accept-Encoding", ""):
        body, headers["Content-Encoding"] = file.zipped, "gzip"
    return web.Response(body=body, content_type=file.kind, charset="utf-8", headers=headers)


def routes() -> list[web.RouteDef]:
    """Return the routes of the console, which need no authentication."""
    return [
        web.get("/", browser_to_console),
        web.get(CONSOLE, _show),
        web.get(f"{CONSOLE}/", _show),
        web.get(f"{CONSOLE}/{{file:.+}}", _show),
    ]


def is_here(path: str) -> bool:
    """Return whether a request is for the console, and therefore needs no authentication."""
    return path in ("/", CONSOLE) or path.startswith(f"{CONSOLE}/")
