"""The two cores as stories in text: `scenarios/*.txt` has events at the margin and, indented, what the core does.

`QUIRE_REWRITE=1 pytest tests/ledger/test_scenarios.py` writes the effects that the cores have now into the files; read
the diff. Bookies are letters; `A#3` is the third place that was ever given in the ensemble, held by A. A block is
`first-last`.

    writer A B C ack 2 [changes 3]     a writer on that ensemble
    add 0-4                            the next block
    A#1 OK 0-4 5-5                     an answer of one bookie to some blocks, in one response
    change D                           the delay is over; these replacements were found
    committed | conflict               what the metadata store said

    recover A B C ack 2 from 5 [accept loss]    the last fragment begins with entry 5
    A none lac 4                       an explicit "no such entry"
    A has 5-9 10-10 lac 4              blocks
    A IO_ERROR                         anything else
    A@5 none                           an answer to an earlier read
    written 10                         the ack quorum holds everything up to 10
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from quire.ledger import states
from quire.ledger.recovery_core import BEYOND, RecoveryCore
from quire.ledger.writer_core import Pending, Replica, WriterCore
from quire.runtime.errors import Fenced, QuireError
from quire.wire import block
from quire.wire.bookie import BookieId, ReadResponse, Status

SCENARIOS = sorted(Path(__file__).parent.joinpath("scenarios").glob("*.txt"))


@pytest.mark.parametrize("file", SCENARIOS, ids=lambda file: file.stem)
def test_scenario(file):
    told = file.read_text()
    played = play(told)
    if os.environ.get("QUIRE_REWRITE"):
        file.write_text(played)
    assert played == told


def play(text: str) -> str:
    """The same events and comments, with the effects that the core has."""
    lines: list[str] = []
    stage: WriterStage | RecoveryStage | None = None
    for line in text.splitlines():
        if line.startswith("    "):
            continue
        lines.append(line)
        if not line or line.startswith("#"):
            continue
        words = line.split()
        if words[0] == "writer":
            stage = WriterStage(words)
        elif words[0] == "recover":
            stage = RecoveryStage(words)
        else:
            assert stage is not None
            stage.event(words)
        lines += [f"    {effect}" for effect in stage.effects]
        stage.effects.clear()
    return "\n".join(lines) + "\n"


def bookie(letter: str) -> BookieId:
    return BookieId(letter, 1)


def cut(span: str, lac: int = -1) -> block.Buffer:
    first, last = map(int, span.split("-"))
    return block.cut(7, first, lac, 0, first, [b"%d" % entry for entry in range(first, last + 1)])


def span_of(found: block.Buffer) -> str:
    header = block.read_header(found)
    return f"{header.first_entry}-{header.last_entry}"


def option(words: list[str], name: str, default: int) -> int:
    return int(words[words.index(name) + 1]) if name in words else default


class WriterStage:
    def __init__(self, words: list[str]) -> None:
        self.effects: list[str] = []
        self.places: list[Replica] = []
        self.pendings: dict[str, Pending] = {}
        ensemble = [bookie(letter) for letter in words[1 : words.index("ack")]]
        self.core = WriterCore(
            7,
            (states.fragment(0, ensemble),),
            option(words, "ack", 1),
            self,
            changes_max=option(words, "changes", 10),
        )

    def event(self, words: list[str]) -> None:
        if words[0] == "add":
            self.core.add(Pending(cut(words[1]), int(words[1].split("-")[1])))
        elif words[0] == "change":
            self.core.begin_change([bookie(letter) for letter in words[1:]])
        elif words[0] == "committed":
            self.core.change_committed()
        elif words[0] == "conflict":
            self.core.fail(Fenced("ledger 7 was taken over"))
        else:
            [replica] = [place for place in self.places if self.name(place) == words[0]]
            for span in words[2:]:
                self.core.answered(self.pendings[span], replica, Status[words[1]])
            self.core.advance()

    def name(self, replica: Replica) -> str:
        return f"{replica.bookie.uuid}#{replica.bit.bit_length()}"

    def send(self, pending: Pending, replica: Replica) -> None:
        if replica not in self.places:
            self.places.append(replica)
        span = span_of(pending.block)
        self.pendings[span] = pending
        self.effects.append(f"send {span} to {self.name(replica)}")

    def send_later(self, pending: Pending, replica: Replica) -> None:
        self.effects.append(f"send {span_of(pending.block)} to {self.name(replica)} later")

    def confirmed(self, last_entry: int) -> None:
        self.effects.append(f"confirmed {last_entry}")

    def conflict(self, replica) -> None:
        self.core.conflicts(replica.bookie)

    def arm_change(self) -> None:
        self.effects.append("arm a change")

    def commit(self, fragments) -> None:
        told = [f"{each.first_entry}:{''.join(name[0] for name in each.bookies)}" for each in fragments]
        self.effects.append(f"commit {' '.join(told)}")

    def failed(self, error: QuireError) -> None:
        self.effects.append(f"failed {type(error).__name__}: {error}")


class RecoveryStage:
    def __init__(self, words: list[str]) -> None:
        self.effects: list[str] = []
        ensemble = [bookie(letter) for letter in words[1 : words.index("ack")]]
        fragment = states.fragment(option(words, "from", 0), ensemble)
        self.asked = BEYOND
        self.core = RecoveryCore(7, fragment, option(words, "ack", 1), self, accept_loss="loss" in words)
        self.core.start()

    def event(self, words: list[str]) -> None:
        if words[0] == "written":
            self.core.written(int(words[1]))
            return
        letter, _, entry = words[0].partition("@")
        asked = self.asked if not entry else BEYOND if entry == "beyond" else int(entry)
        self.core.answered(bookie(letter), asked, self.response(words))

    def response(self, words: list[str]) -> ReadResponse:
        lac = option(words, "lac", -1)
        if words[1] == "none":
            return ReadResponse(Status.NO_SUCH_ENTRY, lac)
        if words[1] == "has":
            spans = [word for word in words[2:] if "-" in word]
            return ReadResponse(Status.OK, lac, [cut(span) for span in spans])
        return ReadResponse(Status[words[1]], lac, detail=" ".join(words[2:]))

    def read(self, asked: BookieId, first_entry: int) -> None:
        self.asked = first_entry
        place = "beyond" if first_entry == BEYOND else first_entry
        self.effects.append(f"read {place} at {asked.uuid}, fencing")

    def write(self, found: block.Buffer, header: block.BlockHeader) -> None:
        self.effects.append(f"write {span_of(found)} again")

    def end(self, last_entry: int) -> None:
        cut_off = self.core.cut_off
        self.effects.append(f"close at {last_entry}" + (f", giving up {cut_off.damage}" if cut_off else ""))

    def stop(self, error: QuireError) -> None:
        self.effects.append(f"stop, {type(error).__name__}: {error}")
