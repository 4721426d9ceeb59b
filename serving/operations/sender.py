"""A producer without a session: it publishes one message, and waits for its receipt."""

from __future__ import annotations

import asyncio
import secrets
from typing import Final

from quire.runtime.clock import iso_time
from quire.runtime.errors import OutcomeUnknown, QuireError, Unavailable
from quire.serving.model.statistics import PublisherStats
from quire.serving.topic.producers import Admission
from quire.serving.topic.runs import PublishRun
from quire.serving.topic.topic import PersistentTopic
from quire.wire import pulsar_pb2 as pb
from quire.wire.block import Buffer

CLIENT: Final = "Quire-REST"
_HEAD: Final = b"\x08\x00\x10\x00"
"""Start of a SEND: producer id 0 and sequence id 0."""


class SenderNames:
    """Names of senders with their next sequence ids. A name is used again when its message was answered.

    So there are as many names as messages were published at the same time, and deduplication, which keeps the last
    sequence id of each name, forgets no client's producer because of them.
    """

    def __init__(self) -> None:
        self._free: list[tuple[str, int]] = []

    def take(self) -> tuple[str, int]:
        """Return a name that no sender has now, and a sequence id above all that it used."""
        return self._free.pop() if self._free else (f"rest-{secrets.token_hex(8)}", 0)

    def give_back(self, name: str, used: int) -> None:
        """Let another sender have a name. Do not call it for a message with an unknown outcome."""
        self._free.append((name, used + 1))


class Sender:
    """Producer of one message (a `ProducerPort`). No other one has its name now, so it never waits for another."""

    def __init__(self, name: str, created_ms: int, address: str) -> None:
        self.name = name
        self.admission = Admission()
        self._answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._created_ms = created_ms
        self._address = address

    async def send(self, topic: PersistentTopic, entry: bytes, timeout_s: float) -> str:
        """Publish an entry, and return its position once it is durable.

        Raises `Unavailable` if the topic refuses it, `OutcomeUnknown`.
        """
        if (limiter := topic.applied.publish_limiter) is not None:
            limiter.passed(1, len(entry))
        topic.publish(self, PublishRun.of(0, [_HEAD], [entry]))
        done, _ = await asyncio.wait([self._answer], timeout=timeout_s)
        if not done or self._answer.cancelled():
            raise OutcomeUnknown(
                f"topic {topic.name} sent no receipt, so the message may or may not be stored: look for it before "
                "you publish it again"
            )
        return self._answer.result()

    # -- ProducerPort, called by the topic -------------------------------------------------------------

    def write(self, data: Buffer) -> None:
        if self._answer.done():
            return
        command = pb.BaseCommand.FromString(bytes(data[8:]))
        if command.type == pb.BaseCommand.SEND_ERROR:
            self._answer.set_exception(Unavailable(f"the message was refused: {command.send_error.message}"))
            return
        found = command.send_receipt.message_id
        self._answer.set_result(f"{found.ledgerId}:{found.entryId}")

    def ready(self, last_sequence_id: int) -> None:
        """Ignore it: a producer with shared access never waits for it."""

    def fenced(self, error: QuireError) -> None:
        self.close()

    def replaced(self) -> None:
        self.close()

    def close(self, service_url: str = "") -> None:
        if not self._answer.done():
            self._answer.cancel()

    def stats(self) -> PublisherStats:
        return PublisherStats(
            producer_id=0,
            producer_name=self.name,
            access_mode="Shared",
            address=self._address,
            client_version=CLIENT,
            connected_since=iso_time(self._created_ms),
            metadata={},
            msg_rate_in=0.0,
            msg_throughput_in=0.0,
            average_msg_size=0.0,
            entries_in=0,
        )
