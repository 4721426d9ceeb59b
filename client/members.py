"""Producers, consumers and watchers on one connection, and the commands that the broker sends to each."""

from __future__ import annotations

from typing import Protocol

from google.protobuf.message import Message

from quire.client.errors import Moved
from quire.runtime.errors import QuireError
from quire.wire import pulsar_pb2 as pb
from quire.wire.frame import Delivery


class ProducerEnd(Protocol):
    """Interface of a producer to its connection."""

    def receipt(self, body: pb.CommandSendReceipt) -> None: ...
    def refused(self, body: pb.CommandSendError) -> None: ...
    def detached(self, reason: QuireError) -> None: ...


class ConsumerEnd(Protocol):
    """Interface of a consumer to its connection."""

    def delivered(self, delivery: Delivery) -> None: ...
    def active_changed(self, is_active: bool) -> None: ...
    def reached_end(self) -> None: ...
    def detached(self, reason: QuireError) -> None: ...


class WatcherEnd(Protocol):
    """Interface of a watcher of created and deleted topics to its connection."""

    def topics_changed(self, body: pb.CommandWatchTopicUpdate) -> None: ...
    def detached(self, reason: QuireError) -> None: ...


class Members:
    """Producers, consumers and watchers of one connection, by id. They register and remove themselves."""

    def __init__(self, url: str) -> None:
        self.producers: dict[int, ProducerEnd] = {}
        self.consumers: dict[int, ConsumerEnd] = {}
        self.watchers: dict[int, WatcherEnd] = {}
        self._url = url

    def deliver(self, delivery: Delivery) -> None:
        consumer = self.consumers.get(delivery.body.consumer_id)
        if consumer is not None:
            consumer.delivered(delivery)

    def dispatch(self, body: Message) -> bool:
        """Pass a command to the producer, consumer or watcher that it names. Return False for other commands."""
        match body:
            case pb.CommandSendReceipt():
                if (producer := self.producers.get(body.producer_id)) is not None:
                    producer.receipt(body)
            case pb.CommandSendError():
                if (producer := self.producers.get(body.producer_id)) is not None:
                    producer.refused(body)
            case pb.CommandCloseProducer():
                self._unload(self.producers.pop(body.producer_id, None), body)
            case pb.CommandCloseConsumer():
                self._unload(self.consumers.pop(body.consumer_id, None), body)
            case pb.CommandActiveConsumerChange():
                if (consumer := self.consumers.get(body.consumer_id)) is not None:
                    consumer.active_changed(body.is_active)
            case pb.CommandReachedEndOfTopic():
                if (consumer := self.consumers.get(body.consumer_id)) is not None:
                    consumer.reached_end()
            case pb.CommandWatchTopicUpdate():
                if (watcher := self.watchers.get(body.watcher_id)) is not None:
                    watcher.topics_changed(body)
            case _:
                return False
        return True

    def _unload(
        self, end: ProducerEnd | ConsumerEnd | None, body: pb.CommandCloseProducer | pb.CommandCloseConsumer
    ) -> None:
        """Detach a producer or consumer whose topic was unloaded; the broker may name the next owner."""
        if end is not None:
            tls = body.assignedBrokerServiceUrlTls if self._url.startswith("pulsar+ssl") else ""
            end.detached(Moved(f"{self._url} gave the topic up", tls or body.assignedBrokerServiceUrl))

    def detach_all(self, reason: QuireError) -> None:
        ends: list[ProducerEnd | ConsumerEnd | WatcherEnd] = [
            *self.producers.values(),
            *self.consumers.values(),
            *self.watchers.values(),
        ]
        self.producers.clear()
        self.consumers.clear()
        self.watchers.clear()
        for end in ends:
            end.detached(reason)
