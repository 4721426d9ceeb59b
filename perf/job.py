"""Work of one child process, which its parent writes to its standard input as JSON.

Standard input, because the job may contain a token, and all users of a machine can see the command lines of its
processes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec

from quire.client.settings import ClientSettings, ProducerSettings
from quire.runtime.credentials import Credentials
from quire.runtime.errors import ConfigurationError, NotFound, OutcomeUnknown, QuireError, Unavailable
from quire.runtime.tls import ClientTls

KINDS: Final[Mapping[str, type[QuireError]]] = {
    kind.__name__: kind for kind in (ConfigurationError, NotFound, Unavailable, OutcomeUnknown)
}
"""Errors that a worker reports by name, because commands have exit codes for them."""

LINE_BYTES_MAX: Final = 1 << 26
"""Limit of a line between parent and child: a job of 100,000 topics has 10 MB."""


@dataclass(frozen=True)
class Connect:
    """Address of the brokers, and how to connect to them."""

    service_url: str
    settings: ClientSettings
    tls: ClientTls
    credentials: Credentials


@dataclass(frozen=True)
class Publishing:
    """Messages that each producer publishes."""

    settings: ProducerSettings
    size: int
    payload: str
    rate: float
    """Messages/s of each producer; 0: as many as the client can send."""


@dataclass(frozen=True)
class Subscribing:
    """Subscription of each consumer."""

    type: str = "exclusive"
    durable: bool = True
    create: bool = True
    from_earliest: bool = False
    before_begin: bool = True
    """Subscribe before the begin, so that the measured time does not include it."""


@dataclass(frozen=True)
class Job:
    """Work of one process. `role` is a key of `worker.ROLES`."""

    role: str
    connect: Connect
    publishing: Publishing
    topics: list[str]
    """Topic of each producer or consumer; a topic with several of them is listed several times."""
    phases: list[float] = field(default_factory=list)
    """Offset of each producer's schedule, as a fraction of the interval between its messages."""
    shares: list[int] = field(default_factory=list)
    """Number of messages of each producer after the warm-up; empty if the time is the limit."""
    subscriptions: list[str] = field(default_factory=list)
    """Subscription of each consumer."""
    subscribing: Subscribing = Subscribing()
    warm_up_s: float = 0.0
    duration_s: float = 0.0
    """Time of publishing after the warm-up; 0 if the number of messages is the limit."""


def encode(job: Job) -> bytes:
    """Return the job as one line."""
    return msgspec.json.encode(job) + b"\n"


def decode(line: bytes) -> Job:
    """Return the job in a line. Raises `ConfigurationError`."""
    try:
        return msgspec.json.decode(line, type=Job)
    except msgspec.DecodeError as error:
        raise ConfigurationError(
            f"`quire bench worker` is started by the other benchmarks, not by users: {error}"
        ) from None
