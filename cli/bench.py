"""`quire bench`: measures rates and latencies of a server, by child processes that publish and consume.

`quire check` proves that no message is lost; this command measures. The load generator is in `perf/`.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import click

from quire.cli.bench_options import (
    BACKLOG_MESSAGES,
    Plan,
    connect_options,
    consume_options,
    limit_options,
    load_options,
    plan_of,
    processes_option,
    producer_options,
    topic_options,
)
from quire.cli.client_command import INTERRUPTED, connected, run, until_interrupted
from quire.runtime.errors import ConfigurationError, NotFound

if TYPE_CHECKING:
    from quire.client import Client
    from quire.perf.fleet import Fleet, Measured

QUIET_S: Final = 10.0
"""Seconds without an arrival after which a message that was published counts as not consumed."""

IDLE_S: Final = 5.0
"""Seconds without a further arrival after which `consume` ends if no number and no time was given."""

LOOK_S: Final = 0.1

Body = Callable[["Fleet", Plan], Coroutine[Any, Any, None]]


@click.group("bench")
def command() -> None:
    """Measure rates and latencies of a server with Pulsar's protocol.

    Topics are created for the run, and deleted afterwards. Ctrl-C ends a run, and prints the report of what was
    measured. docs/performance.md describes how to measure honestly.

    \b
    Examples:
      quire bench produce
      quire bench end-to-end --rate 10000 --duration 1m
      quire bench consume --messages 1000000 --size 100B
      quire bench latency
      quire bench topics --topics 1000
    """


@command.command("produce")
@topic_options
@limit_options("10s", "1s")
@producer_options
@load_options
@processes_option
@connect_options
def produce(**given: Any) -> None:
    """Publish, and measure the time until each message's receipt.

    With --rate, the latency of a message counts from the time at which it was due, also while the server stalls.
    Without it, messages are sent as fast as the client can, and wait in its queue: that measures the rate, and not the
    latency.

    \b
    Examples:
      quire bench produce --duration 30s --processes 2
      quire bench produce --rate 20000 --size 100B --topics 10
      quire bench produce orders --messages 10000 --no-batching
    """
    plan = plan_of(given, duration="10s")
    _measure("produce", plan, lambda topics: _run(plan, plan.producers(topics), _until_published))


@command.command("end-to-end")
@topic_options
@limit_options("10s", "1s")
@producer_options
@load_options
@consume_options
@processes_option
@connect_options
def end_to_end(**given: Any) -> None:
    """Publish and consume at the same time, and measure the time until each message arrives.

    --processes is the number of processes that publish, and also of those that consume.

    \b
    Examples:
      quire bench end-to-end --rate 20000
      quire bench end-to-end --rate 5000 --partitions 4 --consumers 4 --type shared
      quire bench end-to-end --rate 1000 --subscriptions 10 --json
    """
    plan = plan_of(given, duration="10s", has_stamp=True)
    _measure(
        "end-to-end",
        plan,
        lambda topics: _run(plan, [*plan.producers(topics), *plan.consumers(topics)], _until_consumed),
    )


@command.command("consume")
@topic_options
@limit_options("", "0s")
@producer_options
@consume_options
@processes_option
@connect_options
def consume(**given: Any) -> None:
    """Consume a backlog as fast as the client can, and measure the rate.

    Without TOPIC, new topics get --messages messages before. From TOPICs, all existing messages are read by a temporary
    subscription, until there are no more, or --messages or --duration is reached.

    \b
    Examples:
      quire bench consume
      quire bench consume --messages 1000000 --size 100B --processes 2
      quire bench consume orders --duration 1m
    """
    plan = plan_of(given)
    if not plan.is_given and not plan.messages:
        plan = replace(plan, messages=BACKLOG_MESSAGES)
    _measure("consume", plan, lambda topics: _fill_and_consume(plan, topics))


@command.command("latency")
@topic_options
@limit_options("5s", "500ms")
@producer_options
@connect_options
def latency(**given: Any) -> None:
    """Publish one message at a time, and measure its receipt and its arrival: the latency without load.

    Use `end-to-end --rate` for the latency under load.

    \b
    Examples:
      quire bench latency
      quire bench latency --messages 10000 --size 100B --json
    """
    plan = plan_of(given | {"no_batching": True}, duration="5s", has_stamp=True)
    if max(plan.count, len(plan.given_topics)) > 1:
        raise ConfigurationError("`quire bench latency` uses one topic; give one")
    _measure("latency", plan, lambda topics: _run(plan, plan.pair(topics), _until_published))


@command.command("topics")
@click.option("--topics", "count", type=click.IntRange(1), default=100, show_default=True)
@click.option("--namespace", default="public/default", show_default=True, metavar="TENANT/NAMESPACE")
@click.option("--partitions", type=click.IntRange(0), default=0, help="Number of partitions of each topic.")
@click.option("--keep", is_flag=True, help="Keep the topics.")
@producer_options
@processes_option
@connect_options
def topics(**given: Any) -> None:
    """Open new topics, and measure the time until each has a producer, and until its first message has a receipt.

    \b
    Examples:
      quire bench topics --topics 1000
      quire bench topics --topics 10000 --processes 2 --json
    """
    plan = plan_of(given)
    _measure("topics", plan, lambda topics: _run(plan, plan.openers(topics), _until_published))


@command.command("worker", hidden=True)
def worker() -> None:
    """Do the work that the parent process writes to standard input."""
    from quire.perf.worker import work

    run(work())


# -- Runs --

Outcome = tuple["Measured", bool]
"""Measurements, and whether the run was interrupted."""


def _measure(what: str, plan: Plan, work: Callable[[list[str]], Coroutine[Any, Any, Outcome]]) -> None:
    """Create the topics, measure, delete the topics, and print the report."""
    from quire.cli.bench_report import report

    names = plan.names()
    topics = plan.own_topics(names)
    kept, has_ended = names if plan.keep or plan.is_given else [], False
    run(_contact(plan))
    try:
        topics.create_partitioned()
        measured, interrupted = run(work(names))
        has_ended = not interrupted
    finally:
        if not (plan.keep or plan.is_given):
            kept = topics.delete(may_be_missing=not has_ended)
    report(what, plan, measured, interrupted, kept).say(plan.as_json)
    if interrupted:
        sys.exit(INTERRUPTED)


async def _contact(plan: Plan) -> None:
    """Connect once, so that a wrong address or topic is reported before processes are started.

    Raises `NotFound` for a given topic that does not exist, which a producer would create.
    """
    async with connected(plan.client()) as client:
        for name in plan.given_topics:
            await _check_exists(client, name)


async def _check_exists(client: Client, name: str) -> None:
    try:
        await client.partitions(name, create=False)
    except NotFound:
        raise NotFound(f"topic {name} does not exist; create it with `quire topics create`") from None


async def _run(plan: Plan, jobs: list[Any], body: Body) -> Outcome:
    """Run child processes until `body` is done or the user interrupts it."""
    from quire.cli.bench_progress import shown
    from quire.perf.fleet import Fleet

    async with Fleet(jobs) as fleet:
        fleet.begin()
        task = asyncio.create_task(body(fleet, plan))
        with until_interrupted(task), shown(fleet.measured, plan):
            await asyncio.wait([task])
        if not task.cancelled():
            task.result()
    return fleet.measured, task.cancelled()


async def _until_published(fleet: Fleet, _: Plan) -> None:
    await fleet.ended()


async def _until_consumed(fleet: Fleet, plan: Plan) -> None:
    """Wait until each published message has arrived at each subscription, or no more arrive."""
    await fleet.ended("produce")
    tallies = fleet.measured.tallies
    await _until_arrived(
        fleet, lambda: tallies["publish"].all_messages * plan.subscriptions, QUIET_S, float("inf")
    )


async def _fill_and_consume(plan: Plan, topics: list[str]) -> Outcome:
    """Publish a backlog to new topics, and consume it."""
    if not plan.is_given:
        click.echo(f"publishing {plan.messages:,} messages, which is not measured", err=True)
        filling = replace(plan, duration_s=0.0, warm_up_s=0.0, rate=0.0)
        measured, interrupted = await _run(filling, filling.producers(topics), _until_published)
        if interrupted or measured.tallies["publish"].failed:
            return measured, interrupted
    return await _run(plan, plan.consumers(topics, backlog=True), _until_read)


async def _until_read(fleet: Fleet, plan: Plan) -> None:
    """Wait until the limit of the plan is reached; without one, until no more messages arrive."""
    count = plan.messages * plan.subscriptions or sys.maxsize
    has_limit = bool(plan.messages or plan.duration_s)
    await _until_arrived(
        fleet,
        lambda: count,
        QUIET_S if has_limit else IDLE_S,
        plan.warm_up_s + plan.duration_s or float("inf"),
    )


async def _until_arrived(fleet: Fleet, count: Callable[[], int], quiet_s: float, duration_s: float) -> None:
    """Wait for a number of arrivals, until `quiet_s` have passed without one, or `duration_s` in all."""
    loop = asyncio.get_running_loop()
    begin = last = loop.time()
    seen = -1
    watching = asyncio.create_task(fleet.ended())
    try:
        while not watching.done():
            now, arrived = loop.time(), fleet.measured.tallies["consume"].all_messages
            if arrived != seen:
                seen, last = arrived, now
            quiet_max_s = quiet_s if arrived else QUIET_S
            if arrived >= count() or now - last > quiet_max_s or now - begin >= duration_s:
                return
            await asyncio.wait([watching], timeout=LOOK_S)
        watching.result()
    finally:
        watching.cancel()
