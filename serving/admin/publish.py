"""`POST /quire/v1/topics/…/messages`: publish one message (`operations/publishing`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aiohttp import web
from msgspec import ValidationError, convert

from quire.runtime.errors import ConfigurationError
from quire.runtime.limits import PROPERTIES_BYTES_MAX
from quire.runtime.network import peer_address
from quire.security.authorization import Action
from quire.serving.admin.route import REQUEST, TOPIC_NAME, Route, body
from quire.serving.admin.storage import TOPIC
from quire.serving.broker import Broker
from quire.serving.names import TopicName
from quire.serving.operations.publishing import NewMessage, Published


def routes(broker: Broker) -> Sequence[Route]:
    async def publish(topic: TopicName, message: NewMessage, request: web.Request) -> Published:
        """Publish a message, and answer once it is durable. The value is encoded by the topic's newest schema."""
        return await broker.admin.messages.publishing.publish(topic, message, peer_address(request.transport))

    return (
        Route(
            "POST",
            f"{TOPIC}/messages",
            publish,
            TOPIC_NAME,
            body(_message, NewMessage),
            REQUEST,
            may=Action.PRODUCE,
        ),
    )


def _message(value: Any) -> NewMessage:
    try:
        message = convert(value, NewMessage)
    except ValidationError as error:
        raise ConfigurationError(f"the request's body is not a message: {error}") from None
    if sum(len(key) + len(one) for key, one in message.properties.items()) > PROPERTIES_BYTES_MAX:
        raise ConfigurationError(f"properties exceed the limit of {PROPERTIES_BYTES_MAX} characters")
    return message
