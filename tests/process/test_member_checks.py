"""What counts say is wrong: each row looks at a metric that there is, and fires when it should."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable
from typing import Any

import pytest

from quire.cli import cluster_checks
from quire.cli.cluster_checks import Looked, look_at_cluster
from quire.metadata.zookeeper_servers import ServerState
from quire.process import member_checks
from quire.process.member_checks import COUNTED, HARMLESS, Counted, counters, of_servers, subscriptions
from quire.runtime.errors import NotFound
from quire.runtime.findings import ERROR, WARNING, Finding
from quire.runtime.member import DOCTOR
from quire.runtime.metric_table import BY_NAME
from quire.runtime.metrics import Values
from quire.serving.subscription.dispatch.blocked import REASONS


def test_what_is_looked_at_is_counted() -> None:
    named = set(re.findall(r"quire_\w+", inspect.getsource(member_checks)))
    named |= {"quire_subscription_blocked", "quire_subscription_backlog_age_seconds"}
    assert {name for name in named if name != "quire_subscription_"} <= BY_NAME.keys()
    assert set(HARMLESS) <= set(REASONS)


@pytest.mark.parametrize("row", COUNTED, ids=lambda row: row.metric)
async def test_a_counter_that_says_that_something_is_wrong(row: Counted) -> None:
    quiet = dict.fromkeys((one.metric for one in COUNTED), 0.0)
    assert list(await counters(lambda: quiet)()) == []
    assert list(await counters(lambda: quiet | {row.metric: row.above})()) == []
    (found,) = await counters(dict, lambda: quiet | {row.metric: row.above + 1})()
    assert found.level == row.level and found.todo == row.todo and "{" not in found.what


async def test_a_budget_that_is_used_up() -> None:
    values: Values = {"quire_serving_bytes_in_flight": 80.0, "quire_serving_bytes_in_flight_max": 100.0}
    assert list(await counters(lambda: values)()) == []
    (budget,) = await counters(lambda: {**values, "quire_serving_bytes_in_flight": 95.0})()
    assert budget.level == WARNING and "budget" in budget.what


def of_blocked(reason: str, age_s: float) -> Values:
    labels = ("public/default", "persistent://public/default/t", "s")
    return {
        "quire_subscription_blocked": {(*labels, reason): 1.0},
        "quire_subscription_backlog_age_seconds": {labels: age_s},
    }


@pytest.mark.parametrize(
    ("reason", "age_s", "level"),
    [
        ("read_error", 1.0, ERROR),
        ("unacked", 1.0, ""),
        ("unacked", 600.0, WARNING),
        ("no_consumer", 10**6, ""),
        ("delayed", 10**6, ""),
    ],
)
async def test_a_subscription_that_gets_nothing(reason: str, age_s: float, level: str) -> None:
    async def collect() -> Values:
        return of_blocked(reason, age_s)

    found = list(await subscriptions(collect)())
    assert [one.level for one in found] == ([level] if level else [])
    assert all("persistent://public/default/t s" in one.todo for one in found)


def test_servers_of_zookeeper() -> None:
    well, down = ServerState("a:2181", mode="follower"), ServerState("b:2181", "it does not answer")

    def levels(*states: ServerState) -> list[str]:
        return [one.level for one in of_servers(states)]

    assert levels(well, well, well) == []
    assert levels(well, well, down) == [WARNING]
    assert levels(well, down, down) == [ERROR, ERROR]
    assert levels(ServerState("a:2181", mode="leader", latency_ms=250.0), well) == [WARNING]


class Broker:
    """What REST says, by paths."""

    url = "http://broker:8080"

    def __init__(self, said: dict[str, Any]) -> None:
        self._said = said

    def get(self, path: str) -> Any:
        path = path.removesuffix("?here=true")
        if path not in self._said:
            raise NotFound(path)
        return self._said[path]


def findings(said: dict[str, Any]) -> list[Finding]:
    looked = Looked()
    look_at_cluster(Broker(said), looked)  # type: ignore[arg-type]
    return [finding for _, finding in looked.found]


def overview(brokers: Iterable[dict[str, Any]] = (), **more: Any) -> dict[str, Any]:
    bookie = {"uuid": "5f0c2e11", "address": "b:3181", "state": "up", "note": "", "version": "1"}
    room = {"freeBytes": 50, "totalBytes": 100, "damagedCopies": 0}
    repair = {"failed": 0, "error": ""}
    return {"brokers": list(brokers), "bookies": [{**bookie, **room, **more}], "repair": repair}


def cluster(**more: Any) -> dict[str, Any]:
    empty = {"members": [], "silent": [], "unasked": []}
    return {DOCTOR: empty, cluster_checks.OVERVIEW: overview(), cluster_checks.LOST: [], **more}


def test_a_cluster_with_nothing_wrong() -> None:
    assert findings(cluster()) == []


@pytest.mark.parametrize(
    ("more", "level", "words"),
    [
        ({"state": "absent", "note": "start it again"}, ERROR, "is down (absent)"),
        ({"freeBytes": 9}, WARNING, "0 of 0 MiB free"),
        ({"damagedCopies": 3}, WARNING, "damaged copies of 3 ledgers"),
        ({"state": "read-only", "note": "its disk is full"}, WARNING, "accepts no new entries"),
    ],
)
def test_a_bookie_with_a_trouble(more: dict[str, Any], level: str, words: str) -> None:
    (found,) = findings(cluster(**{cluster_checks.OVERVIEW: overview(**more)}))
    assert found.level == level and words in found.what


async def test_a_broker_that_reaches_too_few_bookies_is_told_of_though_no_other_can_write() -> None:
    """It is as ready as the others then, and keeps its bundles."""
    (found,) = await counters(lambda: {"quire_serving_cannot_write": True})()
    assert found.level == ERROR and "reaches too few bookies" in found.what
    assert list(await counters(lambda: {"quire_serving_cannot_write": False})()) == []


async def test_nobody_keeps_what_is_published() -> None:
    assert list(await counters(lambda: {"quire_ledger_bookies_writable": 1})()) == []
    (found,) = await counters(lambda: {"quire_ledger_bookies_writable": 0})()
    assert found.level == ERROR and "no bookie takes new blocks" in found.what
    with_wal: Values = {"quire_ledger_bookies_writable": 0, "quire_wal_open": 1}
    assert list(await counters(lambda: with_wal)()) == [], "an object store does"


def test_clocks_members_that_are_silent_and_ledgers_that_lost_entries(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    member = {"kind": "broker", "name": "b:6650", "version": "1", "findings": []}
    monkeypatch.setattr("quire.cli.cluster_checks.time.time_ns", lambda: 100_000 * 1_000_000)

    def members(now_ms: int, *silent: str) -> dict[str, Any]:
        return {"members": [{**member, "nowMs": now_ms}], "silent": list(silent), "unasked": []}

    assert findings(cluster(**{DOCTOR: members(101_500)})) == []
    (clock,) = findings(cluster(**{DOCTOR: members(107_000)}))
    assert "its clock is 7.0 s ahead of" in clock.what
    (clock,) = findings(cluster(**{DOCTOR: members(93_000)}))
    assert "its clock is 7.0 s behind" in clock.what
    (silent,) = findings(cluster(**{DOCTOR: members(100_000, "the bookie x does not answer")}))
    assert silent.level == ERROR
    lost = {"ledgerId": 7, "purpose": "topic:t", "what": "entry 3 is nowhere"}
    (found,) = findings(cluster(**{cluster_checks.LOST: [lost]}))
    assert found.level == ERROR and "ledger 7 of topic:t" in found.what
