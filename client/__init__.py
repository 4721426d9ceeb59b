"""The asyncio client for users of Quire, or of any server of the Pulsar protocol.

    from quire.client import Client

    async with Client("pulsar://127.0.0.1:6650") as client:
        async with client.producer("orders") as producer:
            receipt = await producer.send(b"hello", key="42")
        async with client.consumer("orders", "billing", type="shared") as consumer:
            async for message in consumer:
                await consumer.ack(message)

Read in this order: `client`, `producer`, `partition_producer` (with `batch`), `consumer`, `partition_consumer`
(with `inbox`, `permits`, `entry` and `acks`), `reader`; below them `context` (what they need of the client),
`attachment`, which keeps each attached to its broker, `lookup` and `connection`; at the side `messages`, `subscribe`,
`errors`, `settings`, `authentication`, `routing`, `backoff`.

Not here: schemas, transactions, chunked messages, encryption, topic patterns, dead letters.
"""

from quire.client.authentication import Authentication, basic, token
from quire.client.client import Client
from quire.client.consumer import Consumer
from quire.client.errors import (
    AuthenticationFailed,
    Closed,
    ConnectionLost,
    ConsumerBusy,
    MessageUndecodable,
    NotAuthorized,
    ProducerBusy,
    PublishFailed,
    PublishUnknown,
    QueueFull,
    Refused,
    TopicTerminated,
)
from quire.client.messages import EARLIEST, LATEST, Message, MessageId, Receipt
from quire.client.producer import Producer
from quire.client.reader import Reader
from quire.client.settings import ClientSettings, ConsumerSettings, ProducerSettings

__all__ = [
    "EARLIEST",
    "LATEST",
    "Authentication",
    "AuthenticationFailed",
    "Client",
    "ClientSettings",
    "Closed",
    "ConnectionLost",
    "Consumer",
    "ConsumerBusy",
    "ConsumerSettings",
    "Message",
    "MessageId",
    "MessageUndecodable",
    "NotAuthorized",
    "Producer",
    "ProducerBusy",
    "ProducerSettings",
    "PublishFailed",
    "PublishUnknown",
    "QueueFull",
    "Reader",
    "Receipt",
    "Refused",
    "TopicTerminated",
    "basic",
    "token",
]
