"""A broker's REST interface, its probes and its metrics, which a collector of OpenTelemetry may be sent as well."""

from __future__ import annotations

from aiohttp import web

from quire.cli.doors import Doors
from quire.cli.http import serve_http
from quire.cli.parts import Parts
from quire.cli.telemetry import send_metrics
from quire.runtime.telemetry import TelemetrySettings
from quire.serving.admin.app import SCRAPES


async def serve_rest(
    parts: Parts,
    application: web.Application,
    doors: Doors,
    telemetry: TelemetrySettings,
    kind: str,
    name: str,
) -> None:
    """`application` is `make_app`'s; `kind` and `name` are the process's, as a collector knows it."""
    await serve_http(parts, application, doors.http, doors.http_tls)
    await send_metrics(parts, telemetry, kind, name, application[SCRAPES])
