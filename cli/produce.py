"""`quire produce`: publishes the lines of files or standard input as messages."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

import click

from quire.cli.client_command import (
    INTERRUPTED,
    client_options,
    connected,
    open_client,
    run,
    until_interrupted,
)
from quire.cli.lines import STANDARD_INPUT, Lines
from quire.cli.noun import json_option, topic_argument
from quire.cli.output import print_json
from quire.client import PublishFailed, PublishUnknown
from quire.runtime.credentials import Credentials
from quire.runtime.errors import ConfigurationError, QuireError
from quire.runtime.settings import format_size, load
from quire.runtime.tls import ClientTls

if TYPE_CHECKING:
    from quire.client import Client, Producer

FLUSH_AFTER_INTERRUPT_S: Final = 5.0
_CODECS: Final = ("none", "lz4", "zlib", "zstd", "snappy")


@dataclass(frozen=True)
class Job:
    """Options of one run. `rate` is in messages/s; 0: unlimited."""

    topic: str
    lines: Lines
    key: str | None
    key_separator: bytes | None
    properties: dict[str, str]
    rate: float
    name: str
    settings: Any


@dataclass
class Summary:
    """Totals of published messages. `bytes` is the size of their payloads."""

    messages: int = 0
    bytes: int = 0
    seconds: float = 0.0
    interrupted: bool = False

    def as_json(self) -> dict[str, Any]:
        per_s = self.messages / self.seconds if self.seconds else 0.0
        return {
            "messages": self.messages,
            "bytes": self.bytes,
            "seconds": round(self.seconds, 3),
            "messages_per_second": round(per_s),
        }

    def __str__(self) -> str:
        values = self.as_json()
        noun = "message" if self.messages == 1 else "messages"
        return (
            f"published {self.messages:,} {noun}, {self.bytes:,} bytes in {self.seconds:.1f} s "
            f"({values['messages_per_second']:,} messages/s)"
        )


@click.command("produce")
@topic_argument
@click.argument("files", nargs=-1, metavar="[FILE]...")
@click.option("--key", help="Key of all messages.")
@click.option("--key-separator", metavar="TEXT", help="Text between a line's key and its payload.")
@click.option("--property", "properties", multiple=True, metavar="NAME=VALUE", help="May be repeated.")
@click.option("--rate", type=click.FloatRange(min=0, min_open=True), help="Maximum number of messages/s.")
@click.option("--name", default="", help="Name of the producer; it continues after its last message.")
@click.option("--compression", type=click.Choice(_CODECS), default="none", show_default=True)
@click.option("--batch-messages-max", metavar="N", help="Maximum number of messages in one batch (1000).")
@click.option("--batch-bytes-max", metavar="SIZE", help="Maximum size of one batch (128KiB).")
@click.option("--batch-delay-ms", metavar="TIME", help="Time that a batch waits for more messages (1ms).")
@click.option("--no-batching", is_flag=True, help="Store each message as a separate entry.")
@client_options
@json_option
def command(
    topic: str,
    files: tuple[str, ...],
    key: str | None,
    key_separator: str | None,
    properties: tuple[str, ...],
    rate: float | None,
    name: str,
    compression: str,
    batch_messages_max: str | None,
    batch_bytes_max: str | None,
    batch_delay_ms: str | None,
    no_batching: bool,
    service_url: str,
    operation_timeout_ms: str,
    tls: ClientTls,
    credentials: Credentials,
    as_json: bool,
) -> None:
    """Publish each line of FILEs (or of standard input) to TOPIC as a message.

    \b
    Examples:
      echo 'Hello, Quire' | quire produce hello
      quire produce orders orders.csv --key-separator , --compression zstd
      tail -f /var/log/syslog | quire produce logs --json
    """
    from quire.client import ProducerSettings

    flags = {
        "compression": compression,
        "batch_messages_max": batch_messages_max,
        "batch_bytes_max": batch_bytes_max,
        "batch_delay_ms": batch_delay_ms,
        "batching": False if no_batching else None,
    }
    if key is not None and key_separator is not None:
        raise ConfigurationError("give either --key or --key-separator")
    job = Job(
        topic=topic,
        lines=Lines(files or (STANDARD_INPUT,)),
        key=key,
        key_separator=key_separator.encode() if key_separator else None,
        properties=dict(_property(one) for one in properties),
        rate=rate or 0.0,
        name=name,
        settings=load(ProducerSettings, flags).values,
    )
    total = job.lines.bytes_total()
    summary = run(_publish(open_client(service_url, operation_timeout_ms, tls, credentials), job, total))
    print_json(summary.as_json()) if as_json else click.echo(str(summary))
    if summary.interrupted:
        sys.exit(INTERRUPTED)


def _property(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise ConfigurationError(f"{text!r} is not a property; write NAME=VALUE")
    return name, value


async def _publish(client: Client, job: Job, bytes_total: int | None) -> Summary:
    summary = Summary()
    async with (
        connected(client),
        client.producer(job.topic, name=job.name, settings=job.settings) as producer,
    ):
        begin = time.monotonic()
        with _progress(bytes_total, are_typed=job.lines.are_typed) as progress:
            task = asyncio.create_task(_publish_lines(producer, job, summary, progress))
            with until_interrupted(task):
                await asyncio.wait([task])
                summary.interrupted = task.cancelled()
                try:
                    if not task.cancelled():
                        task.result()
                    await _finish(producer, summary)
                except (PublishFailed, PublishUnknown) as error:
                    raise await _with_count(producer, summary, error) from None
        summary.seconds = time.monotonic() - begin
    return summary


async def _with_count(
    producer: Producer[bytes], summary: Summary, error: PublishFailed | PublishUnknown
) -> PublishFailed | PublishUnknown:
    """Add the number of stored messages to an error, after a short wait for outstanding receipts."""
    if not summary.interrupted:
        with suppress(QuireError, TimeoutError):
            async with asyncio.timeout(FLUSH_AFTER_INTERRUPT_S):
                await producer.flush()
    return type(error)(
        f"{error}; {producer.acknowledged:,} of {summary.messages:,} messages were acknowledged"
    )


async def _finish(producer: Producer[bytes], summary: Summary) -> None:
    """Wait for all receipts, but only briefly after an interrupt. Raises `PublishFailed`, `PublishUnknown`."""
    try:
        async with asyncio.timeout(FLUSH_AFTER_INTERRUPT_S if summary.interrupted else None):
            await producer.flush()
    except TimeoutError:
        raise PublishUnknown(
            f"interrupted with {producer.in_flight:,} messages without receipt: whether these are stored is not known"
        ) from None


async def _publish_lines(producer: Producer[bytes], job: Job, summary: Summary, progress: _Progress) -> None:
    begin = time.monotonic()
    async for lines in job.lines.chunks():
        for line in lines:
            if job.rate:
                await _wait_until(begin + summary.messages / job.rate)
            key, payload = _split(line, job, summary.messages + 1)
            await producer.enqueue(payload, key=key, properties=job.properties)
            summary.messages += 1
            summary.bytes += len(payload)
        progress.show(job.lines.bytes_read, summary.messages)
        producer.check()


def _split(line: bytes, job: Job, number: int) -> tuple[str | None, bytes]:
    """Split a line into (key, payload)."""
    if job.key_separator is None:
        return job.key, line
    key, separator, payload = line.partition(job.key_separator)
    if not separator:
        raise ConfigurationError(f"line {number} has no key separator {job.key_separator.decode()!r}")
    try:
        return key.decode(), payload
    except UnicodeDecodeError:
        raise ConfigurationError(f"line {number} has a key that is not UTF-8") from None


async def _wait_until(moment: float) -> None:
    wait_s = moment - time.monotonic()
    if wait_s > 0:
        await asyncio.sleep(wait_s)


class _Progress(Protocol):
    def show(self, bytes_read: int, messages: int) -> None: ...


class _Silent:
    def show(self, bytes_read: int, messages: int) -> None:
        """Show nothing, because standard error is not a terminal, or because the user types on it."""


@contextmanager
def _progress(bytes_total: int | None, *, are_typed: bool) -> Iterator[_Progress]:
    """Show a progress bar if standard error is a terminal; a user who types the lines reads how to end instead."""
    if are_typed:
        click.echo("each line is a message; Ctrl-D on an empty line ends", err=True)
    if are_typed or not sys.stderr.isatty():
        yield _Silent()
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (BarColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=bytes_total)

        class _Bar:
            def show(self, bytes_read: int, messages: int) -> None:
                text = f"{messages:,} messages, {format_size(bytes_read >> 10 << 10)}"
                bar.update(task, completed=bytes_read, description=text)

        yield _Bar()
