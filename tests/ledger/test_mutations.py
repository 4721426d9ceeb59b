"""Each rule of the quorum log, broken on purpose: the random histories must notice, or they prove nothing.

A mutation is put in, histories run from fixed seeds until one fails its checks; a mutation that survives all seeds
fails the test. Two rules need a longer chance than that and have tests of their own in `test_ledgers`: every recovery
read fences (9), and a recovery publishes its ensembles with the close (14).
"""

from __future__ import annotations

import asyncio
import importlib.util
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from quire.ledger import recovery
from quire.ledger.recovery import _Recovery
from quire.ledger.recovery_core import RecoveryCore
from quire.ledger.writer_core import Ensemble, State, WriterCore
from quire.metadata.records import encode
from quire.metadata.store import ANY_VERSION
from quire.wire.bookie import ReadRequest, Status

SEEDS = 400

_spec = importlib.util.spec_from_file_location("histories", Path(__file__).with_name("test_histories.py"))
assert _spec is not None and _spec.loader is not None
histories = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(histories)


def no_fencing_at_all(patch: pytest.MonkeyPatch) -> None:
    """Rule 8."""

    async def read(self: Any, bookie: Any, first_entry: int) -> None:
        request = ReadRequest(bookie, self._record.ledger_id, first_entry, 1000)
        response = await self._parts.bookies.port(bookie).ask(request)
        if response.status is Status.NO_SUCH_LEDGER:
            response.status = Status.NO_SUCH_ENTRY
        self.core.answered(bookie, first_entry, response)

    patch.setattr(_Recovery, "_read", read)


def confirming_during_a_change(patch: pytest.MonkeyPatch) -> None:
    """Rule 3."""
    original = WriterCore.advance

    def advance(self: WriterCore) -> None:
        changing = self.state is State.CHANGING
        if changing:
            self.state = State.STEADY
        original(self)
        if changing and self.state is State.STEADY:
            self.state = State.CHANGING

    patch.setattr(WriterCore, "advance", advance)


def acks_of_replaced_bookies_count(patch: pytest.MonkeyPatch) -> None:
    """Rules 2 and 3."""
    original = Ensemble.enter

    def enter(self: Ensemble, core: WriterCore, kept: Any, added: Any) -> Any:
        before = self.counted
        fresh = original(self, core, kept, added)
        self.counted |= before
        return fresh

    patch.setattr(Ensemble, "enter", enter)


def a_fragment_that_begins_too_late(patch: pytest.MonkeyPatch) -> None:
    """Rule 3: behind what was added instead of behind what is confirmed."""
    original = WriterCore.begin_change

    def begin_change(self: WriterCore, replacements: Any) -> None:
        confirmed, self.last_confirmed = self.last_confirmed, self.last_added
        original(self, replacements)
        self.last_confirmed = confirmed

    patch.setattr(WriterCore, "begin_change", begin_change)


def one_negative_too_few(patch: pytest.MonkeyPatch) -> None:
    """Rule 12."""
    original = RecoveryCore.__init__

    def init(self: RecoveryCore, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        self._coverage = max(1, self._coverage - 1)

    patch.setattr(RecoveryCore, "__init__", init)


def silence_is_absence(patch: pytest.MonkeyPatch) -> None:
    """Rules 12 and 19."""
    original = RecoveryCore.answered

    def answered(self: RecoveryCore, bookie: Any, first_entry: int, response: Any) -> None:
        if response.status is Status.UNREACHABLE:
            response.status = Status.NO_SUCH_ENTRY
        original(self, bookie, first_entry, response)

    patch.setattr(RecoveryCore, "answered", answered)


def a_close_without_its_version(patch: pytest.MonkeyPatch) -> None:
    """Rule 15."""

    async def close(parts: Any, path: str, node: Any, end: Any) -> Any:
        await parts.store.put(path, encode(end), ANY_VERSION)
        return end

    patch.setattr(recovery, "_close", close)


def found_blocks_that_are_not_written_again(patch: pytest.MonkeyPatch) -> None:
    """Rule 13."""

    def write(self: Any, found: Any, header: Any) -> None:
        asyncio.get_running_loop().call_soon(self.core.written, header.last_entry)

    patch.setattr(_Recovery, "write", write)


def a_block_that_is_confirmed_before_those_before_it(patch: pytest.MonkeyPatch) -> None:
    """Rule 1."""

    def advance(self: WriterCore) -> None:
        complete = [
            each
            for each in self._unconfirmed
            if (each.acks & self._ensemble.counted).bit_count() >= self.ack_quorum
        ]
        if self.state is State.STEADY and complete:
            while self._unconfirmed.pop(0) is not complete[-1]:
                pass
            self.last_confirmed = complete[-1].last_entry
            self._effects.confirmed(self.last_confirmed)

    patch.setattr(WriterCore, "advance", advance)


MUTATIONS: list[Callable[[pytest.MonkeyPatch], None]] = [
    no_fencing_at_all,
    confirming_during_a_change,
    acks_of_replaced_bookies_count,
    a_fragment_that_begins_too_late,
    one_negative_too_few,
    silence_is_absence,
    a_close_without_its_version,
    found_blocks_that_are_not_written_again,
    a_block_that_is_confirmed_before_those_before_it,
]


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.__name__)
def test_the_histories_notice(mutation, monkeypatch, caplog):
    caplog.set_level(logging.CRITICAL)
    mutation(monkeypatch)
    for seed in range(SEEDS):
        try:
            asyncio.run(asyncio.wait_for(histories.History(seed).run(), 20))
        except Exception as error:
            print(f"seed {seed}: {type(error).__name__} {error}"[:300])
            return
    raise AssertionError(f"{mutation.__name__} survives {SEEDS} histories")
