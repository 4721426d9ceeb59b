"""Asyncio client for Quire and any other server of the Pulsar protocol.

    from quire.client import Client

    async with Client("pulsar://127.0.0.1:6650") as client:
        async with client.producer("orders") as producer:
            receipt = await producer.send(b"hello", key="42")
        async with client.consumer("orders", "billing", type="shared") as consumer:
            async for message in consumer:
                await consumer.ack(message)

docs/client.md shows all features by example. To read the code, in this order: `client`; `producer` and
`partition_producer` (with `batch` and `sealing`); `consumer` and `subscribed_topics`; `partition_consumer` (with
`permits`) and `deliveries` (with `opening`, `entry`, `beginning`, `acks`, `acknowledging` and `nack`); `reader`;
`dead_letter`; `pattern`. These use `context` (the interface of the client), `attachment` (which keeps a producer or
consumer attached to its broker), `lookup` and `connection` (with `members`). Messages are encoded and decoded by
`chunks`, `crypto` and `schema` (with `record` and `writers`). The remaining modules are `messages`, `subscribe`,
`errors`, `settings`, `authentication`, `routing` and `backoff`.

Transactions are not supported.
"""

from quire.client.authentication import Authentication, basic, token
from quire.client.client import Client
from quire.client.consumer import Consumer
from quire.client.crypto import Encryption, keys_from
from quire.client.dead_letter import DeadLetterPolicy
from quire.client.errors import (
    AuthenticationFailed,
    Closed,
    ConnectionLost,
    ConsumerBusy,
    IncompatibleSchema,
    MessageUndecodable,
    NotAuthorized,
    NotStorable,
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
from quire.client.record import Float, Int
from quire.client.schema import AUTO, BYTES, STRING, AvroSchema, JsonSchema, KeyValueSchema, Schema
from quire.client.settings import ClientSettings, ConsumerSettings, ProducerSettings
from quire.runtime.tls import ClientTls

__all__ = [
    "AUTO",
    "BYTES",
    "EARLIEST",
    "LATEST",
    "STRING",
    "Authentication",
    "AuthenticationFailed",
    "AvroSchema",
    "Client",
    "ClientSettings",
    "ClientTls",
    "Closed",
    "ConnectionLost",
    "Consumer",
    "ConsumerBusy",
    "ConsumerSettings",
    "DeadLetterPolicy",
    "Encryption",
    "Float",
    "IncompatibleSchema",
    "Int",
    "JsonSchema",
    "KeyValueSchema",
    "Message",
    "MessageId",
    "MessageUndecodable",
    "NotAuthorized",
    "NotStorable",
    "Producer",
    "ProducerBusy",
    "ProducerSettings",
    "PublishFailed",
    "PublishUnknown",
    "QueueFull",
    "Reader",
    "Receipt",
    "Refused",
    "Schema",
    "TopicTerminated",
    "basic",
    "keys_from",
    "token",
]
