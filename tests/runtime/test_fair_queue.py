"""The fair queue: turns, and what is dropped when it is full."""

from __future__ import annotations

from collections import deque
from random import Random

import pytest

from quire.runtime.fair_queue import FairQueue


def drained(queue: FairQueue[str]) -> list[str]:
    return [queue.take() or "" for _ in range(len(queue))]


def test_neighbourhoods_take_turns_and_hosts_within() -> None:
    queue: FairQueue[str] = FairQueue(100)
    for host in ("10.0.0.1", "10.0.0.1", "10.0.0.2", "2001:db8:0:1::1", "2001:db8:0:2::1", "10.0.1.1"):
        queue.put(f"{host} {len(queue)}", f"/{host}:1")
    assert [one.split()[0] for one in drained(queue)] == [
        "10.0.0.1",
        "2001:db8:0:1::1",
        "10.0.1.1",
        "10.0.0.2",
        "2001:db8:0:2::1",
        "10.0.0.1",
    ]
    assert queue.take() is None and len(queue) == 0


def test_a_flood_from_many_networks_of_one_site_drops_its_own() -> None:
    queue: FairQueue[str] = FairQueue(10)
    flood = [queue.put(f"flood {n}", f"/2001:db8:0:{n:x}::1:1") for n in range(1, 30)]
    assert flood[:10] == [None] * 10 and flood[10:] == [f"flood {n}" for n in range(11, 30)]
    assert queue.put("honest", "/192.0.2.1:5") is not None, "one of the flood's"
    assert queue.take() == "flood 1" and queue.take() == "honest"


def test_the_host_with_the_most_of_a_neighbourhood_is_dropped_first() -> None:
    queue: FairQueue[str] = FairQueue(4)
    for n in range(3):
        queue.put(f"busy {n}", "/10.0.0.1:1")
    queue.put("neighbour", "/10.0.0.2:1")
    assert queue.put("second neighbour", "/10.0.0.3:1") == "busy 2"
    assert drained(queue) == ["busy 0", "neighbour", "second neighbour", "busy 1"]


def test_equals_do_not_drop_one_another() -> None:
    queue: FairQueue[str] = FairQueue(3)
    for n in range(3):
        queue.put(f"{n}", f"/10.0.{n}.1:1")
    assert queue.put("late", "/10.0.9.1:1") == "late" and len(queue) == 3


@pytest.mark.parametrize("seed", range(5))
def test_against_a_model(seed: int) -> None:
    """Whatever happens, each item leaves once, and the items of one host in order."""
    rng = Random(seed)
    queue: FairQueue[int] = FairQueue(20)
    there: dict[str, deque[int]] = {}
    for number in range(2_000):
        address = f"/10.0.{rng.randrange(3)}.{rng.randrange(4)}:1"
        action = rng.randrange(3)
        if action == 0 or len(queue) < 10:
            there.setdefault(address, deque()).append(number)
            gone = queue.put(number, address)
        elif action == 1:
            gone = queue.take()
            assert gone is not None and any(line and line[0] == gone for line in there.values())
        else:
            gone = rng.choice([one for line in there.values() for one in line])
            assert queue.remove(gone) and not queue.remove(gone)
        for line in there.values():
            if gone in line:
                line.remove(gone)
        assert len(queue) == sum(map(len, there.values())) <= 20
