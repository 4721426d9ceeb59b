"""Errors as a client of the REST interface sees them: a status, and JSON with one field, `reason`.

Pulsar's tools expect it so. A request for a topic of another broker is redirected there (307), as Pulsar does. A body
that is not what the resource takes is 400; nothing was changed then. What another site's page would change is refused
before anything else is looked at.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from aiohttp import web

from quire.metadata.store import NotEmpty
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
from quire.runtime.other_sites import REFUSAL, is_from_another_site
from quire.serving.admin.requests import Absent
from quire.serving.cluster.catalogue import NoPartition
from quire.serving.cluster.port import NotOwner
from quire.serving.model.ports import ConsumerBusy, NotAllowed
from quire.serving.schema.definition import SchemaRefused

log = logging.getLogger(__name__)

REQUEST_BYTES_MAX = 1 << 20
LIMITS_MET: Final = web.AppKey("limits_met", Counter[str])
"""`Services.limits_met`."""


class Refusal(NamedTuple):
    status: int
    says: str
    errors: tuple[type[QuireError], ...]
    is_anywhere: bool = False
    """Also where nothing is sent that could be wrong."""


_THERE: Final = (AlreadyExists, VersionConflict, NotEmpty, SchemaRefused)
REFUSALS: Final = (
    Refusal(307, "Another broker serves the topic: ask it.", ()),
    Refusal(401, "Who asks did not log in.", (NotAuthenticated,), True),
    Refusal(403, "Who asks may not.", (NotAuthorized,), True),
    Refusal(404, "What is named is not there.", (NotFound,)),
    Refusal(409, "It is there already, is not empty, or was changed meanwhile.", _THERE),
    Refusal(412, "It is in use, or not as it must be for this.", (InUse, ConsumerBusy, NoPartition, TooMany)),
    Refusal(405, "It cannot be asked of such a topic.", (NotAllowed,)),
    Refusal(
        400, "The path, the query or the body is not what is taken.", (ConfigurationError, ProtocolError)
    ),
    Refusal(413, "It is more than a limit allows.", (LimitExceeded,)),
    Refusal(503, "Not now: try again.", (Unavailable, OutcomeUnknown), True),
    Refusal(501, "Pulsar has it, and Quire does not.", (Absent,)),
)
"""The first one that fits an error is its status; what fits none is 500."""

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@web.middleware
async def errors_as_json(request: web.Request, handler: _Handler) -> web.StreamResponse:
    if is_from_another_site(request.method, request.headers):
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
        if status == 500:
            log.error("%s %s failed: %s", request.method, request.path, error)
        return _refusal(status, str(error))


def _said(request: web.Request, error: web.HTTPException) -> str:
    """What the router or a reader of bodies refused, in a sentence."""
    if isinstance(error, web.HTTPMethodNotAllowed):
        return f"{request.path} takes {', '.join(sorted(error.allowed_methods))}, and not {error.method}"
    if isinstance(error, web.HTTPNotFound):
        return f"there is nothing at {request.path}: see whether the path is written right"
    if isinstance(error, web.HTTPRequestEntityTooLarge):
        return f"the body of a request has {REQUEST_BYTES_MAX} bytes at most"
    return error.reason


def _refusal(status: int, reason: str) -> web.Response:
    headers = {"WWW-Authenticate": 'Bearer realm="quire", Basic realm="quire"'} if status == 401 else None
    return web.json_response({"reason": reason}, status=status, headers=headers)


def status_of(error: QuireError) -> int:
    """The HTTP status that tells a client what kind of error this was."""
    return next((one.status for one in REFUSALS if isinstance(error, one.errors)), 500)
