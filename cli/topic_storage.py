"""`quire topics compact`, `offload`, `trim` and `truncate`: the stored messages of a topic as a whole."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import click

from quire.cli.noun import Noun, parts_of, topic_argument, topic_path
from quire.cli.output import Answer, done
from quire.runtime.errors import NotFound, QuireError
from quire.runtime.rest import Admin
from quire.runtime.settings import parse_size

LOOK_S: Final = 0.5
STATES: Final[Mapping[str, str]] = {
    "NOT_RUN": "has not run since the topic was loaded",
    "RUNNING": "is running",
    "SUCCESS": "has succeeded",
}
verbs = Noun("topics")
_wait_option = click.option("--wait", is_flag=True, help="Wait until it has ended.")


@verbs.verb("compact")
@topic_argument
def compact(admin: Admin, topic: str) -> Answer:
    """Start the compaction of TOPIC, or of all its partitions: a copy of the last message of each key.

    Consumers that read compacted topics get the copy; other consumers still get all messages.

    \b
    Example:
      quire topics compact orders
    """
    admin.put(f"{topic_path(topic)}/compaction")
    said = f"the compaction of {topic} has started; follow it with `quire topics compaction-status {topic} --wait`"
    return done(said, topic=topic, started=True)


@verbs.verb("compaction-status")
@topic_argument
@_wait_option
def compaction_status(admin: Admin, topic: str, wait: bool) -> Answer:
    """Show whether the compaction of TOPIC is running, and whether the last one succeeded. Exit code 1: it failed.

    \b
    Examples:
      quire topics compaction-status orders
      quire topics compaction-status orders --wait
    """
    return _ended(admin, topic, "compaction", wait=wait)


@verbs.verb("offload")
@topic_argument
@click.option(
    "--size-threshold",
    metavar="SIZE",
    help="Leave about this size of the newest messages on the bookies only, such as 10MiB; by default nothing.",
)
def offload(admin: Admin, topic: str, size_threshold: str | None) -> Answer:
    """Start to copy the sealed segments of TOPIC, or of all its partitions, to the archive now.

    The active segment is never copied; `quire archive run --seal` seals and archives all topics.

    \b
    Examples:
      quire topics offload orders
      quire topics offload orders --size-threshold 1GiB
    """
    before: dict[str, int | str] = {topic: "latest"}
    if size_threshold is None:
        admin.put(f"{topic_path(topic)}/offload", "latest")
    else:
        before = dict(_before(admin, topic, parse_size(size_threshold)))
        for part, ledger in before.items():
            admin.put(f"{topic_path(part)}/offload", {"ledgerId": ledger, "entryId": 0, "partitionIndex": -1})
    said = f"archiving of {topic} has started; follow it with `quire topics offload-status {topic} --wait`"
    value = {"topic": topic, "before": before}
    return Answer(
        value, said if before else f"nothing to archive: {topic} is not larger than {size_threshold}"
    )


def _before(admin: Admin, topic: str, leave_bytes: int) -> Iterator[tuple[str, int]]:
    """Yield each partition with the ledger before which its segments are archived, if there is one."""
    for part in parts_of(admin, topic):
        try:
            ledgers = admin.get(f"{topic_path(part)}/internalStats").get("ledgers", ())
        except NotFound:
            if part == topic:
                raise
            continue  # this partition was never used
        ledger = _first_to_leave(ledgers, leave_bytes)
        if ledger is not None:
            yield part, ledger


def _first_to_leave(ledgers: Sequence[Mapping[str, Any]], leave_bytes: int) -> int | None:
    """Return the ledger before which segments are archived; None if all together are not larger than `leave_bytes`."""
    left, ledger = 0, None
    for one in reversed(ledgers):
        ledger = one["ledgerId"] if ledger is None else ledger
        left += one["size"]
        if left > leave_bytes:
            return int(ledger)
        ledger = one["ledgerId"]
    return None


@verbs.verb("offload-status")
@topic_argument
@_wait_option
def offload_status(admin: Admin, topic: str, wait: bool) -> Answer:
    """Show whether `offload` of TOPIC is running, and whether the last one succeeded. Exit code 1: it failed.

    \b
    Examples:
      quire topics offload-status orders
      quire topics offload-status orders --wait
    """
    return _ended(admin, topic, "offload", wait=wait)


def _ended(admin: Admin, topic: str, what: str, *, wait: bool) -> Answer:
    """Return the state of `what`; with `wait`, once it does not run any more."""
    found: dict[str, Any] = admin.get(f"{topic_path(topic)}/{what}")
    while wait and found["status"] == "RUNNING":
        time.sleep(LOOK_S)
        found = admin.get(f"{topic_path(topic)}/{what}")
    said = STATES.get(found["status"])
    if said is None:
        return Answer(found, error=QuireError(f"{what} of {topic} failed: {found.get('lastError', '')}"))
    return Answer(found, f"{what} of {topic} {said}")


@verbs.verb("trim")
@topic_argument
def trim(admin: Admin, topic: str) -> Answer:
    """Delete the segments of TOPIC that nothing retains, now instead of within seconds.

    `quire topics explain` shows what retains each segment.

    \b
    Example:
      quire topics trim orders
    """
    admin.post(f"{topic_path(topic)}/trim")
    return done(f"trimmed {topic}", topic=topic, trimmed=True)


@verbs.verb("truncate")
@topic_argument
def truncate(admin: Admin, topic: str) -> Answer:
    """Delete all messages of TOPIC, whatever retains them; its subscriptions continue at its end.

    \b
    Example:
      quire topics truncate orders
    """
    admin.delete(f"{topic_path(topic)}/truncate")
    return done(f"truncated {topic}", topic=topic, truncated=True)
