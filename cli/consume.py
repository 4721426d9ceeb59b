"""`quire consume`: prints the messages of a topic, and then acknowledges them.

The messages that have arrived are written and flushed together, and only then acknowledged. So a message is not
acknowledged before this process has written it.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from base64 import b64encode
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import click

from quire.cli import moments
from quire.cli.client_command import (
    INTERRUPTED,
    client_options,
    connected,
    open_client,
    run,
    until_interrupted,
)
from quire.cli.noun import json_option, topic_argument
from quire.cli.output import visible
from quire.runtime.credentials import Credentials
from quire.runtime.errors import ConfigurationError, NotFound, QuireError, Unavailable
from quire.runtime.settings import parse_duration_ms
from quire.runtime.tls import ClientTls

if TYPE_CHECKING:
    from quire.client import Client, Consumer, Message, MessageId

GROUP_MESSAGES_MAX: Final = 1_000
_TYPES: Final = ("exclusive", "shared", "failover", "key-shared")


@dataclass(frozen=True)
class Job:
    """Options of one run. `start` is `earliest`, `latest` or a publish time in ms."""

    topic: str
    subscription: str
    is_durable: bool
    create: bool
    type: str
    start: str | int
    count: int | None
    follow: bool
    wait_s: float
    ack: bool
    as_json: bool


@click.command("consume")
@topic_argument
@click.option(
    "-s",
    "--subscription",
    help="Name of a durable subscription. By default, a temporary one that ends with this command.",
)
@click.option("--type", "type_", type=click.Choice(_TYPES), default="exclusive", show_default=True)
@click.option(
    "--from",
    "start",
    default="earliest",
    show_default=True,
    metavar="earliest|latest|TIME",
    help=f"Start position of a new subscription; {moments.HELP} also moves an existing one.",
)
@click.option("-n", "--count", type=click.IntRange(min=1), help="End after this number of messages.")
@click.option(
    "--follow/--no-follow",
    default=True,
    show_default=True,
    help="Wait for more messages, or end after the existing ones.",
)
@click.option(
    "--wait",
    default="2s",
    show_default=True,
    metavar="TIME",
    help="With --no-follow: end after this time without a message.",
)
@click.option("--create", is_flag=True, help="Create the topic if it does not exist.")
@click.option("--no-ack", is_flag=True, help="Do not acknowledge the messages.")
@client_options
@json_option
def command(
    topic: str,
    subscription: str | None,
    type_: str,
    start: str,
    count: int | None,
    follow: bool,
    wait: str,
    create: bool,
    no_ack: bool,
    service_url: str,
    operation_timeout_ms: str,
    tls: ClientTls,
    credentials: Credentials,
    as_json: bool,
) -> None:
    """Print the messages of TOPIC, one per line.

    \b
    Examples:
      quire consume hello
      quire consume hello --subscription first --count 1
      quire consume orders --subscription audit --from 15m --json
      quire consume logs --subscription grep --no-follow --no-ack | grep error
    """
    job = Job(
        topic=topic,
        subscription=subscription or f"consume-{uuid4().hex[:8]}",
        is_durable=subscription is not None,
        create=create,
        type=type_,
        start=_start(start),
        count=count,
        follow=follow,
        wait_s=parse_duration_ms(wait) / 1000,
        ack=not no_ack,
        as_json=as_json,
    )
    try:
        interrupted = run(_consume(open_client(service_url, operation_timeout_ms, tls, credentials), job))
    except BrokenPipeError:
        # The reader closed the pipe; prevent the interpreter from flushing into it again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return
    if interrupted:
        sys.exit(INTERRUPTED)


def _start(text: str) -> str | int:
    """Parse `earliest`, `latest`, or a time in ms since 1970. Raises `ConfigurationError`."""
    if text in ("earliest", "latest"):
        return text
    time_ms = moments.time_ms(text)
    if time_ms is None:
        raise ConfigurationError(
            f"{text!r} is not earliest, latest, a time such as 2025-06-30T12:00:00, or a duration such as 15m"
        )
    return time_ms


async def _consume(client: Client, job: Job) -> bool:
    """Print messages until the job is done; return whether it was interrupted."""
    from quire.client import EARLIEST, LATEST

    consumer = client.consumer(
        job.topic,
        job.subscription,
        type=job.type,
        start=LATEST if job.start == "latest" else EARLIEST,
        durable=job.is_durable,
        create=job.create,
    )
    async with connected(client), _entered(consumer, job):
        if isinstance(job.start, int):
            await consumer.seek(publish_time_ms=job.start)
        task = asyncio.create_task(_print_all(consumer, job))
        with until_interrupted(task):
            await asyncio.wait([task])
        left = {} if task.cancelled() else task.result()
        await consumer.flush_acks()
        if left and job.type == "exclusive":
            await _refuse_unread(consumer, job, left)
        return task.cancelled()


async def _refuse_unread(consumer: Consumer[bytes], job: Job, left: dict[str, MessageId]) -> None:
    """Raise `Unavailable` if a partition's mark-delete position is before its last message, whose id is in `left`."""
    marks = await consumer.mark_deletes()
    for topic, end in left.items():
        mark = marks[topic]
        if (mark.ledger_id, mark.entry_id) < (end.ledger_id, end.entry_id):
            raise Unavailable(
                f"not all messages were read: {topic} ends at {end.ledger_id}:{end.entry_id}, but no message came for "
                f"{job.wait_s:g} s; see `quire topics stats` for the reason, or increase --wait"
            )


@asynccontextmanager
async def _entered(consumer: Consumer[bytes], job: Job) -> AsyncIterator[None]:
    """Subscribe, and close the consumer at the end. Raises `NotFound` for a missing topic that may not be created."""
    try:
        await consumer.start()
    except NotFound:
        raise NotFound(f"topic {job.topic} does not exist; use --create to create it") from None
    try:
        yield
    finally:
        await consumer.close()


@dataclass
class Rest:
    """Remaining messages of one partition. The last may not be delivered, because it may be acknowledged already."""

    end: MessageId
    messages: int | None
    """Number of remaining messages; None if unknown."""
    place: tuple[int, int, int] = (-1, -1, -1)

    @property
    def is_over(self) -> bool:
        return self.messages == 0 or self.end.entry_id < 0 or self.place >= self.end.place

    def given(self, one: MessageId) -> None:
        if one.place > self.place:  # redelivered messages count once
            self.place = one.place
            self.messages = None if self.messages is None else self.messages - 1


async def _rest(consumer: Consumer[bytes], job: Job) -> dict[str, Rest]:
    """Return the remaining messages of each partition, or an empty dict if the job follows the topic."""
    if job.follow:
        return {}
    messages: dict[str, int] = {}
    if job.type == "exclusive":  # other types share messages with other consumers
        with suppress(QuireError):  # the backlog may be unavailable
            messages = await consumer.backlogs()
    ends = await consumer.last_message_ids()
    return {topic: Rest(end, messages.get(topic)) for topic, end in ends.items()}


async def _print_all(consumer: Consumer[bytes], job: Job) -> dict[str, MessageId]:
    """Print messages until the job is done, or until no message arrives in time.

    Returns the last message id of each partition that was not read to its end.
    """
    rests = await _rest(consumer, job)
    printed = 0
    while printed != job.count and (job.follow or not all(one.is_over for one in rests.values())):
        try:
            group = await _group(consumer, job, printed)
        except TimeoutError:
            return {topic: one.end for topic, one in rests.items() if not one.is_over}
        _print(group, job)
        printed += len(group)
        for one in group:
            if one.topic in rests:
                rests[one.topic].given(one.id)
            if job.ack:
                await consumer.ack(one)
    return {}


async def _group(consumer: Consumer[bytes], job: Job, printed: int) -> list[Message[bytes]]:
    """Take the arrived messages, at least one. Raises TimeoutError if the job does not follow and none arrives."""
    most = GROUP_MESSAGES_MAX if job.count is None else min(GROUP_MESSAGES_MAX, job.count - printed)
    group: list[Message[bytes]] = []
    while len(group) < most:
        one = await _next(consumer, job, wait=not group)
        if one is None:
            break
        group.append(one)
    return group


async def _next(consumer: Consumer[bytes], job: Job, *, wait: bool) -> Message[bytes] | None:
    """Return the next decodable message. Report undecodable ones on standard error, without acknowledging them."""
    from quire.client import MessageUndecodable

    while True:
        try:
            if not wait:
                return consumer.receive_nowait()
            return await consumer.receive(None if job.follow else job.wait_s)
        except MessageUndecodable as error:
            click.echo(f"quire: {error}", err=True)


def _print(group: Sequence[Message[bytes]], job: Job) -> None:
    out = sys.stdout.buffer
    if job.as_json:
        out.writelines(json.dumps(_as_json(one)).encode() + b"\n" for one in group)
    else:
        shown = _visible if sys.stdout.isatty() else bytes
        out.writelines(shown(one.payload or b"") + b"\n" for one in group)
    out.flush()


def _visible(payload: bytes) -> bytes:
    """Escape control characters and bytes that are not text for a terminal."""
    return visible(payload.decode(errors="backslashreplace")).encode()


def _as_json(one: Message[bytes]) -> dict[str, Any]:
    return {
        "topic": one.topic,
        "id": str(one.id),
        "key": one.key,
        "properties": dict(one.properties),
        "publish_time_ms": one.publish_time_ms,
        "event_time_ms": one.event_time_ms,
        "producer": one.producer_name,
        "sequence_id": one.sequence_id,
        "redelivery_count": one.redelivery_count,
        **_payload(one.payload),
    }


def _payload(payload: bytes | None) -> dict[str, str | None]:
    """Encode a payload for JSON: as text, or as base64 if it is not text."""
    try:
        return {"payload": None if payload is None else payload.decode()}
    except UnicodeDecodeError:
        assert payload is not None
        return {"payload_base64": b64encode(payload).decode()}
