"""Who may publish, as stories in text: `scenarios/*.txt` has what happens at the margin and, indented, what follows.

`QUIRE_REWRITE=1 pytest tests/serving/topic/test_producers.py` writes what happens now into the files; read the diff.
A line names a producer, then what happens to it:

    a shared              it comes (or: exclusive, wait, fence)
    a exclusive had=3     ... and names the topic epoch that it had
    a shared again=1      ... a generated name, and how often the client has reconnected
    a written             its epoch is durable
    a refused             its epoch could not be written
    a leaves
    reload                the topic is loaded again, by what its record says
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.runtime.errors import QuireError
from quire.serving.topic.producers import (
    NO_EPOCH,
    AccessMode,
    Admission,
    ProducerBusy,
    ProducerFenced,
    ProducerPort,
    Producers,
    Stage,
)
from quire.wire.block import Buffer

SCENARIOS = sorted(Path(__file__).parent.joinpath("scenarios").glob("*.txt"))
MODES = {
    "shared": AccessMode.SHARED,
    "exclusive": AccessMode.EXCLUSIVE,
    "wait": AccessMode.WAIT_FOR_EXCLUSIVE,
    "fence": AccessMode.EXCLUSIVE_WITH_FENCING,
}


class Producer:
    def __init__(self, name: str, said: list[str], admission: Admission) -> None:
        self.name = name
        self.admission = admission
        self.said = said

    def write(self, data: Buffer, /) -> None: ...

    def ready(self, last_sequence_id: int) -> None: ...

    def fenced(self, error: QuireError) -> None:
        self.said.append(f"{self.name} is fenced: {error}")

    def replaced(self) -> None:
        self.said.append(f"{self.name} is elsewhere now")

    def close(self, service_url: str = "") -> None:
        self.said.append(f"{self.name} is sent away")


class House:
    """The producers of one topic, and what its record says."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.record = NO_EPOCH
        self.producers = Producers()
        self.named: dict[str, Producer] = {}

    def do(self, words: list[str]) -> None:
        if words == ["reload"]:
            self.producers.close_all()
            self.producers = Producers(self.record)
            return
        name, what, *options = words
        if what in MODES:
            self.come(name, MODES[what], dict(option.split("=") for option in options))
        elif what == "written":
            self.record = max(self.record, self.named[name].admission.topic_epoch)
            told = self.producers.written(self.named[name])
            self.said.append(f"{name} is inside" if told else f"{name} is not told")
        elif what == "refused":
            self.follow(self.producers.refused(self.named[name]))
        else:
            assert what == "leaves", words
            self.follow(self.producers.leave(self.named[name]))

    def come(self, name: str, mode: AccessMode, options: dict[str, str]) -> None:
        again = int(options.get("again", 0))
        had = int(options["had"]) if "had" in options else None
        wish = Producer(name, self.said, Admission(mode, again, "again" not in options, had))
        try:
            granted = self.producers.admit(wish)
        except (ProducerBusy, ProducerFenced) as error:
            self.said.append(f"{type(error).__name__}: {error}")
            assert wish.admission.stage is Stage.OUTSIDE
            return
        self.named[name] = wish
        assert (granted is wish) == (wish.admission.stage is Stage.GRANTED)
        self.follow(granted)
        if granted is None:
            self.said.append(f"{name} is {wish.admission.stage.value}")

    def follow(self, granted: ProducerPort | None) -> None:
        if granted is not None:
            self.said.append(f"{granted.name} is granted epoch {granted.admission.topic_epoch}")


def play(text: str) -> str:
    house = House()
    lines: list[str] = []
    for line in text.splitlines():
        if line.startswith("    "):
            continue
        lines.append(line)
        if line and not line.startswith("#"):
            house.do(line.split())
            lines += [f"    {said}" for said in house.said]
            house.said.clear()
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("file", SCENARIOS, ids=lambda file: file.stem)
def test_scenario(file: Path) -> None:
    told = file.read_text()
    played = play(told)
    if os.environ.get("QUIRE_REWRITE"):
        file.write_text(played)
    assert played == told


EVENTS = st.lists(
    st.tuples(
        st.sampled_from("abcd"),
        st.sampled_from([*MODES, "written", "refused", "leaves", "reload"]),
        st.none() | st.integers(0, 5),
        st.integers(0, 3),
    ),
    max_size=60,
)


@given(EVENTS)
def test_whatever_happens_exclusive_means_alone(events: list[tuple[str, str, int | None, int]]) -> None:
    house = House()
    told_epochs: list[int] = []
    for name, what, had, again in events:
        if what == "reload":
            house.do(["reload"])
        elif what in MODES:
            more = [] if had is None else [f"had={had}"]
            house.do([name, what, *more, *([f"again={again}"] if again else [])])
        elif name in house.named and (what == "leaves" or house.named[name].admission.stage is Stage.GRANTED):
            epoch = house.named[name].admission.topic_epoch
            house.do([name, what])
            if what == "written":
                told_epochs.append(epoch)
        inside = [one for one in house.producers.all() if one.admission.stage is Stage.INSIDE]
        granted = [one for one in house.producers.all() if one.admission.stage is Stage.GRANTED]
        waiting = [one for one in house.producers.all() if one.admission.stage is Stage.WAITING]
        exclusive = [one for one in inside if one.admission.mode is not AccessMode.SHARED]
        assert not (exclusive or granted) or len(inside) + len(granted) == 1
        assert not waiting or inside or granted, "somebody waits for nobody"
    assert told_epochs == sorted(told_epochs)
