"""`quire subscriptions`: list, look into, create, move and delete subscriptions, through a broker's REST interface.

The broker asks each partition of a partitioned topic; what can be asked of a partition alone is asked of one by one.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator, Mapping
from itertools import count as numbers
from itertools import islice
from typing import Any
from urllib.parse import quote

import click

from quire.cli import moments
from quire.cli.http import admin_url_option, json_option, topic_argument
from quire.cli.output import print_done, print_json, print_table
from quire.runtime.errors import ConfigurationError, NotFound, QuireError, Unavailable
from quire.runtime.rest import Admin
from quire.wire import topic_name
from quire.wire.message import split_batch
from quire.wire.pulsar_pb2 import MessageMetadata


@click.group("subscriptions")
def command() -> None:
    """List, look into, create, move and delete subscriptions.

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


def _path(topic: str, subscription: str = "") -> str:
    beyond = f"/subscription/{quote(subscription, safe='')}" if subscription else ""
    return f"/admin/v2/{topic_name.path(topic)}{beyond}"


def _parts(admin: Admin, topic: str) -> list[str]:
    """The topic itself, or its partitions."""
    count = admin.get(f"{_path(topic)}/partitions").get("partitions", 0)
    return [f"{topic}-partition-{number}" for number in range(count)] or [topic]


@command.command("list")
@topic_argument
@admin_url_option
@json_option
def list_subscriptions(topic: str, admin_url: str, as_json: bool) -> None:
    """List the durable subscriptions of TOPIC."""
    admin = Admin(admin_url)
    found = admin.get(f"{_path(topic)}/subscriptions")
    if as_json:
        print_json(found)
        return
    for name in found:
        click.echo(name)


@command.command("stats")
@topic_argument
@click.argument("subscription")
@admin_url_option
@json_option
def stats(topic: str, subscription: str, admin_url: str, as_json: bool) -> None:
    """Show the backlog of SUBSCRIPTION, its consumers, and why nothing is dealt, if nothing is."""
    admin = Admin(admin_url)
    found = {part: _stats_of(admin, part, subscription) for part in _parts(admin, topic)}
    if as_json:
        print_json(found if list(found) != [topic] else found[topic])
        return
    print_table(
        ("topic", "type", "backlog", "delayed", "unacked", "oldest", "blocked"),
        [(part, *_row(one)) for part, one in found.items()],
        right=("backlog", "delayed", "unacked", "oldest"),
    )
    consumers = [(part, one) for part, shown in found.items() for one in shown["consumers"]]
    if consumers:
        click.echo()
        print_table(
            ("consumer", "topic", "permits", "unacked", "address", "blocked"),
            [
                (
                    one["consumerName"],
                    part,
                    one["availablePermits"],
                    one["unackedMessages"],
                    one.get("address", ""),
                    one.get("blockedReason") or "",
                )
                for part, one in consumers
            ],
            right=("permits", "unacked"),
        )


def _stats_of(admin: Admin, topic: str, subscription: str) -> dict[str, Any]:
    every = admin.get(f"{_path(topic)}/stats")["subscriptions"]
    if subscription not in every:
        raise NotFound(f"topic {topic} has no subscription {subscription}")
    found: dict[str, Any] = every[subscription]
    return found


def _row(one: dict[str, Any]) -> tuple[Any, ...]:
    age_s = one.get("oldestBacklogMessageAgeSeconds", -1)
    oldest = "" if age_s is None or age_s < 0 else f"{age_s} s"
    delayed, reason = one.get("msgDelayed", 0), one.get("blockedReason") or ""
    return one["type"], one["msgBacklog"], delayed, one["unackedMessages"], oldest, reason


@command.command("create")
@topic_argument
@click.argument("subscription")
@click.option(
    "--from",
    "start",
    default="latest",
    show_default=True,
    metavar="earliest|latest|LEDGER:ENTRY",
    help="The message that it reads first.",
)
@admin_url_option
@json_option
def create(topic: str, subscription: str, start: str, admin_url: str, as_json: bool) -> None:
    """Create SUBSCRIPTION, which keeps messages of TOPIC until they are acknowledged."""
    admin = Admin(admin_url)
    position: Any = start if start in ("earliest", "latest") else _position(start)
    admin.put(_path(topic, subscription), position)
    print_done(
        as_json, f"created {subscription} of {topic}", topic=topic, subscription=subscription, created=True
    )


@command.command("delete")
@topic_argument
@click.argument("subscription")
@click.option("--force", is_flag=True, help="Also when consumers are connected.")
@admin_url_option
@json_option
def delete(topic: str, subscription: str, force: bool, admin_url: str, as_json: bool) -> None:
    """Delete SUBSCRIPTION; nothing is kept for it any more."""
    admin = Admin(admin_url)
    suffix = f"?force={str(force).lower()}"
    admin.delete(_path(topic, subscription) + suffix)
    print_done(
        as_json, f"deleted {subscription} of {topic}", topic=topic, subscription=subscription, deleted=True
    )


@command.command("seek")
@topic_argument
@click.argument("subscription")
@click.option(
    "--to",
    required=True,
    metavar="earliest|latest|TIME|LEDGER:ENTRY",
    help=f"Where to read from: an end, {moments.HELP} or an entry.",
)
@admin_url_option
@json_option
def seek(topic: str, subscription: str, to: str, admin_url: str, as_json: bool) -> None:
    """Read again, or go on, from a message or a moment. Consumers are disconnected and come back."""
    admin = Admin(admin_url)
    _seek(admin, _path(topic, subscription), to)
    print_done(
        as_json, f"{subscription} of {topic} reads from {to}", topic=topic, subscription=subscription, to=to
    )


def _seek(admin: Admin, path: str, to: str) -> None:
    if to in ("earliest", "latest"):
        admin.post(f"{path}/resetcursor", to)
    elif (time_ms := moments.time_ms(to)) is not None:
        admin.post(f"{path}/resetcursor/{time_ms}")
    else:
        admin.post(f"{path}/resetcursor", _position(to, or_time=True))


@command.command("skip")
@topic_argument
@click.argument("subscription")
@click.option(
    "--count", type=click.IntRange(min=1), help="So many messages of each partition; else all of them."
)
@admin_url_option
@json_option
def skip(topic: str, subscription: str, count: int | None, admin_url: str, as_json: bool) -> None:
    """Acknowledge the oldest messages of SUBSCRIPTION, or all, without reading them."""
    admin = Admin(admin_url)
    if count is None:
        admin.post(f"{_path(topic, subscription)}/skip_all")
    else:
        for part in _parts(admin, topic):
            admin.post(f"{_path(part, subscription)}/skip/{count}")
    what = "all messages" if count is None else f"{count} messages"
    print_done(
        as_json,
        f"{subscription} of {topic} skipped {what}",
        topic=topic,
        subscription=subscription,
        count=count,
    )


@command.command("peek")
@topic_argument
@click.argument("subscription")
@click.option("--count", type=click.IntRange(1, 1000), default=1, show_default=True, help="So many messages.")
@admin_url_option
@json_option
def peek(topic: str, subscription: str, count: int, admin_url: str, as_json: bool) -> None:
    """Print the oldest messages that SUBSCRIPTION has to acknowledge, and leave them there."""
    admin = Admin(admin_url)
    entries = (one for part in _parts(admin, topic) for one in _entries(admin, _path(part, subscription)))
    shown = list(islice((one for entry in entries for one in _messages(entry)), count))
    unreadable = [one["error"] for one in shown if "error" in one]
    if as_json:
        print_json(shown)
    else:
        for one in shown:
            text = one.get("payload", one.get("payload_base64"))
            click.echo(one.get("error") or f"{one['id']}  {one['publishTime']}  {text}")
    if unreadable:
        raise QuireError(f"{len(unreadable)} of {len(shown)} entries cannot be read: {unreadable[0]}")


def _entries(admin: Admin, path: str) -> Iterator[tuple[Mapping[str, str], bytes] | QuireError]:
    """One after the other, up to the end of the backlog, or why it cannot be read.

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
            yield error  # it is damaged; the next one may not be


def _messages(entry: tuple[Mapping[str, str], bytes] | QuireError) -> Iterator[dict[str, Any]]:
    if isinstance(entry, QuireError):
        yield {"error": str(entry)}
        return
    headers, payload = entry
    shared = {"id": headers["x-pulsar-message-id"], "publishTime": headers["x-pulsar-publish-time"]}
    size = headers.get("x-pulsar-num-batch-message")
    if size is None:
        yield {**shared, **_payload(payload)}
        return
    batch = MessageMetadata(num_messages_in_batch=int(size))
    for at, (_, body) in enumerate(split_batch(batch, memoryview(payload))):
        yield {**shared, "id": f"{shared['id']}:{at}", **_payload(bytes(body))}


def _payload(payload: bytes) -> dict[str, str]:
    try:
        return {"payload": payload.decode()}
    except UnicodeDecodeError:
        return {"payload_base64": b64encode(payload).decode()}


def _position(text: str, *, or_time: bool = False) -> dict[str, int]:
    ledger, _, entry = text.partition(":")
    if not (ledger.isdecimal() and entry.isdecimal()):
        times = ", a time such as 2026-01-31T12:00:00, a duration such as 15m" if or_time else ""
        raise ConfigurationError(
            f"{text!r} is no place in a topic: use earliest, latest{times} or LEDGER:ENTRY, such as 17:42"
        )
    return {"ledgerId": int(ledger), "entryId": int(entry)}
