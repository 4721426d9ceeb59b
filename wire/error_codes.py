"""Our errors in the protocol's words: what a client does next depends on the code alone.

ServiceNotReady makes a client look up and try again; most others end a create call for good.
"""

from __future__ import annotations

from typing import Final

from quire.runtime.errors import (
    ConfigurationError,
    CorruptionError,
    DiskFull,
    Fenced,
    LimitExceeded,
    NotAuthenticated,
    NotAuthorized,
    NotFound,
    OutcomeUnknown,
    ProtocolError,
    Unavailable,
)
from quire.wire import pulsar_pb2 as pb

NO_TRANSACTIONS: Final = "this broker has no transactions"

_CODES: Final[tuple[tuple[type[BaseException], pb.ServerError], ...]] = (
    (NotAuthenticated, pb.AuthenticationError),
    (NotAuthorized, pb.AuthorizationError),
    (NotFound, pb.TopicNotFound),
    (Unavailable, pb.ServiceNotReady),
    (OutcomeUnknown, pb.ServiceNotReady),
    (Fenced, pb.ServiceNotReady),
    (LimitExceeded, pb.TooManyRequests),
    (ConfigurationError, pb.NotAllowedError),
    (ProtocolError, pb.UnsupportedVersionError),
    (CorruptionError, pb.PersistenceError),
    (DiskFull, pb.PersistenceError),
)


def code_of(error: BaseException) -> pb.ServerError:
    """The ServerError for one of our errors. One that names a `server_error` of its own keeps it."""
    own = getattr(error, "server_error", None)
    if own is not None:
        return own  # type: ignore[no-any-return]
    for kind, code in _CODES:
        if isinstance(error, kind):
            return code
    return pb.UnknownError
