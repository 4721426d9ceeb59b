"""The HTTP port of a bookie: probes and metrics for everybody, what it tells of itself for superusers.

Where the security file has people log in, whoever asks for the latter presents what he would present to a broker; a
broker that asks for a cluster presents its own.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

from aiohttp import web

from quire.cli.doors import EVERYWHERE
from quire.cli.parts import Parts
from quire.runtime import probes
from quire.runtime.clock import SystemClock
from quire.runtime.errors import NotAuthenticated, NotAuthorized, QuireError
from quire.runtime.member import DOCTOR, SUPPORT, Member
from quire.runtime.network import peer_address
from quire.runtime.settings import format_address, is_loopback, parse_address
from quire.runtime.tls import peer_certificate
from quire.security.authentication import Authentication, make_authentication
from quire.security.authorization import Authorization
from quire.security.configuration import Configuration


def make_app(
    target: probes.Probed, scrapes: probes.Scrapes, member: Member, security: Configuration, parts: Parts
) -> web.Application:
    member.metrics = scrapes.text
    may_ask = _superuser(security, parts)

    def tells(
        own: Callable[[], Awaitable[dict[str, Any]]],
    ) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def answer(request: web.Request) -> web.Response:
            try:
                await may_ask(request)
            except QuireError as error:
                status = 401 if isinstance(error, NotAuthenticated) else 403
                return web.json_response({"reason": str(error)}, status=status)
            return web.json_response(await own())

        return answer

    application = web.Application()
    application.add_routes(probes.routes(target, scrapes))
    application.add_routes([web.get(DOCTOR, tells(member.doctor)), web.get(SUPPORT, tells(member.support))])
    return application


def _superuser(security: Configuration, parts: Parts) -> Callable[[web.Request], Awaitable[None]]:
    """Raises `NotAuthenticated`, `NotAuthorized`, `Unavailable` for whoever is none. Where nobody logs in all are."""
    rules, missing = security.authorization, ""
    authentication: Authentication | None = None
    if security.authentication is not None:
        try:
            authentication = make_authentication(security.authentication, SystemClock())
            parts.push_async_callback(authentication.stop)
        except ModuleNotFoundError as error:  # a bookie stores without it
            missing = f"logging in needs the package {error.name}: pip install 'quire[security]'"
    authorization = Authorization(rules.superusers, rules.proxies, is_enabled=rules.enabled)

    async def check(request: web.Request) -> None:
        if missing:
            raise NotAuthorized(missing)
        if authentication is None:
            return
        certificate, address = peer_certificate(request.transport), peer_address(request.transport)
        presented = authentication.in_request(request.headers, certificate, address)
        if not authorization.is_superuser(await authentication.authenticate(presented)):
            raise NotAuthorized("only superusers may ask what a bookie tells of itself")

    return check


def advertised_http(http_url: str, address: str) -> str:
    """The port as brokers are told it, beside the `address` that they know; "" when they could not reach it."""
    if not http_url:
        return ""
    found, (host, _) = urlsplit(http_url), parse_address(address)
    assert found.port is not None
    if (found.hostname or "") not in EVERYWHERE:
        return http_url if is_loopback(host) or not is_loopback(found.hostname or "") else ""
    return f"{found.scheme}://{format_address(host, found.port)}"
