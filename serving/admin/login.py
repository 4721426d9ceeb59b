"""Authentication and authorization of requests: `Authorization: Bearer TOKEN` or `Basic`, or a client certificate.

A proxy sends the role of its client in `X-Original-Principal`. Every row of the interface declares the permission that
its caller needs (`Route.may`), for the tenant, namespace, topic and subscription in its path. The permission is checked
before the request is parsed. Probes (`runtime/probes`) and the files of the console (`serving/console`) are not rows,
and are open to every client. Changes and attempted changes are audited (`security/audit`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from aiohttp import web

from quire.runtime import probes
from quire.runtime.errors import QuireError
from quire.runtime.http_server import note_login
from quire.runtime.network import peer_address
from quire.runtime.tls import peer_certificate
from quire.security.audit import Caller
from quire.security.authentication import NONE, REQUEST_ID
from quire.security.authorization import Action, Place
from quire.security.identity import Identity, Presented
from quire.serving.admin.requests import path_names
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
    """Authenticate the requests of an application with a guard."""
    if request.path not in probes.PATHS and not pages.is_here(request.path):
        guard, headers, certificate = request.app[GUARD], request.headers, peer_certificate(request.transport)
        presented = guard.authentication.in_request(headers, certificate, peer_address(request.transport))
        request[_PRESENTED] = presented
        request[_IDENTITY] = identity = await guard.log_in(presented, headers.get(ORIGINAL_PRINCIPAL, ""))
        if identity.method not in NONE:
            note_login(request)
    return await handler(request)


async def sees_all(request: web.Request) -> bool:
    """Return whether a probe may show topic names to this caller: to a superuser, or without authentication.

    A request without credentials is not a failed authentication, because the rest of a probe is public.
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
    """Add a header with the request's id in the audit log to every response."""
    presented = request.get(_PRESENTED)
    if presented is not None:
        answer.headers[REQUEST_ID] = presented.request


async def permitted(request: web.Request, action: Action, handler: _Handler) -> web.StreamResponse:
    """Call `handler` if the caller has the permission. Raises `NotAuthorized`, `Unavailable`."""
    await require(request, action)
    guard = request.app.get(GUARD)
    if guard is None or request.method in ("GET", "HEAD"):
        return await handler(request)
    caller, place = _caller(request), str(place_of(path_names(request)))
    try:
        answer = await handler(request)
    except QuireError as error:
        guard.audit.record("failed", caller, place, str(error))
        raise
    guard.audit.record("changed", caller, place, str(answer.status))
    return answer


async def require(request: web.Request, action: Action) -> None:
    """Check a permission in addition to that of the row. Raises `NotAuthorized`, `Unavailable`."""
    guard = request.app.get(GUARD)
    if guard is not None:
        caller = _caller(request)
        try:
            place = place_of(path_names(request))
        except QuireError as error:
            guard.audit.record("denied", caller, outcome=str(error))
            raise
        await guard.check(caller, action, place)


def _caller(request: web.Request) -> Caller:
    shown = request[_PRESENTED]
    return Caller(request[_IDENTITY], shown.address, _what(request), shown.request)


def identity_of(request: web.Request) -> Identity | None:
    """Return the caller's identity; None without authentication."""
    return request.get(_IDENTITY)


def is_anonymous(request: web.Request) -> bool:
    """Return whether the request has the anonymous role."""
    identity = request.get(_IDENTITY)
    return identity is not None and identity.method in NONE


async def may(request: web.Request, action: Action, place: Place) -> bool:
    """Return whether the caller has a permission, without auditing, to decide what to show."""
    guard = request.app.get(GUARD)
    return guard is None or (await guard.decide(request[_IDENTITY], action, place)).allowed


def _what(request: web.Request) -> str:
    return f"{request.method} {request.path}"


def place_of(names: Mapping[str, str]) -> Place:
    """Return the place in a request's path. Raises `ConfigurationError` for an invalid topic name."""
    tenant, namespace, subscription = (names.get(one, "") for one in ("tenant", "namespace", "subscription"))
    if "topic" not in names:
        return Place(tenant, namespace, subscription=subscription)
    domain, topic = names.get("domain", "persistent"), names["topic"]
    name = TopicName.parse(f"{domain}://{tenant}/{namespace}/{topic}")  # as in `route.TOPIC_NAME`
    return Place(name.tenant, name.namespace, str(name), subscription)
