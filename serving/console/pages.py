"""The console's files over HTTP, each with the headers that let a browser run them and nothing else.

The files are read once, and only those are answered: a path is a key, never a name of a file. Whoever reaches the port
may have them, for they tell of no cluster; what they ask over REST is asked with their user's credentials.

The policy: scripts, styles and requests of this origin alone, none of them inline, and no way from a text to HTML
(`require-trusted-types-for`, with no policy that could make one). The page cannot be framed, and sends nobody's
credentials anywhere.
"""

from __future__ import annotations

import gzip
from functools import cache
from hashlib import sha256
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Final, NamedTuple

from aiohttp import web

ROOT: Final = "/console"
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
    "Cache-Control": "no-cache",  # it is asked whether it changed, so that no two versions are ever mixed
    "Vary": "Accept-Encoding",
}
KINDS: Final = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}


class File(NamedTuple):
    kind: str
    plain: bytes
    zipped: bytes
    tag: str


@cache
def static_files() -> dict[str, File]:
    """By their paths below `/console/`; `""` is the page itself."""
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
    """What everybody who reaches the port may have."""
    return [
        web.get(ROOT, _show),
        web.get(f"{ROOT}/", _show),
        web.get(f"{ROOT}/{{file:.+}}", _show),
    ]


def is_here(path: str) -> bool:
    """Whether a request is for the console, and so asks for nobody's name."""
    return path == ROOT or path.startswith(f"{ROOT}/")
