"""`quire topics`: creates, lists, shows and deletes topics through a broker's REST interface.

Other verbs are in `topic_messages`, `topic_storage`, `topic_properties` and `topic_iceberg`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote

import click

from quire.cli import moments, topic_iceberg, topic_messages, topic_storage
from quire.cli.noun import Noun, partitions_of, topic_argument, topic_path
from quire.cli.output import Answer, Column, Shown, done, table_of
from quire.cli.topic_properties import properties
from quire.runtime.errors import ConfigurationError
from quire.runtime.rest import Admin
from quire.wire import topic_name

SUBSCRIPTION_COLUMNS: Final[Mapping[str, Column]] = {
    "subscription": "name",
    "type": "type",
    "backlog": "msgBacklog",
    "unacked": "unackedMessages",
    "consumers": lambda row: len(row["consumers"]),
}
SEGMENT_COLUMNS: Final[Mapping[str, Column]] = {
    "ledger": "ledgerId",
    "state": "state",
    "entries": "entries",
    "bytes": "size",
    "archive": lambda row: (row.get("archive") or {}).get("name", ""),
}


@click.group("topics", cls=Noun)
def command() -> None:
    """Create, list, show and delete topics.

    TOPIC is a full name (persistent://tenant/namespace/name) or a short one in public/default.

    \b
    Examples:
      quire topics create orders --partitions 4
      quire topics list public/default
      quire topics stats orders --json
      quire topics internal-stats orders-partition-0
      quire topics explain orders-partition-0
      quire topics examine orders-partition-0 --last 1
      quire topics compact orders
      quire topics set-iceberg orders --catalog https://catalog:8181 --warehouse lake
      quire topics delete orders
    """


command.include(topic_messages.verbs, topic_storage.verbs, topic_iceberg.verbs)
command.add_command(properties)


@command.verb("list")
@click.argument("namespace", default="public/default")
@click.option("--partitions", is_flag=True, help="List each partition instead of the partitioned topics.")
def list_topics(admin: Admin, namespace: str, partitions: bool) -> Answer:
    """List the topics of NAMESPACE (public/default); a partitioned one once, with its number of partitions.

    \b
    Examples:
      quire topics list
      quire topics list public/default --partitions
    """
    if namespace.count("/") != 1:
        raise ConfigurationError(f"{namespace!r} is not a namespace, such as public/default")
    path = f"/admin/v2/persistent/{quote(namespace)}"
    names: list[str] = admin.get(path)
    if partitions:
        return Answer(names, *names)
    counts = _counts(names, admin.get(f"{path}/partitioned"))
    width = max((len(name) for name, count in counts.items() if count), default=0)
    return Answer(
        [{"topic": name, "partitions": count} for name, count in counts.items()],
        *(f"{name:<{width}}  {_of_partitions(count)}" if count else name for name, count in counts.items()),
    )


def _counts(names: Sequence[str], partitioned: Sequence[str]) -> dict[str, int]:
    """Return the number of partitions by topic, in the order of their names; 0 if a topic is not partitioned."""
    counts = dict.fromkeys(partitioned, 0)
    for name in names:
        parent = name.rpartition("-partition-")[0]
        if parent in counts:
            counts[parent] += 1
        else:
            counts[name] = 0
    return dict(sorted(counts.items()))


def _of_partitions(count: int) -> str:
    return "1 partition" if count == 1 else f"{count} partitions"


@command.verb("create")
@topic_argument
@click.option(
    "--partitions",
    type=click.IntRange(min=1),
    help="Create a partitioned topic with this number of partitions.",
)
def create(admin: Admin, topic: str, partitions: int | None) -> Answer:
    """Create TOPIC.

    \b
    Examples:
      quire topics create orders
      quire topics create persistent://public/default/clicks --partitions 4
    """
    if partitions is None:
        admin.put(topic_path(topic))
    else:
        admin.put(f"{topic_path(topic)}/partitions", partitions)
    said = f"created {topic}" + (f" with {_of_partitions(partitions)}" if partitions else "")
    values = {"topic": topic, "created": True, "partitions": partitions or 0}
    return Answer(values, said, notes=_notes(topic))


def _notes(topic: str) -> list[str]:
    """Return a warning for a new name with white space, which Pulsar accepts as well."""
    if not any(character.isspace() for character in topic):
        return []
    return [
        f"warning: the name {topic!r} contains white space, so that it must be quoted in shells and escaped in URLs"
    ]


@command.verb("create-missed-partitions")
@topic_argument
def create_missed_partitions(admin: Admin, topic: str) -> Answer:
    """Create the partitions of TOPIC that do not exist yet; otherwise the first use of each creates it.

    \b
    Example:
      quire topics create-missed-partitions orders
    """
    admin.post(f"{topic_path(topic)}/createMissedPartitions")
    return done(f"all partitions of {topic} exist", topic=topic, created=True)


@command.verb("update")
@topic_argument
@click.option(
    "--partitions", type=click.IntRange(min=1), required=True, help="The new, larger number of partitions."
)
def update(admin: Admin, topic: str, partitions: int) -> Answer:
    """Give the partitioned TOPIC more partitions.

    \b
    Example:
      quire topics update orders --partitions 8
    """
    admin.post(f"{topic_path(topic)}/partitions", partitions)
    return done(f"{topic} has {partitions} partitions now", topic=topic, partitions=partitions)


@command.verb("delete")
@topic_argument
@click.option("--force", is_flag=True, help="Delete it even if it has producers or subscriptions.")
def delete(admin: Admin, topic: str, force: bool) -> Answer:
    """Delete TOPIC with all its messages, partitions and subscriptions.

    \b
    Examples:
      quire topics delete orders
      quire topics delete orders --force
    """
    suffix = "/partitions" if partitions_of(admin, topic) else ""
    admin.delete(f"{topic_path(topic)}{suffix}?force={str(force).lower()}")
    return done(f"deleted {topic}", topic=topic, deleted=True)


@command.verb("partitions")
@topic_argument
def partitions(admin: Admin, topic: str) -> Answer:
    """Print the number of partitions of TOPIC (0: it is not partitioned).

    \b
    Example:
      quire topics partitions orders
    """
    answer = admin.get(f"{topic_path(topic)}/partitions")
    return Answer(answer, str(answer["partitions"]))


@command.verb("lookup")
@topic_argument
def lookup(admin: Admin, topic: str) -> Answer:
    """Print the broker that serves TOPIC.

    \b
    Example:
      quire topics lookup orders-partition-0
    """
    answer = admin.get(f"/lookup/v2/topic/{topic_name.path(topic)}")
    return Answer(answer, answer["brokerUrl"])


@command.verb("unload")
@topic_argument
def unload(admin: Admin, topic: str) -> Answer:
    """Unload TOPIC from its broker; clients look it up again. Its active segment is sealed.

    \b
    Example:
      quire topics unload orders
    """
    admin.put(f"{topic_path(topic)}/unload")
    return done(f"unloaded {topic}", topic=topic, unloaded=True)


@command.verb("stats")
@topic_argument
def stats(admin: Admin, topic: str) -> Answer:
    """Show the rates, sizes, producers and subscriptions of TOPIC.

    \b
    Example:
      quire topics stats orders --json
    """
    answer = admin.get(f"{topic_path(topic)}/stats")
    subscriptions: dict[str, Any] = answer.get("subscriptions", {})
    shown: list[Shown] = [
        {
            "messages/s in": round(answer.get("msgRateIn", 0.0), 1),
            "bytes/s in": round(answer.get("msgThroughputIn", 0.0)),
            "messages/s out": round(answer.get("msgRateOut", 0.0), 1),
            "messages in since it was loaded": answer.get("msgInCounter", 0),
            "bytes in since it was loaded": answer.get("bytesInCounter", 0),
            "storage bytes": answer.get("storageSize", 0),
            "producers": len(answer.get("publishers", ())),
        },
        *(
            f"damaged: segment {one['ledgerId']} of {one['topic']} in the archive: {one['damage']}; "
            "`quire archive repair` uploads it again if bookies have it"
            for one in answer.get("damagedSegments", ())
        ),
        *(
            f"reading for {name} fails: {one['lastReadError']}"
            for name, one in subscriptions.items()
            if one.get("lastReadError")
        ),
    ]
    if subscriptions:
        rows = [{"name": name, **one} for name, one in subscriptions.items()]
        shown += ["", table_of(rows, SUBSCRIPTION_COLUMNS, right=("backlog", "unacked", "consumers"))]
    return Answer(answer, *shown)


@command.verb("internal-stats")
@topic_argument
def internal_stats(admin: Admin, topic: str) -> Answer:
    """Show the segments of TOPIC, or of each of its partitions, where they are, and the cursors.

    \b
    Example:
      quire topics internal-stats orders-partition-0
    """
    if not partitions_of(admin, topic):
        answer = admin.get(f"{topic_path(topic)}/internalStats")
        return Answer(answer, *_internals(answer))
    answer = admin.get(f"{topic_path(topic)}/partitioned-internalStats")
    parts = answer["partitions"].items()
    return Answer(answer, *(line for name, one in parts for line in (name, *_internals(one), "")))


def _internals(answer: dict[str, Any]) -> list[Shown]:
    segments = answer.get("ledgers", ())
    return [
        table_of(segments, SEGMENT_COLUMNS, right=("ledger", "entries", "bytes")),
        *(
            f"damaged: segment {segment['ledgerId']} in the archive: {segment['damage']}"
            for segment in segments
            if segment.get("damage")
        ),
        "",
        {"last confirmed": answer.get("lastConfirmedEntry", "")},
        *(
            f"cursor {name}  mark-delete {cursor.get('markDeletePosition', '')}"
            for name, cursor in answer.get("cursors", {}).items()
        ),
    ]


@command.verb("terminate")
@topic_argument
def terminate(admin: Admin, topic: str) -> Answer:
    """Terminate TOPIC: it accepts no more messages, and existing ones stay readable.

    \b
    Example:
      quire topics terminate orders
    """
    if partitions_of(admin, topic):
        answer = admin.post(f"{topic_path(topic)}/terminate/partitions")
        said = f"terminated {topic}, all its {len(answer)} partitions"
    else:
        answer = admin.post(f"{topic_path(topic)}/terminate")
        said = f"terminated {topic}; its last entry is {answer['ledgerId']}:{answer['entryId']}"
    return done(said, topic=topic, terminated=True, last=answer)


@command.verb("explain")
@topic_argument
def explain(admin: Admin, topic: str) -> Answer:
    """Show why each segment of TOPIC is retained, and when it will be deleted. See docs/retention.md.

    \b
    Example:
      quire topics explain orders-partition-0
    """
    answer = admin.get(f"/quire/v1/topics/{topic_name.path(topic)}/explain")
    segments, count = answer["segments"], len(answer["segments"])
    shown = [f"{answer['topic']}: " + ("one segment" if count == 1 else f"{count} segments, oldest first")]
    if answer["producersHeldOff"]:
        shown.append(f"producers are held off: {answer['producersHeldOff']}")
    return Answer(answer, *shown, *(line for one in segments for line in _explained(one, answer["nowMs"])))


def _explained(segment: dict[str, Any], now_ms: int) -> list[str]:
    """Return a description of a segment as text."""
    head = f"segment {segment['ledgerId']}: {segment['messages']} messages, {segment['bytes']} bytes"
    if segment["messages"]:
        head += f", {moments.shown(segment['firstMs'])} to {moments.shown(segment['lastMs'])}"
    if not segment["keptBy"]:
        kept = ["  goes    now: nothing keeps it, and segments are looked at every few seconds"]
    else:
        kept = [f"  kept    {one['why']}{_until(one['untilMs'], now_ms)}" for one in segment["keptBy"]]
    copy = segment["bookies"]
    damage = [f"  damage  {segment['damage']}"] if segment.get("damage") else []
    return [head, *kept, f"  copies  {copy['why']}{_until(copy['untilMs'], now_ms)}", *damage]


def _until(until_ms: int | None, now_ms: int) -> str:
    if until_ms is None:
        return ""
    at = moments.shown(until_ms)
    return f"; due since {at}" if until_ms <= now_ms else f"; until {at}"
