"""Thousands of histories, and what makes them worth something: they repeat exactly, and much happens in them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from itertools import groupby
from pathlib import Path

import pytest

from tests.simulation.hostile import ACTS
from tests.simulation.limits import shares_met
from tests.simulation.plan import Event, Plan, draw
from tests.simulation.runner import HISTORIES, Outcome, run, run_many
from tests.simulation.shrink import shrink

REPOSITORY = Path(__file__).parent.parent.parent
PINNED = Path(__file__).with_name("pinned")
"""Plans of histories that found a mistake, each with what it was."""

SCENARIOS = Path(__file__).with_name("scenarios")

SEEDS = {"ledger": 1_700, "cluster": 300, "wal": 600, "restored": 150}
SECONDS_MAX = float(os.environ.get("QUIRE_SIMULATION_SECONDS", "80"))
"""For the histories of a kind. A slow machine runs fewer; how much happens is then asked of their whole quarters.

The same seeds have the same counts on each machine, so that what holds for a quarter on one holds on all.
"""

QUARTERS = 4

LIMIT_MET_MIN = 0.1
"""Of each limit that takes small values: in which part of the histories it is met."""

PART = 1 / 3
"""Of what would be expected of a part of the histories so much must happen in it: by chance it is less."""

EXPECTED_MIN = 8
"""In a part of the histories nothing is asked for that is expected more seldom: by chance there is none at all."""

MUST_BE_SEEN = {
    "ledger": {
        "taken over": 1_000,
        "recovered": 1_000,
        "block recovered": 1_000,
        "recoveries race": 200,
        "recovery changed the ensemble": 100,
        "fence laid": 5_000,
        "add FENCED": 1_000,
        "ensemble change": 1_000,
        "narrowed": 500,
        "widened": 200,
        "power cut": 1_000,
        "bookie wiped": 50,
        "bit flipped": 100,
        "page spoiled": 200,
        "older disk put back": 40,
        "half a bookie refused": 30,
        "bookie given up": 300,
        "hole given up": 100,
        "end before a loss": 25,
        "blank read": 200,
        "incarnation raised": 5,
        "read LIMBO": 20,
        "read IO_ERROR": 50,
        "repaired": 1_000,
        "bookie decommissioned": 100,
        "bookie broken": 200,
        "ledger deleted": 500,
        "session lost": 300,
        "session expired early": 200,
        "metadata outcome unknown": 500,
        "metadata read that lags": 1_000,
        "metadata change made after its maker gave up": 100,
        "writer failed Fenced": 200,
        "writer failed OutcomeUnknown": 500,
        "ledger read": 10_000,
    },
    "cluster": {
        "receipt": 50_000,
        "acks answered": 10_000,
        "acks OutcomeUnknown": 50,
        "publish PublishUnknown": 300,
        "duplicate dropped": 50,
        "delivered in the end": 2_000,
        "taken over": 500,
        "add FENCED": 5,
        "session lost": 200,
        "bundle moved": 60,
        "broker gave all up": 10,
        "bundle split": 8,
        "message trimmed": 10_000,
        "seek by id": 100,
        "seek by time": 50,
        "compaction begun": 150,
        "compacted topic read": 50,
        "messages read along": 20_000,
        "topic unloaded": 30,
        "archived": 50_000,
        "bookies' copy deleted": 1_500,
        "object store trouble: finish": 3,
        "bookie wiped": 10,
        "power cut": 400,
        "narrowed": 300,
        "plan": 300,
        "segment planned": 1_000,
        "partition added": 15,
        "topic deleted": 15,
        "leader": 100,
        "keys held by several consumers": 300,
        "event half_open": 300,
        "sent again": 20,
        "a SEND waits for its topic": 100,
        "something waits in a lane": 500,
        "socket not read: HELD": 20,
        "deduplication snapshot": 300,
        "sent again with a receipt": 100,
        "key-shared looks no further ahead": 30,
        "wrong checksum refused": 50,
        "a read is carried out in slices": 200,
        "hostile connection closed by its broker": 50,
        **{f"hostile {act.__name__}": 10 for act in ACTS},
    },
    "wal": {
        "taken over": 1_000,
        "recovered": 1_000,
        "recoveries race": 200,
        "add FENCED": 500,
        "add UNREACHABLE": 500,
        "ensemble change": 180,
        "WAL fenced": 600,
        "WAL closed from closing": 600,
        "WAL closed from open": 30,
        "close told": 800,
        "WAL closed by a copy of its record": 80,
        "outdated record refused": 60,
        "trimmed while open": 2_000,
        "upload hedged": 200,
        "name taken by the own object": 130,
        "name taken by a fence": 6,
        "object behind a fence": 2,
        "object store refuses": 800,
        "object store silent, put before": 400,
        "object store silent, put after": 400,
        "object store silent, put later": 400,
        "listing that lags": 1_000,
        "object rotted": 50,
        "object vanished": 50,
        "WAL damage told": 5,
        "handed over": 50,
        "session lost": 200,
        "metadata outcome unknown": 300,
        "ledger deleted": 250,
        "writer failed OutcomeUnknown": 20,
        "ledger read": 3_000,
    },
    "restored": {
        "metadata put back": 75,
        "metadata lost": 38,
        "metadata rescued": 38,
        "rescue interrupted": 10,
        "ledger rescued": 200,
        "metadata emptied": 50,
        "drain interrupted": 30,
        "ledger forgotten by the metadata": 200,
        "ledger open again": 45,
        "writer failed IdUsedBefore": 10,
        "taken over": 500,
        "recovered": 500,
        "ensemble change": 200,
        "ledger read": 1_500,
    },
}


@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("kind", HISTORIES)
def test_all_invariants_hold_in_every_history(kind: str) -> None:
    each_seen: list[Counter[str]] = []
    failed: list[Outcome] = []
    virtual_s = cpu_s = 0.0
    until = time.monotonic() + SECONDS_MAX
    for outcome in run_many(kind, range(SEEDS[kind])):
        each_seen.append(outcome.seen)
        virtual_s += outcome.seconds
        cpu_s += outcome.cpu_s
        if outcome.rule:
            failed.append(outcome)
        if time.monotonic() > until:
            break
    told = "\n".join(f"{kind} seed {each.plan.seed}: {each.detail}" for each in failed)
    assert not failed, f"python -m tests.simulation --kind {kind} --seed N --trace\n{told}"
    whole = len(each_seen) * QUARTERS // SEEDS[kind]
    _check_how_much_happens(kind, each_seen[: whole * SEEDS[kind] // QUARTERS], whole / QUARTERS)
    print(f"{kind}: {len(each_seen)} histories, {virtual_s / cpu_s:.0f} times as fast as real time")


def _check_how_much_happens(kind: str, each_seen: list[Counter[str]], share: float) -> None:
    seen = sum(each_seen, Counter[str]())
    slack = 1 if share == 1 else PART
    expected = {what: int(least * share * slack) for what, least in MUST_BE_SEEN[kind].items()}
    judged = {what: least for what, least in expected.items() if share == 1 or least >= EXPECTED_MIN}
    quiet = {what: seen[what] for what, least in judged.items() if seen[what] < least}
    assert not quiet, f"too little happens: {quiet}"
    if kind == "cluster" and each_seen:
        unmet = {limit: met for limit, met in shares_met(each_seen).items() if met < LIMIT_MET_MIN * slack}
        assert not unmet, f"limits that too few of the histories meet in which they are small: {unmet}"


@pytest.mark.parametrize("kind", HISTORIES)
@pytest.mark.timeout(600)
def test_a_seed_gives_the_same_trace_in_any_process(kind: str) -> None:
    """Twice, with other hashes of strings and other addresses of objects."""
    count = {"ledger": 30, "cluster": 12, "wal": 30, "restored": 12}[kind]
    script = (
        "import json, sys; from tests.simulation.runner import run_seed\n"
        "timeline = sys.argv[1] == 'timeline'\n"
        f"print(json.dumps([run_seed(seed, {kind!r}, timeline=timeline).hash for seed in range({count})]))"
    )
    running = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", script, how],
            cwd=REPOSITORY,
            env={**os.environ, "PYTHONHASHSEED": number},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        for number, how in (("1", "timeline"), ("2", "quiet"))
    ]
    one, other = (json.loads(process.communicate()[0]) for process in running)
    assert one == other
    assert len(set(one)) == count


@pytest.mark.parametrize("kind", HISTORIES)
def test_a_plan_is_text_and_back(kind: str) -> None:
    for seed in range(20):
        plan = draw(seed, kind)
        assert Plan.parse(str(plan)) == plan
        assert Plan.parse(f"# why it is kept\n\n{plan}") == plan


@pytest.mark.parametrize("file", sorted(PINNED.glob("*.txt")), ids=lambda file: file.stem)
def test_what_once_went_wrong_goes_well(file: Path) -> None:
    outcome = run(Plan.parse(file.read_text()))
    assert not outcome.rule, outcome.detail


@pytest.mark.parametrize("file", sorted(SCENARIOS.glob("*.txt")), ids=lambda file: file.stem)
def test_a_classic_history_goes_as_it_is_written(file: Path) -> None:
    """QUIRE_REWRITE=1 writes what happens now; look at the difference."""
    plan, _, told = file.read_text().partition("\n---\n")
    outcome = run(Plan.parse(plan))
    assert not outcome.rule, outcome.detail
    story = (
        "\n".join(outcome.story if outcome.plan.kind == "ledger" else topic_by_topic(outcome.story)) + "\n"
    )
    if os.environ.get("QUIRE_REWRITE"):
        file.write_text(f"{plan.rstrip()}\n\n---\n{story}")
    else:
        assert story == told


def topic_by_topic(story: list[str]) -> list[str]:
    """What became of each topic's ledgers, without what chance decides: which bookies, how far, how often."""
    ledgers: dict[str, list[str]] = {}
    told: dict[str, list[str]] = {}
    for line in story:
        found = re.fullmatch(r"ledger (\d+) \((.+?)\) (.+)", line)
        assert found is not None
        ledger, topic, what = found.groups()
        known = ledgers.setdefault(topic, [])
        if ledger not in known:
            known.append(ledger)
        what = re.sub(r"from entry 0 on .*", "begins", what)
        what = re.sub(r"from entry \d+ on .*", "goes on with other bookies", what)
        what = re.sub(r" with entry \d+", "", what)
        told.setdefault(topic, []).append(f"ledger {known.index(ledger) + 1} of {topic} {what}")
    return [line for topic in sorted(told) for line, _ in groupby(told[topic])]


def test_an_outcome_depends_on_the_plan_alone() -> None:
    plan = draw(3, "ledger")
    assert run(plan).hash == run(Plan.parse(str(plan)), timeline=True).hash


def test_shrinking_leaves_what_breaks_it() -> None:
    plan = draw(5, "ledger")
    guilty = [Event(1.0, "pause", 2, 0.5), Event(2.0, "cut", 0, 1.0, 0.5)]
    plan = Plan(**{**vars(plan), "events": (*plan.events, *guilty), "seconds": 20.0})

    def fails(candidate: Plan) -> bool:
        return all(event in candidate.events for event in guilty)

    assert set(shrink(plan, fails).events) == set(guilty)
