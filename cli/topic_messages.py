"""`quire topics examine`, `message`, `last-message-id`, `backlog-size` and `expire`: single messages of a topic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import click

from quire.cli import entries, moments
from quire.cli.entries import Entry, MessageId
from quire.cli.noun import Noun, parts_of, topic_argument, topic_path
from quire.cli.output import Answer, Shown, done, size
from quire.runtime.errors import ConfigurationError, NotFound, QuireError
from quire.runtime.rest import Admin

EARLIEST: Final = "earliest"
verbs = Noun("topics")


@verbs.verb("examine")
@topic_argument
@click.option("--first", type=click.IntRange(min=1), metavar="N", help="The N-th entry from the beginning.")
@click.option("--last", type=click.IntRange(min=1), metavar="N", help="The N-th entry from the end (1).")
def examine(admin: Admin, topic: str, first: int | None, last: int | None) -> Answer:
    """Print one stored entry of TOPIC, by default the last: a message, or the messages of a batch.

    TOPIC is not partitioned, or one partition. Nothing is acknowledged.

    \b
    Examples:
      quire topics examine orders
      quire topics examine orders-partition-0 --first 1
    """
    if first and last:
        raise ConfigurationError("give either --first or --last")
    end = EARLIEST if first else "latest"
    asked = f"examinemessage?initialPosition={end}&messagePosition={first or last or 1}"
    return _shown(list(entries.messages(admin.get_raw(f"{topic_path(topic)}/{asked}"))))


@verbs.verb("message")
@topic_argument
@click.argument("message_id", metavar="ID")
def message(admin: Admin, topic: str, message_id: str) -> Answer:
    """Print the message ID of TOPIC: LEDGER:ENTRY, or LEDGER:ENTRY:BATCH for one of a batch. Nothing is acknowledged.

    The ids that `quire consume --json` prints, with a partition, are accepted, too.

    \b
    Examples:
      quire topics message orders 17:42
      quire topics message orders-partition-0 17:42:3 --json
    """
    wanted = MessageId.parse(message_id)
    name = wanted.topic(topic)
    found = list(entries.messages(_entry(admin, name, wanted)))
    if wanted.batch_index < 0:
        return _shown(found)
    if wanted.batch_index >= len(found):
        raise NotFound(
            f"entry {wanted.ledger_id}:{wanted.entry_id} of {name} has messages 0 to {len(found) - 1}"
        )
    return _shown(found[wanted.batch_index : wanted.batch_index + 1])


def _entry(admin: Admin, topic: str, wanted: MessageId) -> Entry:
    return admin.get_raw(f"{topic_path(topic)}/ledger/{wanted.ledger_id}/entry/{wanted.entry_id}")


def _shown(found: Sequence[dict[str, Any]]) -> Answer:
    """Return an answer with the messages of one entry."""
    shown: list[Shown] = []
    for one in found:
        shown += [entries.fields(one), ""]
    broken = [one["error"] for one in found if "error" in one]
    error = QuireError(f"the entry cannot be read: {broken[0]}") if broken else None
    return Answer(found, *([] if broken else shown[:-1]), error=error)


@verbs.verb("last-message-id")
@topic_argument
def last_message_id(admin: Admin, topic: str) -> Answer:
    """Print the id of the last entry of TOPIC, or of each of its partitions.

    \b
    Example:
      quire topics last-message-id orders
    """
    parts = parts_of(admin, topic)
    found = {part: _last(admin, part, is_partition=part != topic) for part in parts}
    ids = {
        part: "no message" if one is None or one["entryId"] < 0 else f"{one['ledgerId']}:{one['entryId']}"
        for part, one in found.items()
    }
    if parts == [topic]:
        return Answer(found[topic], ids[topic])
    return Answer(found, ids)


def _last(admin: Admin, topic: str, *, is_partition: bool) -> dict[str, int] | None:
    """Return the last entry's id; None for a partition that was never used."""
    try:
        found: dict[str, int] = admin.get(f"{topic_path(topic)}/lastMessageId")
    except NotFound:
        if not is_partition:
            raise
        return None
    return found


@verbs.verb("backlog-size")
@topic_argument
@click.argument("message_id", metavar="ID")
def backlog_size(admin: Admin, topic: str, message_id: str) -> Answer:
    """Print the number of bytes of TOPIC after the message ID; `earliest`: of all its messages.

    The bytes of the message's own segment are estimated from its number of entries.

    \b
    Examples:
      quire topics backlog-size orders-partition-0 17:42
      quire topics backlog-size orders earliest
    """
    wanted = None if message_id == EARLIEST else MessageId.parse(message_id)
    name = topic if wanted is None else wanted.topic(topic)
    found = admin.put(f"{topic_path(name)}/backlogSize", EARLIEST if wanted is None else wanted.as_json())
    return done(f"{found} bytes ({size(found)})", topic=name, id=message_id, bytes=found)


@verbs.verb("expire")
@topic_argument
@click.option(
    "--older-than",
    required=True,
    metavar="TIME",
    help="Age from which on messages expire, such as 90s or 7d.",
)
@click.option("--subscription", metavar="NAME", help="Expire for this subscription.")
@click.option("--all-subscriptions", is_flag=True, help="Expire for all subscriptions of TOPIC.")
def expire(
    admin: Admin, topic: str, older_than: str, subscription: str | None, all_subscriptions: bool
) -> Answer:
    """Acknowledge messages of TOPIC older than a duration, for one subscription or for all.

    \b
    Examples:
      quire topics expire orders --older-than 7d --subscription audit
      quire topics expire orders --older-than 30d --all-subscriptions
    """
    if bool(subscription) == all_subscriptions:
        raise ConfigurationError("give either --subscription NAME or --all-subscriptions")
    seconds = -(-moments.duration_ms(older_than) // 1000)  # rounded up, so that no younger message expires
    path = topic_path(topic, subscription) if subscription else f"{topic_path(topic)}/all_subscription"
    admin.post(f"{path}/expireMessages/{seconds}")
    of = subscription or "all subscriptions"
    said = f"messages of {topic} older than {older_than} are acknowledged for {of}"
    return done(said, topic=topic, subscription=subscription, olderThanSeconds=seconds)
