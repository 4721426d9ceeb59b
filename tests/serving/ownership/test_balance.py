"""The balance of load, as a core: what moves, and above all what does not."""

from __future__ import annotations

import random

from quire.serving.cluster.balance import SLACK, Balancer, least_loaded


def looks(
    balancer: Balancer, loads: dict[str, dict[str, float]], count: int = 2, now: float = 0.0
) -> list[str]:
    """What is given away in the last of `count` looks."""
    moves: list[str] = []
    for _ in range(count):
        moves = balancer.plan(loads, now)
    return moves


def test_only_the_most_loaded_broker_gives_away():
    loads = {"a": {"x": 500.0, "y": 500.0}, "b": {"z": 900.0}, "c": {}}
    assert looks(Balancer("a", 10), loads) == ["y"]
    assert looks(Balancer("b", 10), loads) == []
    assert looks(Balancer("c", 10), loads) == []


def test_one_look_is_not_enough():
    balancer = Balancer("a", 10)
    loads: dict[str, dict[str, float]] = {"a": {"x": 500.0, "y": 500.0}, "b": {}}
    assert balancer.plan(loads, 0.0) == []
    assert balancer.plan({"a": {"x": 10.0}, "b": {}}, 1.0) == []
    assert balancer.plan(loads, 2.0) == []
    assert balancer.plan(loads, 3.0) == ["y"]


def test_little_is_not_worth_a_move():
    assert looks(Balancer("a", 10), {"a": {"x": SLACK / 2, "y": SLACK / 2}, "b": {}}) == []
    assert looks(Balancer("a", 10), {"a": {"x": 6000.0, "y": 600.0}, "b": {"z": 5500.0}}) == []


def test_a_bundle_that_would_only_change_places_stays():
    assert looks(Balancer("a", 10), {"a": {"hot": 10_000.0}, "b": {}}) == []
    assert looks(Balancer("a", 10), {"a": {"hot": 10_000.0, "small": 40.0}, "b": {}}) == ["small"]


def test_a_broker_alone_keeps_everything():
    assert looks(Balancer("a", 10), {"a": {"x": 1e6, "y": 1e6}}) == []


def test_the_budget_holds_for_any_minute():
    balancer = Balancer("a", 3)
    loads: dict[str, dict[str, float]] = {"a": {f"x{i}": 1000.0 for i in range(40)}, "b": {}}
    moved_at: list[float] = []
    for now in range(0, 300, 3):
        for bundle in balancer.plan(loads, float(now)):
            loads["b"][bundle] = loads["a"].pop(bundle)
            moved_at.append(float(now))
    assert all(b - a >= 60 for a, b in zip(moved_at, moved_at[3:], strict=False))
    assert len(moved_at) > 9


def test_any_start_comes_to_rest_and_no_bundle_moves_back():
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    dice = random.Random(seed)
    for _ in range(50):
        names = [f"b{i}" for i in range(dice.randint(2, 6))]
        loads: dict[str, dict[str, float]] = {name: {} for name in names}
        for bundle in range(dice.randint(1, 60)):
            loads[dice.choice(names[:2])][f"x{bundle}"] = dice.expovariate(1 / 2000)
        balancers = {name: Balancer(name, 1000) for name in names}
        moves = 0
        for now in range(400):
            name = names[now % len(names)]
            spread = max(sum(one.values()) for one in loads.values())
            for bundle in balancers[name].plan(loads, float(now)):
                load = loads[name].pop(bundle)
                totals = {broker: sum(one.values()) for broker, one in loads.items()}
                loads[least_loaded(totals)][bundle] = load
                moves += 1
            assert max(sum(one.values()) for one in loads.values()) <= spread + 1e-6
        assert moves <= 200
        assert not any(looks(Balancer(name, 1000), loads) for name in names)
