"""Who sends a request, and whether he may: `Authorization: Bearer TOKEN` or `Basic`, or the connection's certificate.

A proxy names the role for which it speaks in `X-Original-Principal`. Every row of the interface says what its caller
must be allowed (`Route.may`), at the tenant, namespace, topic and subscription that its path names; that is asked
before anything of the request is read. What is no row are the probes (`runtime/probes`) and the files of the console
(`serving/console`), which everybody may ask for.

Whatever changes something, or tried to, is written down (`security/audit`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from aiohttp import web

from quire.runtime import probes
from quire.runtime.errors import QuireError
from quire.runtime.network import peer_address
from quire.runtime.tls import peer_certificate
from quire.security.authentication import REQUEST_ID
from quire.security.authorization import Action, Place
from quire.security.identity import Identity, Presented
from quire.serving.console import pages
from quire.serving.names import TopicName
from quire.serving.policy.guard import Guard

ORIGINAL_PRINCIPAL: Final = "X-Original-Principal"
GUARD: Final = web.AppKey("guard", Guard)
_IDENTITY: Final = web.RequestKey("identity", Identity)
_PRESENTED: Final = web.RequestKey("presented", Presented)
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@web.middleware
async def logged_in(request: web.Request, handler: _Handler) -> web.StreamResponse:
    """Only for an application that has a guard."""
    if request.path not in probes.PATHS and not pages.is_here(request.path):
        guard, headers, certificate = request.app[GUARD], request.headers, peer_certificate(request.transport)
        presented = guard.authentication.in_request(headers, certificate, peer_address(request.transport))
        request[_PRESENTED] = presented
        request[_IDENTITY] = await guard.log_in(presented, headers.get(ORIGINAL_PRINCIPAL, ""))
    return await handler(request)


async def sees_all(request: web.Request) -> bool:
    """Whether a probe may tell this caller the names of topics: a superuser, or anybody where nobody logs in.

    Who presents nothing is no failure to log in: the rest of what a probe tells is for everybody.
    """
    guard = request.app.get(GUARD)
    if guard is None:
        return True
    headers, certificate = request.headers, peer_certificate(request.transport)
    if "Authorization" not in headers and not certificate:
        return False
    presented = guard.authentication.in_request(headers, certificate, peer_address(request.transport))
    try:
        identity = await guard.log_in(presented, headers.get(ORIGINAL_PRINCIPAL, ""))
    except QuireError:
        return False
    return guard.authorization.is_superuser(identity)


async def name_request(request: web.Request, answer: web.StreamResponse) -> None:
    """Say in every answer what the audit log calls the request."""
    presented = request.get(_PRESENTED)
    if presented is not None:
        answer.headers[REQUEST_ID] = presented.request


async def permitted(request: web.Request, action: Action, handler: _Handler) -> web.StreamResponse:
    """What `handler` answers, if whoever asks may. Raises `NotAuthorized`, `Unavailable`."""
    await require(request, action)
    guard = request.app.get(GUARD)
    if guard is None or request.method in ("GET", "HEAD"):
        return await handler(request)
    who, shown, place = request[_IDENTITY], request[_PRESENTED], str(place_of(request.match_info))
    try:
        answer = await handler(request)
    except QuireError as error:
        guard.audit.record("failed", who, shown.address, _what(request), place, str(error), shown.request)
        raise
    guard.audit.record(
        "changed", who, shown.address, _what(request), place, str(answer.status), shown.request
    )
    return answer


async def require(request: web.Request, action: Action) -> None:
    """Also for what needs more than its row says. Raises `NotAuthorized`, `Unavailable`."""
    guard = request.app.get(GUARD)
    if guard is not None:
        who, shown = request[_IDENTITY], request[_PRESENTED]
        try:
            place = place_of(request.match_info)
        except QuireError as error:
            guard.audit.record(
                "denied", who, shown.address, _what(request), outcome=str(error), request=shown.request
            )
            raise
        await guard.check(
            who, action, place, address=shown.address, what=_what(request), request=shown.request
        )


def identity_of(request: web.Request) -> Identity | None:
    """Who asks; None where nobody logs in."""
    return request.get(_IDENTITY)


async def may(request: web.Request, action: Action, place: Place) -> bool:
    """Whether the caller would be let do that, for what is shown or left out; nothing is written down."""
    guard = request.app.get(GUARD)
    return guard is None or (await guard.decide(request[_IDENTITY], action, place)).allowed


def _what(request: web.Request) -> str:
    return f"{request.method} {request.path}"


def place_of(names: Mapping[str, str]) -> Place:
    """What a request's path names. Raises `ConfigurationError` for what is no topic's name."""
    tenant, namespace, subscription = (names.get(one, "") for one in ("tenant", "namespace", "subscription"))
    if "topic" not in names:
        return Place(tenant, namespace, subscription=subscription)
    domain, topic = names.get("domain", "persistent"), names["topic"]
    name = TopicName.parse(f"{domain}://{tenant}/{namespace}/{topic}")  # as `route.TOPIC_NAME` has it
    return Place(name.tenant, name.namespace, str(name), subscription)
