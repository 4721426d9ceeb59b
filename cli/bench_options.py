"""Options of `quire bench`, and the `Plan` that they make: topics, processes, and the share of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING, Any, Final, TypeVar
from uuid import uuid4

import click

from quire.cli import moments
from quire.cli.client_command import client_options, open_client
from quire.cli.noun import json_option
from quire.cli.own_topics import OwnTopics, admin_url_option
from quire.runtime.errors import ConfigurationError
from quire.runtime.limits import MESSAGE_BYTES_MAX
from quire.runtime.settings import format_size, load, parse_size

if TYPE_CHECKING:
    from quire.client import Client, ProducerSettings
    from quire.perf.job import Job, Publishing

BACKLOG_MESSAGES: Final = 100_000
"""Number of messages that `quire bench consume` publishes before it measures."""

PREFIX: Final = "quire-bench"
SUBSCRIPTION: Final = "quire-bench"

_CODECS: Final = ("none", "lz4", "zlib", "zstd", "snappy")
_PAYLOADS: Final = ("random", "text", "zeros")
_TYPES: Final = ("exclusive", "shared", "failover", "key-shared")

_Command = Callable[..., Any]
Options = Callable[[_Command], _Command]
T = TypeVar("T")


def _group(*options: Options) -> Options:
    """Return a decorator that adds these options in their order."""

    def decorate(command: _Command) -> _Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


topic_options: Final = _group(
    click.argument("given_topics", nargs=-1, metavar="[TOPIC]..."),
    click.option(
        "--topics", "count", type=click.IntRange(1), help="Number of new topics, if no TOPIC is given.  [1]"
    ),
    click.option(
        "--partitions",
        type=click.IntRange(0),
        default=0,
        help="Number of partitions of each new topic; 0: not partitioned.",
    ),
    click.option(
        "--namespace",
        default="public/default",
        show_default=True,
        metavar="TENANT/NAMESPACE",
        help="Namespace of the new topics.",
    ),
    click.option("--keep", is_flag=True, help="Keep the new topics."),
)


def limit_options(duration: str, warm_up: str) -> Options:
    """Return a decorator for the length of a run, with these defaults; the duration's is that of `plan_of`."""
    return _group(
        click.option("-n", "--messages", type=click.IntRange(1), help="Number of messages over all topics."),
        click.option(
            "-d",
            "--duration",
            metavar="TIME",
            help="Time of the run after the warm-up."
            + (f"  [{duration}, without --messages]" if duration else ""),
        ),
        click.option(
            "--warm-up",
            default=warm_up,
            show_default=True,
            metavar="TIME",
            help="Time before, which is not counted.",
        ),
    )


producer_options: Final = _group(
    click.option("--size", default="1KiB", show_default=True, help="Size of each payload."),
    click.option(
        "--payload",
        type=click.Choice(_PAYLOADS),
        default="random",
        show_default=True,
        help="Content of payloads; random bytes do not compress.",
    ),
    click.option("--compression", type=click.Choice(_CODECS), default="none", show_default=True),
    click.option("--batch-messages-max", metavar="N", help="Maximum number of messages in one batch (1000)."),
    click.option("--batch-bytes-max", metavar="SIZE", help="Maximum size of one batch (128KiB)."),
    click.option("--batch-delay-ms", metavar="TIME", help="Time that a batch waits for more messages (1ms)."),
    click.option("--no-batching", is_flag=True, help="Store each message as a separate entry."),
)

load_options: Final = _group(
    click.option(
        "--rate",
        type=click.FloatRange(min=0, min_open=True),
        help="Messages/s over all topics, on a schedule that does not wait for the server.",
    ),
    click.option("--producers", type=click.IntRange(1), help="Number of producers of each topic.  [1]"),
    click.option(
        "--in-flight-messages-max", metavar="N", help="Messages of a producer without a receipt (50000)."
    ),
)

processes_option: Final = click.option(
    "--processes",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Number of client processes. One process uses at most one core.",
)

consume_options: Final = _group(
    click.option(
        "--subscriptions",
        type=click.IntRange(1),
        default=1,
        show_default=True,
        help="Number of subscriptions of each topic; each of them gets all messages.",
    ),
    click.option(
        "--consumers", type=click.IntRange(1), help="Number of consumers of each subscription.  [1]"
    ),
    click.option(
        "--type",
        "type_",
        type=click.Choice(_TYPES),
        help="Type of the subscriptions.  [exclusive, shared for several consumers]",
    ),
)

connect_options: Final = _group(client_options, admin_url_option, json_option)


@dataclass(frozen=True)
class Plan:
    """Options of one run, checked. `messages` or `duration_s` is 0 if it is not the limit."""

    given_topics: tuple[str, ...]
    count: int
    partitions: int
    namespace: str
    keep: bool
    messages: int
    duration_s: float
    warm_up_s: float
    size: int
    payload: str
    rate: float
    producers_each: int
    consumers_each: int
    subscriptions: int
    type: str
    processes: int
    settings: ProducerSettings
    connect: Mapping[str, Any]
    """Arguments of `open_client`."""
    admin_url: str | None
    as_json: bool

    @property
    def is_given(self) -> bool:
        """True if the user named the topics, which are then neither created nor deleted."""
        return bool(self.given_topics)

    def names(self) -> list[str]:
        """Return the topics' names; new ones begin with `PREFIX`, so that they can be recognized."""
        if self.given_topics:
            return list(self.given_topics)
        run = f"persistent://{self.namespace}/{PREFIX}-{uuid4().hex[:8]}"
        return [f"{run}-{number}" for number in range(self.count)]

    def own_topics(self, names: Sequence[str]) -> OwnTopics:
        """Return the topics that are created before the run, and deleted after it."""
        connect = self.connect
        return OwnTopics(
            () if self.is_given else names,
            connect["service_url"],
            self.admin_url,
            connect["tls"],
            connect["credentials"],
            self.partitions,
        )

    def client(self) -> Client:
        """Return a client of the brokers."""
        return open_client(**self.connect)

    # -- Jobs of the child processes --

    def producers(self, topics: Sequence[str]) -> list[Job]:
        """Return the jobs of processes that publish; producers and messages are spread evenly."""
        ends = [topic for _ in range(self.producers_each) for topic in topics]
        shares = _shares(self.messages, len(ends))
        numbers = _spread(range(len(ends)), self.processes)
        return [
            self._job(
                "produce",
                [ends[at] for at in mine],
                phases=[at / len(ends) for at in mine],
                shares=[shares[at] for at in mine] if self.messages else [],
                publishing=self._publishing(self.rate / len(ends)),
            )
            for mine in numbers
        ]

    def consumers(self, topics: Sequence[str], *, backlog: bool = False) -> list[Job]:
        """Return the jobs of processes that consume new messages, or a backlog."""
        from quire.perf.job import Subscribing

        ends = [
            (topic, f"{SUBSCRIPTION}-{number}")
            for _ in range(self.consumers_each)
            for number in range(self.subscriptions)
            for topic in topics
        ]
        how = Subscribing(
            self.type,
            durable=not self.is_given,
            create=not (backlog and self.is_given),
            from_earliest=backlog,
            before_begin=not backlog,
        )
        return [
            self._job(
                "consume",
                [topic for topic, _ in mine],
                subscriptions=[subscription for _, subscription in mine],
                subscribing=how,
            )
            for mine in _spread(ends, self.processes)
        ]

    def pair(self, topics: Sequence[str]) -> list[Job]:
        """Return the job of a process with a producer and a consumer of one topic."""
        from quire.perf.job import Subscribing

        [topic] = topics
        how = Subscribing(durable=not self.is_given)
        shares = [self.messages] if self.messages else []
        return [self._job("ping", [topic], shares=shares, subscriptions=[SUBSCRIPTION], subscribing=how)]

    def openers(self, topics: Sequence[str]) -> list[Job]:
        """Return the jobs of processes that open topics."""
        return [self._job("open", list(mine)) for mine in _spread(topics, self.processes)]

    def _job(self, role: str, topics: list[str], **other: Any) -> Job:
        from quire.perf.job import Connect, Job

        client, given = self.client(), self.connect
        connect = Connect(given["service_url"], client.settings, given["tls"], given["credentials"])
        return Job(
            role,
            connect,
            other.pop("publishing", None) or self._publishing(0.0),
            topics,
            warm_up_s=self.warm_up_s,
            duration_s=self.duration_s,
            **other,
        )

    def _publishing(self, rate: float) -> Publishing:
        from quire.perf.job import Publishing

        return Publishing(self.settings, self.size, self.payload, rate)


def plan_of(given: Mapping[str, Any], *, duration: str = "", has_stamp: bool = False) -> Plan:
    """Return the plan of the command's options. Raises `ConfigurationError`.

    `duration` is the default if the number of messages is not given. With `has_stamp`, each payload must have room for
    the time at which its message was due.
    """
    from quire.client import ProducerSettings

    flags = (
        "compression",
        "batch_messages_max",
        "batch_bytes_max",
        "batch_delay_ms",
        "in_flight_messages_max",
    )
    settings = {name: given.get(name) for name in flags}
    settings["batching"] = False if given["no_batching"] else None
    if not isfinite(given.get("rate") or 0.0):
        raise ConfigurationError("--rate must be a number of messages/s")
    messages, duration_ms = _limits(given, duration)
    producers, consumers = _ends(given)
    return Plan(
        given_topics=given.get("given_topics", ()),
        count=given["count"] or 1,
        partitions=given["partitions"],
        namespace=_namespace(given["namespace"]),
        keep=given["keep"],
        messages=messages,
        duration_s=duration_ms / 1000,
        warm_up_s=_time_ms(given, "warm_up") / 1000,
        size=_size(given["size"], has_stamp),
        payload=given["payload"],
        rate=given.get("rate") or 0.0,
        producers_each=producers,
        consumers_each=consumers,
        subscriptions=given.get("subscriptions", 1),
        type=given.get("type_") or ("exclusive" if consumers == 1 else "shared"),
        processes=given.get("processes", 1),
        settings=load(ProducerSettings, settings).values,
        connect={name: given[name] for name in ("service_url", "operation_timeout_ms", "tls", "credentials")},
        admin_url=given["admin_url"],
        as_json=given["as_json"],
    )


def _limits(given: Mapping[str, Any], default: str) -> tuple[int, int]:
    """Return the number of messages, and the duration in ms; 0 if it is not the limit."""
    messages, duration = given.get("messages"), given.get("duration")
    if messages and duration:
        raise ConfigurationError("give either --messages or --duration")
    if messages:
        return messages, 0
    duration_ms = moments.duration_ms(duration or default or "0s")
    if duration and duration_ms <= 0:
        raise ConfigurationError("--duration must be more than 0, such as 30s")
    return 0, duration_ms


def _time_ms(given: Mapping[str, Any], name: str) -> int:
    return moments.duration_ms(given.get(name, "0s"))


def _size(text: str, has_stamp: bool) -> int:
    from quire.perf.payload import STAMP_BYTES

    least = STAMP_BYTES if has_stamp else 0
    size = parse_size(text)
    if not least <= size <= MESSAGE_BYTES_MAX:
        raise ConfigurationError(
            f"--size must be from {least} B to {format_size(MESSAGE_BYTES_MAX)}, not {text}"
            + (", because each payload contains the time at which it was due" if size < least else "")
        )
    return size


def _namespace(text: str) -> str:
    parts = text.split("/")
    if len(parts) != 2 or not all(parts):
        raise ConfigurationError(f"--namespace {text!r} is not a namespace, such as public/default")
    return text


def _ends(given: Mapping[str, Any]) -> tuple[int, int]:
    """Return the numbers of producers of a topic, and of consumers of a subscription.

    By default, each process has at least one of them. Raises `ConfigurationError`.
    """
    topics, given_topics = given["count"], given.get("given_topics", ())
    if given_topics and (topics or given["partitions"] or given["keep"]):
        raise ConfigurationError("give either TOPICs, which are kept, or --topics, --partitions and --keep")
    count, processes = len(given_topics) or topics or 1, given.get("processes", 1)
    producers = given.get("producers") or -(-processes // count)
    subscribed = count * given.get("subscriptions", 1)
    consumers = given.get("consumers") or (-(-processes // subscribed) if "consumers" in given else 1)
    for what, ends, has_it in (
        ("producers", count * producers, "producers" in given),
        ("consumers", subscribed * consumers, "consumers" in given),
    ):
        if has_it and ends < processes:
            raise ConfigurationError(f"{processes} processes need as many {what}, but there are {ends}")
    if given.get("type_") == "exclusive" and consumers > 1:
        raise ConfigurationError("an exclusive subscription has one consumer; set --type shared")
    return producers, consumers


def _shares(total: int, count: int) -> list[int]:
    """Divide a number of messages among producers."""
    each, more = divmod(total, count)
    return [each + (at < more) for at in range(count)]


def _spread(items: Sequence[T], count: int) -> list[Sequence[T]]:
    """Divide items among processes; none of them gets nothing."""
    return [mine for at in range(count) if (mine := items[at::count])]
