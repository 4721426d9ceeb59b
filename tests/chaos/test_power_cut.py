"""The kill test's promises on a machine whose power fails: what was not synced is kept, dropped or torn at random.

SIGKILL cannot show a missing fsync, because the kernel keeps what was written. Here the whole process runs on
simulated disks (`machine`), the power fails at a random operation, and the same checks follow. Everything is drawn
from one seed, which a failure prints.
"""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Callable
from random import Random, SystemRandom
from typing import Any

import pytest

from quire.bookie import storage as storage_module
from quire.bookie.journal import Journal
from quire.ledger.state_log import StateLog
from quire.runtime.errors import QuireError
from quire.serving.names import TopicName
from quire.testing import disk

from .load import Follower, Log, Published, RawStream
from .machine import Machine, Surprises

HISTORIES = int(os.environ.get("QUIRE_CHAOS_HISTORIES", "150"))
SECONDS_MAX = 60.0 * max(1, HISTORIES // 150)
SEED = int(os.environ.get("QUIRE_CHAOS_SEED", SystemRandom().getrandbits(31)))

PLAIN = "persistent://public/default/plain"
NUMBERED = "persistent://public/default/numbered"
TURNS_MAX = 80
LIVES = 4


class History:
    """Some lives of one machine, and what was promised to its clients."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = Random(seed)
        # Every topic drops duplicates, but only the numbered producer asks for it.
        self.machine = Machine(self.rng.getrandbits(32), deduplication=True)
        self.streams: list[RawStream] = [RawStream(PLAIN), RawStream(NUMBERED, numbered=True)]
        self.logs = {stream.topic: Log(stream.topic) for stream in self.streams}
        self.followers = [
            Follower(PLAIN, "individual", self.rng),
            Follower(PLAIN, "cumulative", self.rng, cumulative=True),
            Follower(NUMBERED, "shared", self.rng, shared=True),
        ]

    async def run(self, lives: int) -> None:
        for life in range(lives):
            await self._boot()
            await self._check(whole=life % 2 == 1)
            if self.rng.random() < 0.9:
                self.machine.power.fail_after(self.rng.randrange(120))
            await self._live()
        await self._boot()
        await self._check(whole=True)
        await self.machine.cut()

    async def _boot(self) -> None:
        """Starts, and the loading of topics, may be cut short by the power, too."""
        while self.rng.random() < 0.2:
            self.machine.power.fail_after(self.rng.randrange(60))
            try:
                await self.machine.boot()
            except QuireError:
                await self.machine.cut()
            else:
                await self._live()
        await self.machine.boot()
        assert self.machine.storage.bookie_id.incarnation == 1, "a crash was taken for damage"

    async def _live(self) -> None:
        """Load until the power fails (and somewhat longer, for whom that escapes), or for a while."""
        connect = self.machine.connect
        tasks = [asyncio.ensure_future(stream.run(connect, self.rng)) for stream in self.streams]
        tasks += [asyncio.ensure_future(follower.run(connect)) for follower in self.followers]
        turns = self.rng.randrange(TURNS_MAX)
        while turns > 0:
            await asyncio.sleep(0)
            turns = min(turns - 1, 30) if self.machine.power.is_down else turns - 1
        await self.machine.cut()
        for stream in self.streams:
            stream.note_kill()
        await asyncio.wait(tasks, timeout=20)
        assert all(task.done() for task in tasks), "a client waits for ever"
        for task in tasks:
            task.result()

    async def _check(self, *, whole: bool) -> None:
        for stream in self.streams:
            acknowledged = set(stream.acknowledged)
            log = self.logs[stream.topic]
            known = len(log.positions)
            await log.extend(self.machine.connect, 0 if whole or not known else self.rng.randrange(known))
            stream.check(acknowledged, [log.numbers()])
        for follower in self.followers:
            assert not follower.problems, follower.problems[:3]
            await self._check_backlog(follower)

    async def _check_backlog(self, follower: Follower) -> None:
        log = self.logs[follower.topic]
        messages = len(log.numbers())
        rows = (
            await self.machine.broker.admin.statistics.stats(TopicName.parse(follower.topic))
        ).subscriptions
        if follower.name in rows:
            follower.check_backlog(log, rows[follower.name].msg_backlog, messages, messages)
        else:
            assert not follower.answered and follower.answered_up_to == (-1, -1), "a subscription is gone"


def run_one(seed: int) -> History:
    try:
        with Surprises() as surprises:
            asyncio.run((history := History(seed)).run(LIVES))
        assert not surprises.found, surprises.found[0]
    except AssertionError as error:
        raise AssertionError(f"seed {seed}: {error}") from error
    return history


@pytest.mark.chaos
@pytest.mark.timeout(300 + SECONDS_MAX)
def test_nothing_is_lost_to_a_power_cut() -> None:
    """`HISTORIES`, or as many as are begun within `SECONDS_MAX`."""
    print(f"QUIRE_CHAOS_SEED={SEED}")
    acknowledged, until = 0, time.monotonic() + SECONDS_MAX
    for number in range(HISTORIES):
        acknowledged += sum(len(stream.acknowledged) for stream in run_one(SEED + number).streams)
        if time.monotonic() > until:
            break
    print(f"{number + 1} histories, {acknowledged} messages acknowledged")
    assert acknowledged > number + 1, "the histories are about nothing"


# -- the checks notice a missing fsync -------------------------------------------------------------------

Patch = pytest.MonkeyPatch


def journal_not_synced(patch: Patch) -> None:
    patch.setattr(
        storage_module, "Journal", lambda *parts, **rest: Journal(*parts, **rest | {"durable": False})
    )


def entry_log_not_synced(patch: Patch) -> None:
    honest = disk._SimulatedFile.sync

    def sync(file: Any) -> None:
        if "logs/" not in file.name:
            honest(file)

    patch.setattr(disk._SimulatedFile, "sync", sync)


def acks_answered_before_they_are_durable(patch: Patch) -> None:
    append = StateLog.append

    def hasty(log: StateLog, record: bytes, done: Any = None) -> None:
        append(log, record)
        if done is not None:
            done(None)

    patch.setattr(StateLog, "append", hasty)


def receipts_for_what_waits(patch: Patch) -> None:
    """The last message without a receipt counts as acknowledged: the check of losses itself."""
    patch.setattr(Published, "note_kill", lambda stream: stream.acknowledged.update(stream.unanswered))


MUTATIONS = [
    (journal_not_synced, "lost|damage"),
    (entry_log_not_synced, "cannot be read|lost"),
    (acks_answered_before_they_are_durable, "backlog|came back"),
    (receipts_for_what_waits, "lost"),
]


@pytest.mark.chaos
@pytest.mark.parametrize(("mutate", "complaint"), MUTATIONS)
def test_a_mutation_is_caught(mutate: Callable[[Patch], None], complaint: str, monkeypatch: Patch) -> None:
    mutate(monkeypatch)
    for seed in range(100):
        try:
            run_one(seed)
        except (AssertionError, QuireError, OSError) as error:
            assert re.search(complaint, str(error)), f"caught for another reason: {error}"
            return
    pytest.fail("100 histories did not notice")
