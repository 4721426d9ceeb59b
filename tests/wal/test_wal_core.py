"""The writing of a WAL: which blocks share an object, what is under way at once, and what is durable when."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any, cast

import pytest

from quire.runtime.errors import CorruptionError, Fenced, QuireError, Unavailable
from quire.wal import wal_object
from quire.wal.wal_core import Group, WalCore
from quire.wal.wal_object import Header, Tombstone
from quire.wire.bookie import Status

WAL = "0a0b0c0d-0000-4000-8000-000000000007"
BATCH_S, BATCH_BYTES = 0.25, 100


class Writer:
    """A core, and what it asked for. Blocks are words; a waiter's word is heard when it is told."""

    def __init__(self, uploads_max: int = 3) -> None:
        self.core = WalCore(self, batch_s=BATCH_S, batch_bytes=BATCH_BYTES, uploads_max=uploads_max)
        self.delays: list[float] = []
        self.uploads: list[tuple[int, list[str], int]] = []
        """Number, words and confirmed number of each."""
        self.told: list[list[str]] = []
        self.lost: list[str] = []
        self.why: list[QuireError] = []
        self.headers: dict[int, Header] = {}

    def add(self, word: str, size: int = 10, now_s: float = 0.0) -> None:
        self.core.queued([word.encode()], size, self.waiter(word), now_s)

    def waiter(self, word: str) -> Any:
        return word, (Status.OK,)

    # -- WalEffects --
    def arm(self, delay_s: float) -> None:
        self.delays.append(round(delay_s, 6))

    def upload(self, group: Group, confirmed_seq: int) -> None:
        words = [bytes(block).decode() for block in group.blocks]
        self.uploads.append((group.seq, words, confirmed_seq))
        content = wal_object.encode_data(WAL, group.seq, 0, confirmed_seq, 1, [], group.tombstones)
        self.headers[group.seq] = wal_object.read_header(content[0], "x")

    def durable(self, groups: Sequence[Group]) -> None:
        self.told.append(words_of(groups))

    def ended(self, why: QuireError, groups: Sequence[Group]) -> None:
        self.why.append(why)
        self.lost += words_of(groups)


def words_of(groups: Sequence[Group]) -> list[str]:
    return [cast(str, word) for group in groups for word, _ in group.waiters]


# -- which blocks share an object --------------------------------------------------------------------------
def test_a_lone_block_waits_ten_milliseconds_and_a_stream_waits_a_batch() -> None:
    writer = Writer()
    writer.add("lone", now_s=5.0)
    writer.add("with it", now_s=5.005)
    writer.core.due(5.01)
    writer.add("soon after", now_s=5.02)
    writer.core.due(5.26)
    writer.add("a little later", now_s=5.4)
    writer.core.due(5.51)
    writer.add("after a silence", now_s=9.0)
    assert writer.delays == [0.01, 0.24, 0.11, 0.01]
    assert [words for _, words, _ in writer.uploads] == [
        ["lone", "with it"],
        ["soon after"],
        ["a little later"],
    ]


def test_a_timer_that_comes_early_or_for_a_group_that_is_gone_closes_nothing() -> None:
    writer = Writer()
    writer.core.due(0.0)
    writer.add("one", now_s=1.0)
    writer.core.due(1.004)
    assert writer.delays == [0.01, 0.006] and not writer.uploads
    writer.add("large", size=BATCH_BYTES, now_s=1.005)
    writer.core.due(1.01)
    assert [words for _, words, _ in writer.uploads] == [["one"], ["large"]]


def test_a_full_group_waits_for_nothing() -> None:
    writer = Writer()
    for word in "abcdefghij":
        writer.add(word)
    assert writer.uploads == [(0, list("abcdefghij"), -1)]
    writer.add("larger than a group", size=3 * BATCH_BYTES)
    assert writer.uploads[1][1] == ["larger than a group"]


def test_what_does_not_fit_begins_the_next_object() -> None:
    writer = Writer()
    writer.add("small")
    writer.add("nearly full", size=95)
    assert writer.uploads == [(0, ["small"], -1)]


def test_a_seal_closes_the_group_and_tells_its_number() -> None:
    writer = Writer()
    assert writer.core.seal() == -1
    writer.add("before")
    assert writer.core.seal() == 0
    assert writer.core.seal() == 0
    writer.add("behind")
    assert writer.core.seal() == 1
    assert [words for _, words, _ in writer.uploads] == [["before"], ["behind"]]


def test_a_tombstone_rides_with_the_blocks_of_its_time() -> None:
    writer = Writer()
    writer.core.deleted(Tombstone(7, 3), writer.waiter("deleted"), 1.0)
    writer.add("block", now_s=1.001)
    writer.core.due(1.01)
    assert writer.headers[0].tombstone_count == 1
    writer.core.uploaded(0)
    assert writer.told == [["deleted", "block"]]


# -- the window, and what is durable when --------------------------------------------------------------------
def test_only_a_prefix_is_durable_and_it_is_told_in_one_turn() -> None:
    writer = Writer()
    for word in "abc":
        writer.add(word, size=BATCH_BYTES)
    writer.core.uploaded(2)
    writer.core.uploaded(1)
    assert (writer.told, writer.core.durable_seq) == ([], -1)
    writer.core.uploaded(0)
    assert (writer.told, writer.core.durable_seq) == ([["a", "b", "c"]], 2)
    assert writer.core.seal() == 2, "nothing is left"


def test_the_window_is_one_of_numbers_so_that_later_objects_know_the_earlier_durable() -> None:
    writer = Writer(uploads_max=3)
    for word in "abcdef":
        writer.add(word, size=BATCH_BYTES)
    assert [seq for seq, *_ in writer.uploads] == [0, 1, 2]
    writer.core.uploaded(1)
    writer.core.uploaded(2)
    assert len(writer.uploads) == 3, "one upload is under way, but the window is full"
    writer.core.uploaded(0)
    assert writer.uploads[3:] == [(3, ["d"], 2), (4, ["e"], 2), (5, ["f"], 2)]


def test_while_the_window_is_full_the_open_group_goes_on_gathering() -> None:
    writer = Writer(uploads_max=1)
    writer.add("first", size=BATCH_BYTES, now_s=1.0)
    writer.add("late", now_s=1.1)
    writer.core.due(1.4)
    writer.add("later", now_s=1.5)
    assert len(writer.uploads) == 1
    writer.core.uploaded(0)
    assert writer.uploads[1:] == [(1, ["late", "later"], 0)]
    writer.core.uploaded(1)
    assert writer.told == [["first"], ["late", "later"]]


def test_a_barrier_waits_for_what_was_queued_last_wherever_it_is() -> None:
    writer = Writer(uploads_max=1)
    assert not writer.core.barrier(writer.waiter("nothing"))
    for word in ("under way", "in line"):
        writer.add(word, size=BATCH_BYTES)
    assert writer.core.barrier(writer.waiter("barrier"))
    writer.add("open")
    assert writer.core.barrier(writer.waiter("another"))
    writer.core.seal()
    for seq in range(3):
        writer.core.uploaded(seq)
    assert writer.told == [["under way"], ["in line", "barrier"], ["open", "another"]]


# -- names that are taken, and the end ----------------------------------------------------------------------
def test_a_name_that_is_taken_by_the_same_object_means_that_an_answer_was_lost() -> None:
    writer = Writer()
    writer.add("a", size=BATCH_BYTES)
    writer.core.taken(0, writer.headers[0], writer.headers[0])
    assert writer.told == [["a"]] and writer.core.failure is None


def test_a_fence_ends_it_for_all_that_waits_in_order() -> None:
    writer = Writer(uploads_max=2)
    for word in "abc":
        writer.add(word, size=BATCH_BYTES)
    writer.add("open")
    writer.core.uploaded(1)
    fence = wal_object.read_header(wal_object.encode_fence(WAL, 0, 5, "b"), "x")
    writer.core.taken(0, writer.headers[0], fence)
    assert isinstance(writer.core.failure, Fenced)
    assert (writer.told, writer.lost) == ([], ["a", "b", "c", "open"])
    writer.core.uploaded(1)
    writer.core.due(9.0)
    writer.core.end(Unavailable("again"))
    assert (writer.told, len(writer.why), len(writer.uploads)) == ([], 1, 2)


@pytest.mark.parametrize("wrong", ["bytes", "wal", "seq", "fence of another"])
def test_a_name_that_is_taken_by_anything_else_ends_it(wrong: str) -> None:
    writer = Writer()
    writer.add("a", size=BATCH_BYTES)
    ours = writer.headers[0]
    fence = wal_object.read_header(wal_object.encode_fence(WAL, 4, 5, "b"), "x")
    found = {
        "bytes": ours._replace(header_crc=ours.header_crc ^ 1),
        "wal": ours._replace(wal=WAL.replace("7", "8")),
        "seq": ours._replace(seq=1),
        "fence of another": fence,
    }[wrong]
    writer.core.taken(0, ours, found)
    assert isinstance(writer.core.failure, CorruptionError) and writer.lost == ["a"]


# -- all of it -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("seed", range(200))
def test_whatever_the_order_of_answers_each_block_is_in_one_object_and_told_in_order(seed: int) -> None:
    rng = Random(seed)
    writer = Writer(uploads_max=rng.randint(1, 4))
    added: list[str] = []
    unanswered: list[int] = []
    now_s, seen = 0.0, 0
    for number in range(rng.randint(1, 80)):
        now_s += rng.expovariate(20)
        what = rng.random()
        if what < 0.6:
            added.append(f"w{number}")
            writer.add(added[-1], size=rng.choice((1, 30, 60, 130)), now_s=now_s)
        elif what < 0.7:
            writer.core.seal()
        elif what < 0.85:
            writer.core.due(now_s)
        unanswered += [seq for seq, *_ in writer.uploads[seen:]]
        seen = len(writer.uploads)
        assert len(unanswered) <= writer.core._uploads_max
        while unanswered and rng.random() < 0.3:
            writer.core.uploaded(unanswered.pop(rng.randrange(len(unanswered))))
            unanswered += [seq for seq, *_ in writer.uploads[seen:]]
            seen = len(writer.uploads)
    last_seq = writer.core.seal()
    while writer.core.durable_seq < last_seq:
        unanswered += [seq for seq, *_ in writer.uploads[seen:]]
        seen = len(writer.uploads)
        writer.core.uploaded(unanswered.pop(rng.randrange(len(unanswered))))
    assert [seq for seq, *_ in writer.uploads] == list(range(len(writer.uploads)))
    assert [word for _, words, _ in writer.uploads for word in words] == added
    assert [word for words in writer.told for word in words] == added
    assert all(seq - confirmed <= writer.core._uploads_max for seq, _, confirmed in writer.uploads)
