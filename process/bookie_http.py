"""HTTP port of a bookie: probes and metrics for all clients, doctor and support reports for superusers.

With authentication in the security file, reports need the same credentials as on a broker; a broker that collects the
reports of a cluster presents its own. Failed authentications and denied requests are written to the bookie's audit
file.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

from aiohttp import web
from msgspec.structs import replace

from quire.process.listeners import EVERYWHERE
from quire.process.parts import Process
from quire.runtime import probes
from quire.runtime.errors import NotAuthenticated, NotAuthorized, QuireError
from quire.runtime.http_server import note_login
from quire.runtime.installation import pip_install
from quire.runtime.member import DOCTOR, SUPPORT, Member
from quire.runtime.network import peer_address
from quire.runtime.settings import format_address, is_loopback, parse_address
from quire.runtime.tls import peer_certificate
from quire.security.audit import AuditLog, Caller
from quire.security.authentication import Authentication, make_authentication
from quire.security.authorization import Authorization
from quire.security.identity import Identity


def make_app(
    target: probes.Probed, scrapes: probes.Scrapes, member: Member, process: Process
) -> web.Application:
    member.metrics = scrapes.text
    may_ask = _superuser(process)

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


def _superuser(process: Process) -> Callable[[web.Request], Awaitable[None]]:
    """Return a check of a request, which raises an error unless the client is a superuser.

    It raises `NotAuthenticated`, `NotAuthorized` or `Unavailable`. Without authentication, it accepts every request.
    """
    security = process.security_file
    rules, missing = security.authorization, ""
    authentication: Authentication | None = None
    if security.authentication is not None:
        try:
            authentication = make_authentication(security.authentication, process.clock)
            process.push_async_callback(authentication.stop)
        except ModuleNotFoundError as error:  # an optional package, which a bookie's storage does not need
            missing = f"authentication needs the package {error.name}: {pip_install('security')}"
    authorization = Authorization(rules.superusers, rules.proxies, is_enabled=rules.enabled)
    to_file = None if security.audit is None else replace(security.audit, topic="")
    audit = AuditLog(to_file, process.clock)
    process.callback(audit.close)

    async def check(request: web.Request) -> None:
        if missing:
            raise NotAuthorized(missing)
        if authentication is None:
            return
        certificate, address = peer_certificate(request.transport), peer_address(request.transport)
        presented = authentication.in_request(request.headers, certificate, address)
        who: Identity | None = None
        try:
            who = await authentication.authenticate(presented)
            if not authorization.is_superuser(who):
                raise NotAuthorized("only superusers may read a bookie's reports")
        except QuireError as error:
            event = "login-failed" if who is None else "denied"
            audit.record(event, Caller(who, address, presented.by, presented.request), outcome=str(error))
            raise
        note_login(request)

    return check


def advertised_http(http_url: str, address: str) -> str:
    """Return the URL at which brokers reach the bookie's HTTP port; "" if they could not reach it.

    If the port listens on all addresses, the URL has the host of the bookie's `address`.
    """
    if not http_url:
        return ""
    found, (host, _) = urlsplit(http_url), parse_address(address)
    assert found.port is not None
    if (found.hostname or "") not in EVERYWHERE:
        return http_url if is_loopback(host) or not is_loopback(found.hostname or "") else ""
    return f"{found.scheme}://{format_address(host, found.port)}"
