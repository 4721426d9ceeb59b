"""What can go wrong for a user of the client, by what the user can do about it.

A publish has three ends, and the difference between the last two is what a program must act on:

    a receipt        the message is stored, as often as the topic promises
    PublishFailed    it was refused or never left: it is *not* stored; fix the cause or publish it again
    PublishUnknown   it left, and no answer came: it may be stored; to publish it again may store it twice
                     (never with deduplication and the same sequence id)

Everything a broker refuses comes as the error that fits its code. `is_final` tells the errors that end a producer or
consumer from those after which it connects again.
"""

from __future__ import annotations

from typing import Final

from quire.runtime.errors import Fenced, NotFound, OutcomeUnknown, ProtocolError, QuireError, Unavailable
from quire.wire import pulsar_pb2 as pb


class PublishFailed(QuireError):
    """The message is not stored: it was refused, or it never left this process."""


class PublishUnknown(OutcomeUnknown):
    """The message left this process and no answer came in time; it may or may not be stored."""


class QueueFull(Unavailable):
    """`send_nowait` found the limit of messages in flight reached; `send` and `enqueue` wait instead."""


class Moved(Unavailable):
    """The broker gave the topic up; it is at `url` now, or, if that is empty, to be looked up."""

    def __init__(self, what: str, url: str) -> None:
        super().__init__(what)
        self.url = url


class ConnectionLost(Unavailable):
    """There is no connection to the broker, or it ended before the answer came."""


class TimedOut(Unavailable):
    """The broker did not answer a request in time."""


class Closed(QuireError):
    """The client, producer, consumer or reader was closed by its user."""


class NotStorable(Unavailable):
    """The broker cannot keep what it is given, or read what it has: a disk is full, or damaged. The message tells."""


class AuthenticationFailed(QuireError):
    """The broker does not accept the credentials."""


class NotAuthorized(QuireError):
    """The credentials are good, but not for this."""


class ProducerBusy(QuireError):
    """Another producer has the name, or has the topic for itself."""


class ConsumerBusy(QuireError):
    """Another consumer has the subscription for itself."""


class TopicTerminated(QuireError):
    """The topic takes no more messages."""


class IncompatibleSchema(QuireError):
    """The topic has schemas that this one does not go together with."""


class Refused(QuireError):
    """The broker refused a request; `code` is its `ServerError`."""

    def __init__(self, what: str, code: int = pb.UnknownError) -> None:
        super().__init__(what)
        self.code = code


class MessageUndecodable(QuireError):
    """A consumer got an entry that it cannot decode; it stays unacknowledged, the next `receive` goes on.

    `message_id` may be given to `ack`, to be rid of the entry.
    """

    def __init__(self, what: str, message_id: object) -> None:
        super().__init__(what)
        self.message_id = message_id


_BY_CODE: Final[dict[int, type[QuireError]]] = {
    pb.MetadataError: Unavailable,
    pb.PersistenceError: NotStorable,
    pb.ServiceNotReady: Unavailable,
    pb.ConsumerNotFound: Unavailable,  # the broker has just closed it, and we attach again when we hear of that
    pb.TooManyRequests: Unavailable,
    pb.ProducerBlockedQuotaExceededError: Unavailable,
    pb.ProducerBlockedQuotaExceededException: Unavailable,
    pb.AuthenticationError: AuthenticationFailed,
    pb.AuthorizationError: NotAuthorized,
    pb.ProducerBusy: ProducerBusy,
    pb.ConsumerBusy: ConsumerBusy,
    pb.TopicNotFound: NotFound,
    pb.SubscriptionNotFound: NotFound,
    pb.TopicTerminatedError: TopicTerminated,
    pb.ProducerFenced: Fenced,
    pb.IncompatibleSchema: IncompatibleSchema,
}


def from_server(code: int, message: str, what: str) -> QuireError:
    """The error for what a broker answered; `what` was asked of it."""
    sentence = f"{what} was refused: {message or pb.ServerError.Name(code)}"
    kind = _BY_CODE.get(code)
    return Refused(sentence, code) if kind is None else kind(sentence)


def is_final(error: QuireError, *, established: bool) -> bool:
    """Whether to give up attaching a producer or consumer; `established`: it was attached before.

    Once established, "busy" most often means that the broker has not yet noticed the end of the old connection. A full
    disk may have room again; but who begins hears of it at once.
    """
    if isinstance(error, NotStorable):
        return not established
    if isinstance(error, Unavailable | OutcomeUnknown):
        return False
    if isinstance(error, ProducerBusy | ConsumerBusy | ProtocolError):
        return not established
    if isinstance(error, Refused) and error.code == pb.UnknownError:
        return not established
    return True
