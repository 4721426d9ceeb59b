"""`quire topics`: create, list, look into and delete topics, through a broker's REST interface."""

from __future__ import annotations

from typing import Any

import click

from quire.cli.http import admin_url_option, json_option, topic_argument
from quire.cli.output import print_done, print_fields, print_json, print_table
from quire.cli.topics_explain import explain
from quire.runtime.errors import ConfigurationError
from quire.runtime.rest import Admin
from quire.wire import topic_name


@click.group("topics")
def command() -> None:
    """Create, list, look into and delete topics.

    TOPIC is a full name (persistent://tenant/namespace/name) or a short one in public/default.

    \b
    Examples:
      quire topics create orders --partitions 4
      quire topics list public/default
      quire topics stats orders --json
      quire topics internal-stats orders-partition-0
      quire topics explain orders-partition-0
      quire topics delete orders
    """


command.add_command(explain)


def _path(topic: str) -> str:
    return f"/admin/v2/{topic_name.path(topic)}"


@command.command("list")
@click.argument("namespace", default="public/default")
@admin_url_option
@json_option
def list_topics(namespace: str, admin_url: str, as_json: bool) -> None:
    """List the topics of NAMESPACE (public/default)."""
    if namespace.count("/") != 1:
        raise ConfigurationError(f"{namespace!r} is not a namespace, such as public/default")
    names = Admin(admin_url).get(f"/admin/v2/persistent/{namespace}")
    if as_json:
        print_json(names)
        return
    for name in names:
        click.echo(name)


@command.command("create")
@topic_argument
@click.option(
    "--partitions", type=click.IntRange(min=1), help="Make a partitioned topic of that many partitions."
)
@admin_url_option
@json_option
def create(topic: str, partitions: int | None, admin_url: str, as_json: bool) -> None:
    """Create TOPIC."""
    admin = Admin(admin_url)
    if partitions is None:
        admin.put(_path(topic))
    else:
        admin.put(f"{_path(topic)}/partitions", partitions)
    said = f"created {topic}" + (f" with {partitions} partitions" if partitions else "")
    print_done(as_json, said, topic=topic, created=True, partitions=partitions or 0)


@command.command("update")
@topic_argument
@click.option(
    "--partitions", type=click.IntRange(min=1), required=True, help="The new, larger number of partitions."
)
@admin_url_option
@json_option
def update(topic: str, partitions: int, admin_url: str, as_json: bool) -> None:
    """Give the partitioned TOPIC more partitions."""
    Admin(admin_url).post(f"{_path(topic)}/partitions", partitions)
    print_done(as_json, f"{topic} has {partitions} partitions now", topic=topic, partitions=partitions)


@command.command("delete")
@topic_argument
@click.option("--force", is_flag=True, help="Also when producers or subscriptions are connected.")
@admin_url_option
@json_option
def delete(topic: str, force: bool, admin_url: str, as_json: bool) -> None:
    """Delete TOPIC with all its messages, partitions and subscriptions."""
    admin = Admin(admin_url)
    suffix = "/partitions" if _partitions(admin, topic) else ""
    admin.delete(f"{_path(topic)}{suffix}?force={str(force).lower()}")
    print_done(as_json, f"deleted {topic}", topic=topic, deleted=True)


@command.command("partitions")
@topic_argument
@admin_url_option
@json_option
def partitions(topic: str, admin_url: str, as_json: bool) -> None:
    """Print the number of partitions of TOPIC (0: it is not partitioned)."""
    answer = Admin(admin_url).get(f"{_path(topic)}/partitions")
    print_json(answer) if as_json else click.echo(answer["partitions"])


@command.command("lookup")
@topic_argument
@admin_url_option
@json_option
def lookup(topic: str, admin_url: str, as_json: bool) -> None:
    """Print the broker that serves TOPIC."""
    answer = Admin(admin_url).get(f"/lookup/v2/topic/{topic_name.path(topic)}")
    print_json(answer) if as_json else click.echo(answer["brokerUrl"])


@command.command("unload")
@topic_argument
@admin_url_option
@json_option
def unload(topic: str, admin_url: str, as_json: bool) -> None:
    """Close TOPIC on its broker; clients look it up again. Its active segment is sealed."""
    Admin(admin_url).put(f"{_path(topic)}/unload")
    print_done(as_json, f"unloaded {topic}", topic=topic, unloaded=True)


@command.command("stats")
@topic_argument
@admin_url_option
@json_option
def stats(topic: str, admin_url: str, as_json: bool) -> None:
    """Show the rates, sizes, producers and subscriptions of TOPIC."""
    answer = Admin(admin_url).get(f"{_path(topic)}/stats")
    if as_json:
        print_json(answer)
        return
    print_fields(
        {
            "messages/s in": round(answer.get("msgRateIn", 0.0), 1),
            "bytes/s in": round(answer.get("msgThroughputIn", 0.0)),
            "messages/s out": round(answer.get("msgRateOut", 0.0), 1),
            "messages in since it was loaded": answer.get("msgInCounter", 0),
            "bytes in since it was loaded": answer.get("bytesInCounter", 0),
            "storage bytes": answer.get("storageSize", 0),
            "producers": len(answer.get("publishers", ())),
        }
    )
    for one in answer.get("damagedSegments", ()):
        click.echo(
            f"damaged: segment {one['ledgerId']} of {one['topic']} in the archive: {one['damage']}; "
            "`quire archive repair` uploads it again if bookies have it"
        )
    subscriptions: dict[str, Any] = answer.get("subscriptions", {})
    for name, one in subscriptions.items():
        if one.get("lastReadError"):
            click.echo(f"reading for {name} fails: {one['lastReadError']}")
    if subscriptions:
        click.echo()
        print_table(
            ("subscription", "type", "backlog", "unacked", "consumers"),
            [
                (
                    name,
                    one.get("type", ""),
                    one.get("msgBacklog", 0),
                    one.get("unackedMessages", 0),
                    len(one.get("consumers", ())),
                )
                for name, one in subscriptions.items()
            ],
            right=("backlog", "unacked", "consumers"),
        )


@command.command("internal-stats")
@topic_argument
@admin_url_option
@json_option
def internal_stats(topic: str, admin_url: str, as_json: bool) -> None:
    """Show the segments of TOPIC, or of each of its partitions, where they are, and the cursors."""
    admin = Admin(admin_url)
    if not _partitions(admin, topic):
        answer = admin.get(f"{_path(topic)}/internalStats")
        print_json(answer) if as_json else _print_internal(answer)
        return
    answer = admin.get(f"{_path(topic)}/partitioned-internalStats")
    if as_json:
        print_json(answer)
        return
    for name, one in answer["partitions"].items():
        click.echo(name)
        _print_internal(one)
        click.echo()


def _partitions(admin: Admin, topic: str) -> int:
    return int(admin.get(f"{_path(topic)}/partitions").get("partitions", 0))


def _print_internal(answer: dict[str, Any]) -> None:
    print_table(
        ("ledger", "state", "entries", "bytes", "archive"),
        [
            (
                segment["ledgerId"],
                segment.get("state", ""),
                segment.get("entries", 0),
                segment.get("size", 0),
                (segment.get("archive") or {}).get("name", ""),
            )
            for segment in answer.get("ledgers", ())
        ],
        right=("ledger", "entries", "bytes"),
    )
    for segment in answer.get("ledgers", ()):
        if segment.get("damage"):
            click.echo(f"damaged: segment {segment['ledgerId']} in the archive: {segment['damage']}")
    click.echo()
    print_fields({"last confirmed": answer.get("lastConfirmedEntry", "")})
    for name, cursor in answer.get("cursors", {}).items():
        print_fields({f"cursor {name}": f"mark-delete {cursor.get('markDeletePosition', '')}"})


@command.command("terminate")
@topic_argument
@admin_url_option
@json_option
def terminate(topic: str, admin_url: str, as_json: bool) -> None:
    """Accept no more messages on TOPIC; what is there stays readable."""
    admin = Admin(admin_url)
    if _partitions(admin, topic):
        answer = admin.post(f"{_path(topic)}/terminate/partitions")
        said = f"terminated {topic}, all its {len(answer)} partitions"
    else:
        answer = admin.post(f"{_path(topic)}/terminate")
        said = f"terminated {topic}; its last entry is {answer['ledgerId']}:{answer['entryId']}"
    print_done(as_json, said, topic=topic, terminated=True, last=answer)
