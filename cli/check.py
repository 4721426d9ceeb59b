"""`quire check`: publishes numbered messages while processes are killed, and checks that no acknowledged one is lost.

| message                       | result                                                             |
|-------------------------------|--------------------------------------------------------------------|
| acknowledged and read         | correct                                                            |
| acknowledged and not read     | **lost**                                                           |
| first copy read out of order  | **out of order**                                                   |
| not acknowledged, read or not | allowed: it may be lost or stored                                  |
| read twice                    | resent after a connection was lost; only deduplication prevents it |
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Final
from uuid import uuid4

import click

from quire.cli.client_command import client_options, connected, open_client, run, until_interrupted
from quire.cli.noun import json_option
from quire.cli.output import print_json
from quire.cli.own_topics import OwnTopics, admin_url_option
from quire.runtime.credentials import Credentials
from quire.runtime.tls import ClientTls

if TYPE_CHECKING:
    from quire.client import Client
    from quire.client.batch import Publication

PATIENCE_S: Final = 120.0
"""Seconds to wait for a receipt: longer than any failover."""

_TICK_S: Final = 0.02


@dataclass
class Verdict:
    """Result of one run, over the messages of all its topics."""

    published: int = 0
    acknowledged: int = 0
    read: int = 0
    lost: int = 0
    out_of_order: int = 0
    read_twice: int = 0
    slowest_receipt_s: float = 0.0
    first_lost: list[str] = field(default_factory=list)
    topics_kept: list[str] = field(default_factory=list)

    @property
    def is_good(self) -> bool:
        return not (self.lost or self.out_of_order)

    def judge(self, topic: str, acknowledged: set[int], read: list[int]) -> None:
        """Add the result of one topic: its acknowledged message numbers, and all its numbers in reading order."""
        firsts = list(dict.fromkeys(read))
        lost = sorted(acknowledged - set(firsts))
        self.acknowledged += len(acknowledged)
        self.read += len(firsts)
        self.read_twice += len(read) - len(firsts)
        self.out_of_order += sum(later < earlier for earlier, later in pairwise(firsts))
        self.lost += len(lost)
        self.first_lost += [f"{topic}: message {number}" for number in lost[:3]]

    def __str__(self) -> str:
        counts = (
            f"published {self.published:,}, acknowledged {self.acknowledged:,}, read {self.read:,} "
            f"({self.read_twice:,} of them twice)\n"
            f"The slowest receipt took {self.slowest_receipt_s:.2f} s."
        )
        if self.is_good:
            return f"{counts}\nNo acknowledged message is lost, and all are in order."
        examples = "".join(f"\n  {one}" for one in self.first_lost)
        return f"{counts}\nLOST: {self.lost:,}, out of order: {self.out_of_order:,}{examples}"


class _Receipts:
    """Latency of receipts, measured to the nearest tick for the first message of each tick."""

    def __init__(self, topics: Iterable[str]) -> None:
        self._waiting: dict[str, deque[tuple[float, Publication]]] = {topic: deque() for topic in topics}
        self.slowest_s = 0.0

    def sent(self, topic: str, publication: Publication, now: float) -> None:
        waiting = self._waiting[topic]
        if not waiting or waiting[-1][0] != now:
            waiting.append((now, publication))

    def look(self, now: float) -> bool:
        """Measure receipts that arrived, and return whether more are expected."""
        for waiting in self._waiting.values():
            while waiting and waiting[0][1].is_done:
                self.slowest_s = max(self.slowest_s, now - waiting.popleft()[0])
        return any(self._waiting.values())

    async def all(self) -> None:
        while True:
            await asyncio.sleep(_TICK_S)
            if not self.look(asyncio.get_running_loop().time()):
                return


@click.command("check")
@click.option("--seconds", type=click.FloatRange(min=0, min_open=True), default=60, show_default=True)
@click.option(
    "--rate", type=click.IntRange(1), default=1000, show_default=True, help="Messages/s over all topics."
)
@click.option("--topics", "count", type=click.IntRange(1), default=4, show_default=True)
@click.option(
    "--keep",
    is_flag=True,
    help="Keep the topics. By default they are deleted unless messages are lost or out of order.",
)
@client_options
@admin_url_option
@json_option
def command(
    seconds: float,
    rate: int,
    count: int,
    keep: bool,
    service_url: str,
    operation_timeout_ms: str,
    tls: ClientTls,
    credentials: Credentials,
    admin_url: str | None,
    as_json: bool,
) -> None:
    """Publish numbered messages to new topics, read them back, and check that no acknowledged one is lost.

    Meanwhile, kill, stop or disconnect processes. Ctrl-C ends publishing early. Exit code 1: messages are lost or out
    of order.

    \b
    Examples:
      quire check
      quire check --seconds 600 --rate 5000 --topics 20
    """
    prefix = f"check-{uuid4().hex[:8]}"
    names = [f"{prefix}-{number}" for number in range(count)]
    topics = OwnTopics(names, service_url, admin_url, tls, credentials)
    verdict = run(
        _check(open_client(service_url, operation_timeout_ms, tls, credentials), names, seconds, rate)
    )
    if not as_json:
        click.echo(str(verdict))
    is_evidence = not (verdict.is_good and verdict.acknowledged)
    verdict.topics_kept = names if keep or is_evidence else topics.delete()
    if as_json:
        print_json(asdict(verdict))
    elif verdict.topics_kept:
        click.echo(f"The topics are kept: {', '.join(verdict.topics_kept)}")
    if not verdict.is_good:
        sys.exit(1)


async def _check(client: Client, names: list[str], seconds: float, rate: int) -> Verdict:
    verdict = Verdict()
    sent: dict[str, list[Publication]] = {name: [] for name in names}
    receipts = _Receipts(names)
    async with connected(client):
        publishing = asyncio.create_task(_publish(client, sent, receipts, seconds, rate))
        with until_interrupted(publishing):
            await asyncio.wait([publishing])
        if not publishing.cancelled():
            publishing.result()
        click.echo("published; waiting for receipts and reading back", err=True)
        await receipts.all()
        verdict.slowest_receipt_s = round(receipts.slowest_s, 3)
        for name, publications in sent.items():
            acknowledged = await _acknowledged(publications)
            verdict.published += len(publications)
            verdict.judge(name, acknowledged, await _read(client, name))
    return verdict


async def _publish(
    client: Client, sent: dict[str, list[Publication]], receipts: _Receipts, seconds: float, rate: int
) -> None:
    """Publish n as the text of message n of each topic. Producers stay open, because receipts are checked later."""
    from quire.client import ProducerSettings

    settings = ProducerSettings(send_timeout_ms=int(PATIENCE_S * 1000))
    producers = {name: client.producer(name, settings=settings) for name in sent}
    for producer in producers.values():
        await producer.start()
    loop = asyncio.get_running_loop()
    begin, count = loop.time(), 0
    while (passed_s := (now := loop.time()) - begin) < seconds:
        while count < passed_s * rate:
            for name, producer in producers.items():
                publication = await producer.enqueue(b"%d" % len(sent[name]))
                sent[name].append(publication)
                receipts.sent(name, publication, now)
            count += len(producers)
        receipts.look(now)
        await asyncio.sleep(_TICK_S)


async def _acknowledged(publications: list[Publication]) -> set[int]:
    from quire.client import PublishFailed, PublishUnknown

    numbers = set()
    for number, publication in enumerate(publications):
        try:
            await publication
        except (PublishFailed, PublishUnknown):
            continue
        numbers.add(number)
    return numbers


async def _read(client: Client, topic: str) -> list[int]:
    from quire.client import EARLIEST

    numbers: list[int] = []
    async with client.reader(topic, start=EARLIEST, inclusive=True) as reader:
        last = await reader.last_message_id()
        is_at_end = last == EARLIEST
        while not is_at_end:
            message = await reader.read(PATIENCE_S)
            numbers.append(int(message.payload or b""))
            is_at_end = message.id.place >= last.place
    return numbers
