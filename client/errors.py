"""Errors of the client.

Publishing a message has three outcomes; an application must handle the last two differently:

    a receipt        the message is stored (and replicated as the topic's settings say)
    PublishFailed    it was refused or not sent: it is *not* stored; fix the cause or publish it again
    PublishUnknown   it was sent, but no receipt came: it may be stored, and if published again, it may be stored
                     twice (except with deduplication and the same sequence id)

A broker's error answer is raised as the class for its code. `is_final` separates the errors that end a producer or
consumer from those after which it reconnects.
"""

from __future__ import annotations

from typing import Final

from quire.runtime.errors import Fenced, NotFound, OutcomeUnknown, ProtocolError, QuireError, Unavailable
from quire.wire import pulsar_pb2 as pb


class PublishFailed(QuireError):
    """The message is not stored: the broker refused it, or the client never sent it."""


class PublishUnknown(OutcomeUnknown):
    """The message was sent, but no receipt came in time; it may or may not be stored."""


class QueueFull(Unavailable):
    """The limit of messages in flight is reached; `send` and `enqueue` wait instead of raising this error."""


class Moved(Unavailable):
    """The broker unloaded the topic. `url` is the new owner's URL, or empty if it must be looked up."""

    def __init__(self, what: str, url: str) -> None:
        super().__init__(what)
        self.url = url


class ConnectionLost(Unavailable):
    """There is no connection to the broker, or it was lost before the response arrived."""


class TimedOut(Unavailable):
    """The broker did not answer a request within the operation timeout."""


class Closed(QuireError):
    """The application has closed the client, producer, consumer or reader."""


class NotStorable(Unavailable):
    """The broker cannot write or read its storage, because a disk is full or damaged; the text has the reason."""


class AuthenticationFailed(QuireError):
    """The broker rejected the credentials."""


class NotAuthorized(QuireError):
    """The credentials are valid, but lack the permission for this operation."""


class ProducerBusy(QuireError):
    """Another producer uses this name, or has exclusive access to the topic."""


class ConsumerBusy(QuireError):
    """Another consumer has the subscription exclusively, or its type or key ranges conflict with this consumer's."""


class TopicTerminated(QuireError):
    """The topic is terminated and accepts no more messages."""


class IncompatibleSchema(QuireError):
    """The schema is incompatible with the topic's schemas."""


class Refused(QuireError):
    """The broker refused a request; `code` is Pulsar's `ServerError`."""

    def __init__(self, what: str, code: int = pb.UnknownError) -> None:
        super().__init__(what)
        self.code = code


class MessageUndecodable(QuireError):
    """A consumer cannot decode an entry. The entry stays unacknowledged, and the next `receive` continues after it.

    Pass `message_id` to `ack` to skip the entry permanently.
    """

    def __init__(self, what: str, message_id: object) -> None:
        super().__init__(what)
        self.message_id = message_id


_BY_CODE: Final[dict[int, type[QuireError]]] = {
    pb.MetadataError: Unavailable,
    pb.PersistenceError: NotStorable,
    pb.ServiceNotReady: Unavailable,
    # the broker has just closed the consumer; its CLOSE_CONSUMER follows, and the client reattaches
    pb.ConsumerNotFound: Unavailable,
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
    """Return the QuireError for a broker's error code; `what` names the request."""
    sentence = f"{what} was refused: {message or pb.ServerError.Name(code)}"
    kind = _BY_CODE.get(code)
    return Refused(sentence, code) if kind is None else kind(sentence)


def is_final(error: QuireError, *, established: bool) -> bool:
    """Return whether the producer or consumer must not be attached again after this error.

    `established` is True if it was attached before. Then "busy" usually means that the broker has not yet noticed the
    end of the old connection, and a full disk may have space again, so both are retried. At a first attachment both are
    final. `Attachment` itself retries refused credentials.
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
