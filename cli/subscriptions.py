"""`quire subscriptions`: lists, shows, creates, moves and deletes subscriptions through a broker's REST interface.

For a partitioned topic, the broker applies most requests to all partitions. For a request that brokers accept only for
a single partition, the command sends one request for each partition.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import count as numbers
from itertools import islice
from typing import Any, Final

import click

from quire.cli import entries, moments
from quire.cli.entries import Entry, MessageId
from quire.cli.noun import Noun, partitions_of, parts_of, topic_argument, topic_path
from quire.cli.output import Answer, Column, Shown, Table, done, table_of
from quire.runtime.errors import ConfigurationError, NotFound, QuireError, Unavailable
from quire.runtime.rest import Admin
from quire.wire import topic_name

CONSUMER_COLUMNS: Final[Mapping[str, Column]] = {
    "consumer": "consumerName",
    "topic": "topic",
    "permits": "availablePermits",
    "unacked": "unackedMessages",
    "address": "address",
    "blocked": lambda row: row.get("blockedReason") or "",
}


@click.group("subscriptions", cls=Noun)
def command() -> None:
    """List, show, create, move and delete subscriptions.

    TOPIC is a full name (persistent://tenant/namespace/name) or a short one in public/default; a partitioned topic
    stands for all its partitions.

    \b
    Examples:
      quire subscriptions list orders
      quire subscriptions stats orders audit
      quire subscriptions create orders audit --from earliest
      quire subscriptions seek orders audit --to 2026-01-31T12:00:00
      quire subscriptions seek orders-partition-0 audit --to 17:42
      quire subscriptions skip orders audit --count 10
      quire subscriptions peek orders audit --count 3
      quire subscriptions delete orders audit
    """


@command.verb("list")
@topic_argument
def list_subscriptions(admin: Admin, topic: str) -> Answer:
    """List the durable subscriptions of TOPIC.

    \b
    Example:
      quire subscriptions list orders
    """
    found = admin.get(f"{topic_path(topic)}/subscriptions")
    return Answer(found, *found)


@command.verb("stats")
@topic_argument
@click.argument("subscription")
def stats(admin: Admin, topic: str, subscription: str) -> Answer:
    """Show the backlog and consumers of SUBSCRIPTION, and the reason if nothing is dispatched.

    \b
    Example:
      quire subscriptions stats orders audit
    """
    found = {part: _stats_of(admin, part, subscription) for part in parts_of(admin, topic)}
    columns = ("topic", "type", "backlog", "delayed", "unacked", "oldest", "blocked")
    rows = [(part, *_row(one)) for part, one in found.items()]
    shown: list[Shown] = [Table(columns, rows, right=("backlog", "delayed", "unacked", "oldest"))]
    if consumers := [{"topic": part, **one} for part, its in found.items() for one in its["consumers"]]:
        shown += ["", table_of(consumers, CONSUMER_COLUMNS, right=("permits", "unacked"))]
    return Answer(found if list(found) != [topic] else found[topic], *shown)


def _stats_of(admin: Admin, topic: str, subscription: str) -> dict[str, Any]:
    every = admin.get(f"{topic_path(topic)}/stats")["subscriptions"]
    if subscription not in every:
        raise NotFound(f"topic {topic} has no subscription {subscription}")
    found: dict[str, Any] = every[subscription]
    return found


def _row(one: dict[str, Any]) -> tuple[Any, ...]:
    age_s = one.get("oldestBacklogMessageAgeSeconds", -1)
    oldest = "" if age_s is None or age_s < 0 else f"{age_s} s"
    delayed, reason = one.get("msgDelayed", 0), one.get("blockedReason") or ""
    return one["type"], one["msgBacklog"], delayed, one["unackedMessages"], oldest, reason


@command.verb("create")
@topic_argument
@click.argument("subscription")
@click.option(
    "--from",
    "start",
    default="latest",
    show_default=True,
    metavar="earliest|latest|LEDGER:ENTRY",
    help="Start position of the subscription.",
)
@click.option("--create-topic", is_flag=True, help="Create TOPIC if it does not exist.")
def create(admin: Admin, topic: str, subscription: str, start: str, create_topic: bool) -> Answer:
    """Create SUBSCRIPTION, which retains messages of TOPIC until they are acknowledged.

    \b
    Example:
      quire subscriptions create orders audit --from earliest
    """
    position: Any = start if start in ("earliest", "latest") else _position(start)
    if not create_topic:
        _require(admin, topic)
    admin.put(topic_path(topic, subscription), position)
    return done(f"created {subscription} of {topic}", topic=topic, subscription=subscription, created=True)


def _require(admin: Admin, topic: str) -> None:
    """Raise `NotFound` for a missing topic. A topic that is not persistent exists only while it is in use."""
    if topic_name.split(topic)[0] != "persistent":
        return
    try:
        partitions_of(admin, topic)
    except NotFound as error:
        raise NotFound(f"{error}; use --create-topic to create it") from None


@command.verb("delete")
@topic_argument
@click.argument("subscription")
@click.option("--force", is_flag=True, help="Delete it even if consumers are connected.")
def delete(admin: Admin, topic: str, subscription: str, force: bool) -> Answer:
    """Delete SUBSCRIPTION; messages are no longer retained for it.

    \b
    Example:
      quire subscriptions delete orders audit
    """
    admin.delete(f"{topic_path(topic, subscription)}?force={str(force).lower()}")
    return done(f"deleted {subscription} of {topic}", topic=topic, subscription=subscription, deleted=True)


@command.verb("seek")
@topic_argument
@click.argument("subscription")
@click.option(
    "--to",
    required=True,
    metavar="earliest|latest|TIME|LEDGER:ENTRY",
    help=f"New position: an end, {moments.HELP} or an entry.",
)
def seek(admin: Admin, topic: str, subscription: str, to: str) -> Answer:
    """Move the cursor of SUBSCRIPTION to a message or time. Consumers are disconnected, and reconnect.

    \b
    Examples:
      quire subscriptions seek orders audit --to 2026-01-31T12:00:00
      quire subscriptions seek orders audit --to 15m
      quire subscriptions seek orders-partition-0 audit --to 17:42
    """
    where = _seek(admin, topic_path(topic, subscription), to)
    said = f"{subscription} of {topic} reads from {where}"
    return done(said, topic=topic, subscription=subscription, to=to, position=where)


def _seek(admin: Admin, path: str, to: str) -> str:
    """Move a cursor, and return its new position as text; for a duration, the time that it is counted back to."""
    if to in ("earliest", "latest"):
        admin.post(f"{path}/resetcursor", to)
    elif (time_ms := moments.time_ms(to)) is not None:
        admin.post(f"{path}/resetcursor/{time_ms}")
        return f"the first message of {moments.shown(time_ms)} or later"
    else:
        admin.post(f"{path}/resetcursor", _position(to, or_time=True))
    return to


@command.verb("skip")
@topic_argument
@click.argument("subscription")
@click.option(
    "--count", type=click.IntRange(min=1), help="Number of messages of each partition; by default all."
)
def skip(admin: Admin, topic: str, subscription: str, count: int | None) -> Answer:
    """Acknowledge the oldest messages of SUBSCRIPTION, or all, without reading them.

    \b
    Example:
      quire subscriptions skip orders audit --count 10
    """
    if count is None:
        admin.post(f"{topic_path(topic, subscription)}/skip_all")
    else:
        for part in parts_of(admin, topic):
            admin.post(f"{topic_path(part, subscription)}/skip/{count}")
    what = "all messages" if count is None else f"{count} messages"
    return done(
        f"{subscription} of {topic} skipped {what}",
        topic=topic,
        subscription=subscription,
        count=count,
    )


@command.verb("peek")
@topic_argument
@click.argument("subscription")
@click.option(
    "--count", type=click.IntRange(1, 1000), default=1, show_default=True, help="Number of messages."
)
def peek(admin: Admin, topic: str, subscription: str, count: int) -> Answer:
    """Print the oldest unacknowledged messages of SUBSCRIPTION without acknowledging them.

    \b
    Example:
      quire subscriptions peek orders audit --count 3
    """
    found = (
        one for part in parts_of(admin, topic) for one in _entries(admin, topic_path(part, subscription))
    )
    shown = list(islice((one for entry in found for one in _messages(entry)), count))
    unreadable = [one["error"] for one in shown if "error" in one]
    error = None
    if unreadable:
        error = QuireError(f"{len(unreadable)} of {len(shown)} entries cannot be read: {unreadable[0]}")
    notes = [] if shown else [f"{subscription} of {topic} has no unacknowledged messages"]
    return Answer(shown, *map(entries.line, shown), notes=notes, error=error)


@command.verb("analyze-backlog")
@topic_argument
@click.argument("subscription")
def analyze_backlog(admin: Admin, topic: str, subscription: str) -> Answer:
    """Count the backlog of SUBSCRIPTION by reading its entries; `stats` has the number that brokers keep.

    \b
    Example:
      quire subscriptions analyze-backlog orders audit
    """
    found = admin.post(f"{topic_path(topic, subscription)}/analyzeBacklog")
    notes = ["only the beginning was counted, because the backlog is large"] if found["aborted"] else []
    return Answer(found, {name: found[name] for name in ("entries", "messages")}, notes=notes)


def _entries(admin: Admin, path: str) -> Iterator[Entry | QuireError]:
    """Yield the entries up to the end of the backlog; for an unreadable entry, its error.

    Raises `NotFound` for an unknown subscription.
    """
    for number in numbers(1):
        try:
            yield admin.get_raw(f"{path}/position/{number}")
        except NotFound as error:
            if "fewer entries" in str(error):
                return
            raise
        except (ConfigurationError, Unavailable):
            raise
        except QuireError as error:
            yield error  # this entry is damaged; later entries may be readable


def _messages(entry: Entry | QuireError) -> Iterator[dict[str, Any]]:
    return iter([{"error": str(entry)}]) if isinstance(entry, QuireError) else entries.messages(entry)


def _position(text: str, *, or_time: bool = False) -> dict[str, int]:
    try:
        return MessageId.parse(text).as_json()
    except ConfigurationError:
        times = ", a time such as 2026-01-31T12:00:00, a duration such as 15m" if or_time else ""
        raise ConfigurationError(
            f"{text!r} is not a position in a topic: use earliest, latest{times} or LEDGER:ENTRY, such as 17:42"
        ) from None
