"""Errors of the REST interface: a status, and JSON with one field, `reason`, as Pulsar's tools expect.

A request for another broker's topic is redirected (307), as in Pulsar. An invalid body is status 400, and changes
nothing. Changes requested by a page of another site are rejected before any other check (`csrf`).
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from aiohttp import web

from quire.metadata.store import NotEmpty
from quire.runtime.csrf import REFUSAL, is_cross_site
from quire.runtime.errors import (
    AlreadyExists,
    ConfigurationError,
    InUse,
    LimitExceeded,
    NotAuthenticated,
    NotAuthorized,
    NotFound,
    OutcomeUnknown,
    ProtocolError,
    QuireError,
    TooMany,
    Unavailable,
    VersionConflict,
)
from quire.serving.admin.login import is_anonymous
from quire.serving.admin.requests import Absent
from quire.serving.admin.values import OutOfRange
from quire.serving.model.ports import ConsumerBusy, NotAllowed
from quire.serving.ownership.port import NotOwner
from quire.serving.registry.catalogue import NoPartition
from quire.serving.schema.definition import SchemaRefused

log = logging.getLogger(__name__)

REQUEST_BYTES_MAX = 1 << 20
LIMITS_MET: Final = web.AppKey("limits_met", Counter[str])
"""Counters in `Services.limits_met`."""


class Refusal(NamedTuple):
    status: int
    says: str
    errors: tuple[type[QuireError], ...]
    is_anywhere: bool = False
    """True if even a request without arguments can fail in this way."""


_THERE: Final = (AlreadyExists, VersionConflict, NotEmpty, SchemaRefused)
_NOT_AS_NEEDED: Final = (InUse, ConsumerBusy, NoPartition, TooMany, OutOfRange)
REFUSALS: Final = (
    Refusal(307, "Another broker owns the topic: send the request there.", ()),
    Refusal(
        401,
        "The request has no valid credentials, and anonymous access is not allowed.",
        (NotAuthenticated,),
        True,
    ),
    Refusal(403, "The caller lacks the permission.", (NotAuthorized,), True),
    Refusal(404, "The object does not exist.", (NotFound,)),
    Refusal(409, "The object already exists, is not empty, or was changed concurrently.", _THERE),
    Refusal(412, "The object is in use, or a precondition of the request is not met.", _NOT_AS_NEEDED),
    Refusal(405, "The request is not supported for this kind of topic.", (NotAllowed,)),
    Refusal(400, "The path, the query or the body is invalid.", (ConfigurationError, ProtocolError)),
    Refusal(413, "The request exceeds a limit.", (LimitExceeded,)),
    Refusal(503, "The request cannot be served now: try again.", (Unavailable, OutcomeUnknown), True),
    Refusal(501, "Quire does not support this feature of Pulsar.", (Absent,)),
)
"""Statuses of errors: the first matching row applies; if none matches, the status is 500."""

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@web.middleware
async def errors_as_json(request: web.Request, handler: _Handler) -> web.StreamResponse:
    if is_cross_site(request.method, request.headers, request.query):
        return _refusal(403, REFUSAL)
    try:
        return await handler(request)
    except web.HTTPException as error:
        if error.status < 400:
            raise
        return _refusal(error.status, _said(request, error))
    except NotOwner as error:
        url = "" if error.owner is None else error.owner.rest_url(tls=request.secure)
        if not url:
            return _refusal(503, str(error))
        raise web.HTTPTemporaryRedirect(url + request.raw_path) from None
    except QuireError as error:
        if isinstance(error, TooMany):
            request.app[LIMITS_MET][error.limit] += 1
        status = status_of(error)
        if status == 403 and is_anonymous(request):
            status = 401  # as in Pulsar: the client may retry with credentials
        if status == 500:
            log.error("request failed: method=%s path=%s error=%s", request.method, request.path, error)
        return _refusal(status, str(error))


def _said(request: web.Request, error: web.HTTPException) -> str:
    """Return the error text for an error of the router or of the body's reader."""
    if isinstance(error, web.HTTPMethodNotAllowed):
        return f"{request.path} supports {', '.join(sorted(error.allowed_methods))}, but not {error.method}"
    if isinstance(error, web.HTTPNotFound):
        return f"no resource at {request.path}: check the path"
    if isinstance(error, web.HTTPRequestEntityTooLarge):
        return f"the body of the request exceeds {REQUEST_BYTES_MAX} bytes"
    return error.reason


def _refusal(status: int, reason: str) -> web.Response:
    headers = {"WWW-Authenticate": 'Bearer realm="quire", Basic realm="quire"'} if status == 401 else None
    return web.json_response({"reason": reason}, status=status, headers=headers)


def status_of(error: QuireError) -> int:
    """Return the HTTP status for an error."""
    return next((one.status for one in REFUSALS if isinstance(error, one.errors)), 500)
