"""One rule left out at a time: what then happens, and within which bounds it must be seen.

An omission that the world keeps is a word in `World.omitted`; one that a core keeps is a patch of that core. The bounds
are the smallest in which a counter-example was found: they say what it takes (two bookies that fail, two recoveries,
a restart, ...).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from quire.ledger.recovery_core import RecoveryCore
from quire.ledger.writer_core import Ensemble, State, WriterCore
from tests.model.world import Bounds

Patch = tuple[type[Any], str, Callable[..., Any]]


def _confirming_during_a_change() -> Patch:
    original = WriterCore.advance

    def advance(core: WriterCore) -> None:
        changing = core.state is State.CHANGING
        if changing:
            core.state = State.STEADY
        original(core)
        if changing and core.state is State.STEADY:
            core.state = State.CHANGING

    return WriterCore, "advance", advance


def _acks_of_replaced_bookies() -> Patch:
    original = Ensemble.enter

    def enter(self: Ensemble, core: WriterCore, kept: Any, added: Any) -> Any:
        before = self.counted
        fresh = original(self, core, kept, added)
        self.counted |= before
        return fresh

    return Ensemble, "enter", enter


def _fragment_behind_what_was_added() -> Patch:
    original = WriterCore.begin_change

    def begin_change(core: WriterCore, replacements: Any) -> None:
        confirmed, core.last_confirmed = core.last_confirmed, core.last_added
        original(core, replacements)
        core.last_confirmed = confirmed

    return WriterCore, "begin_change", begin_change


def _confirming_out_of_order() -> Patch:
    def advance(core: WriterCore) -> None:
        complete = [
            each
            for each in core._unconfirmed
            if (each.acks & core._ensemble.counted).bit_count() >= core.ack_quorum
        ]
        if core.state is State.STEADY and complete:
            while core._unconfirmed.pop(0) is not complete[-1]:
                pass
            core.last_confirmed = complete[-1].last_entry
            core._effects.confirmed(core.last_confirmed)

    return WriterCore, "advance", advance


def _one_ack_is_enough() -> Patch:
    original = WriterCore.__init__

    def init(core: WriterCore, *arguments: Any, **keywords: Any) -> None:
        original(core, *arguments, **keywords)
        core.ack_quorum -= 1

    return WriterCore, "__init__", init


def _one_negative_too_few() -> Patch:
    original = RecoveryCore.__init__

    def init(core: RecoveryCore, *arguments: Any, **keywords: Any) -> None:
        original(core, *arguments, **keywords)
        core._coverage -= 1

    return RecoveryCore, "__init__", init


def _beginning_before_the_last_fragment() -> Patch:
    original = RecoveryCore.__init__

    def init(core: RecoveryCore, *arguments: Any, **keywords: Any) -> None:
        original(core, *arguments, **keywords)
        core._first_entry = 0

    return RecoveryCore, "__init__", init


def _nothing_is_found() -> Patch:
    """As many bookies as a negative takes were heard, and not all of them have the block: taken for absent."""
    original = RecoveryCore._read

    def read(core: RecoveryCore, bookie: Any, response: Any) -> None:
        core._answers[bookie] = response
        found = [each for each in core._answers.values() if each.blocks]
        if len(found) >= core._coverage:
            original(core, bookie, response)
        elif len(core._answers) >= core._coverage:
            core._end() if core.lac < core._entry else core._stop(core._unknown("it"))

    return RecoveryCore, "_read", read


@dataclass(frozen=True)
class Omission:
    """`rule` is its number; `without` says what is not done any more."""

    name: str
    rule: str
    bounds: Bounds
    patch: Callable[[], Patch] | None = None

    @property
    def words(self) -> frozenset[str]:
        """What the world leaves out; nothing when a core does."""
        return frozenset() if self.patch else frozenset({self.name})

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The cores, for as long as this lasts, without the rule."""
        if self.patch is None:
            yield
            return
        where, name, mistake = self.patch()
        with patch.object(where, name, mistake):
            yield


QUICK = Bounds(prompt=True)
TWO = Bounds(entries=2, prompt=True)
RACE = Bounds(recoveries=2, prompt=True)
CHANGE = Bounds(bookies=4, timeouts=1, prompt=True)

OMISSIONS = (
    Omission("confirming a prefix", "1", Bounds(entries=2), _confirming_out_of_order),
    Omission("waiting for Qa acks", "1", QUICK, _one_ack_is_enough),
    Omission(
        "acks per generation",
        "2, 3",
        Bounds(bookies=4, entries=2, timeouts=1, recoveries=0),
        _acks_of_replaced_bookies,
    ),
    Omission(
        "waiting for the change",
        "3",
        Bounds(bookies=4, entries=2, timeouts=1, recoveries=0, prompt=True),
        _confirming_during_a_change,
    ),
    Omission("fragments from the LAC", "3", CHANGE, _fragment_behind_what_was_added),
    Omission("fences", "8", QUICK),
    Omission("fencing reads", "9", QUICK),
    Omission("durable fences", "10", Bounds(restarts=1, prompt=True)),
    Omission(
        "the last fragment",
        "11",
        Bounds(bookies=4, entries=2, timeouts=1, prompt=True),
        _beginning_before_the_last_fragment,
    ),
    Omission("enough negatives", "12", QUICK, _one_negative_too_few),
    Omission("one copy is enough to exist", "12", QUICK, _nothing_is_found),
    Omission("errors", "12, 19", Bounds(timeouts=1, prompt=True)),
    Omission("writing again", "13", QUICK),
    Omission(
        "unpublished ensembles", "14", Bounds(bookies=4, entries=2, recoveries=2, timeouts=1, prompt=True)
    ),
    Omission("closing by version", "15", RACE),
    Omission("durable blocks", "17", Bounds(restarts=1, prompt=True)),
    Omission("identity", "18", Bounds(wipes=1, prompt=True)),
)
