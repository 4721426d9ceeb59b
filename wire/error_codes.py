"""Mapping of errors to Pulsar's error codes, which alone determine a client's reaction.

ServiceNotReady makes a client look up the topic and try again; most other codes fail a create call permanently.
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
    """Map an error to a ServerError. An error with a `server_error` attribute keeps it."""
    own = getattr(error, "server_error", None)
    if own is not None:
        return own  # type: ignore[no-any-return]
    for kind, code in _CODES:
        if isinstance(error, kind):
            return code
    return pb.UnknownError
