"""The balance of load, as a core: what moves, and above all what does not."""

from __future__ import annotations

import random

from quire.serving.ownership.balance import LAG_S, SLACK, Balancer, least_loaded, unfit


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


def test_what_is_too_much_to_be_moved_is_split_and_then_its_parts_move():
    balancer = Balancer("a", 10)
    loads: dict[str, dict[str, float]] = {"a": {"hot": 10_000.0}, "b": {}}
    assert looks(balancer, loads) == [] and balancer.to_split(loads, 1.0, {"hot"}) == "hot"
    loads["a"] = {"hot-low": 5_000.0, "hot-high": 5_000.0}
    assert balancer.to_split(loads, 2.0, {"hot-low", "hot-high"}) is None, "there is something to move now"
    assert balancer.plan(loads, 2.0, recent=("hot-low", "hot-high")) == []
    assert len(balancer.plan(loads, 200.0)) == 1


def test_one_topic_is_not_split_and_one_look_is_not_enough():
    loads: dict[str, dict[str, float]] = {"a": {"hot": 10_000.0}, "b": {}}
    balancer = Balancer("a", 10)
    assert balancer.plan(loads, 0.0) == [] and balancer.to_split(loads, 0.0, {"hot"}) is None
    assert balancer.plan(loads, 3.0) == [] and balancer.to_split(loads, 3.0, set()) is None
    alone = Balancer("a", 10)
    assert (
        looks(alone, {"a": {"hot": 1e6}}) == [] and alone.to_split({"a": {"hot": 1e6}}, 3.0, {"hot"}) is None
    )


def test_splits_come_out_of_the_same_budget():
    balancer = Balancer("a", 3)
    loads: dict[str, dict[str, float]] = {"a": {"hot": 10_000.0}, "b": {}}
    splits = [balancer.plan(loads, now) or balancer.to_split(loads, now, {"hot"}) for now in range(0, 60, 3)]
    assert sum(one == "hot" for one in splits) == 3


def test_a_broker_that_lags_gives_away_its_largest_bundle_again_and_again():
    balancer, loads = Balancer("a", 10), {"a": {"x": 5.0, "y": 9.0}, "b": {"z": 900.0}}
    lags = {"a": LAG_S, "b": 0.01}
    given = {now: balancer.to_relieve(loads, lags, float(now)) for now in range(0, 301, 3)}
    assert {now for now, bundle in given.items() if bundle} == {90, 180, 270}
    assert given[90] == "y"


def test_a_stall_or_a_machine_that_is_slow_for_all_moves_nothing():
    balancer, loads = Balancer("a", 10), {"a": {"x": 5.0}, "b": {"z": 900.0}}
    for now in range(0, 1_000, 3):
        lag = LAG_S if now % 90 < 60 else 0.0
        assert balancer.to_relieve(loads, {"a": lag, "b": 0.0}, float(now)) is None
    for now in range(1_000, 2_000, 3):
        assert balancer.to_relieve(loads, {"a": LAG_S, "b": LAG_S}, float(now)) is None
    assert balancer.to_relieve({"a": {"x": 5.0}}, {"a": LAG_S}, 3_000.0) is None


def test_a_broker_that_cannot_write_gives_up_after_a_while_unless_nobody_can():
    balancer = Balancer("a", 10)
    assert [balancer.must_give_up({"a"}, now) for now in (0.0, 4.9, 5.0, 6.0)] == [False, False, True, True]
    assert not balancer.must_give_up(unfit("ab", "ab"), 7.0), "nobody can"
    assert not balancer.must_give_up(unfit("ab", "a"), 8.0), "the time begins anew"
    assert balancer.must_give_up(unfit("ab", "a"), 13.0)
    assert not Balancer("b", 10).must_give_up(unfit("ab", "a"), 100.0)


def test_who_is_unfit():
    assert unfit("abc", "a") == {"a"}
    assert unfit("abc", ("a", "b", "gone")) == {"a", "b"}
    assert unfit("ab", ("a", "b")) == unfit("a", "a") == unfit("a", ()) == set()
