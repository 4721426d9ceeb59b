"""`quire topics explain`: why each segment of a topic is still here, and when it will go."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import click

from quire.cli.http import admin_url_option, json_option, topic_argument
from quire.cli.output import print_json
from quire.runtime.rest import Admin
from quire.wire import topic_name


@click.command("explain")
@topic_argument
@admin_url_option
@json_option
def explain(topic: str, admin_url: str, as_json: bool) -> None:
    """Say why each segment of TOPIC is still here, and when it will go. See docs/retention.md."""
    answer = Admin(admin_url).get(f"/quire/v1/topics/{topic_name.path(topic)}/explain")
    if as_json:
        print_json(answer)
        return
    count = len(answer["segments"])
    click.echo(f"{answer['topic']}: " + ("one segment" if count == 1 else f"{count} segments, oldest first"))
    if answer["producersHeldOff"]:
        click.echo(f"producers are held off: {answer['producersHeldOff']}")
    for segment in answer["segments"]:
        for line in lines_of(segment, answer["nowMs"]):
            click.echo(line)


def lines_of(segment: dict[str, Any], now_ms: int) -> list[str]:
    """A segment in words."""
    head = f"segment {segment['ledgerId']}: {segment['messages']} messages, {segment['bytes']} bytes"
    if segment["messages"]:
        head += f", {_moment(segment['firstMs'])} to {_moment(segment['lastMs'])}"
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
    return f"; due since {_moment(until_ms)}" if until_ms <= now_ms else f"; until {_moment(until_ms)}"


def _moment(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
