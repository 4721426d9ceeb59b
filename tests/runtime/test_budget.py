"""The byte budget: what counts, when it is spent, and who is called back."""

from __future__ import annotations

from collections.abc import Callable

from quire.runtime.budget import ByteBudget


def test_gauges_count_beside_what_is_held() -> None:
    budget, memtable = ByteBudget(100), [0]
    budget.add_gauge(lambda: memtable[0])
    budget.take(60)
    assert not budget.is_spent
    memtable[0] = 40
    assert budget.used_bytes == 100
    assert budget.is_spent


def test_waiters_are_called_once_below_three_quarters() -> None:
    budget, calls = ByteBudget(100), []
    budget.take(100)
    budget.when_free(lambda: calls.append("a"))
    budget.when_free(lambda: calls.append("b"))
    budget.give_back(20)
    assert calls == []
    budget.give_back(5)
    assert calls == ["a", "b"]
    budget.give_back(5)
    assert calls == ["a", "b"]


def test_a_fallen_gauge_is_looked_at_when_asked() -> None:
    budget, memtable, calls = ByteBudget(100), [100], []
    budget.add_gauge(lambda: memtable[0])
    budget.when_free(lambda: calls.append("free"))
    memtable[0] = 0
    assert calls == []
    budget.look_again()
    assert calls == ["free"]


def test_who_fills_it_again_at_once_waits_again() -> None:
    budget, calls = ByteBudget(100), []

    def refill() -> None:
        calls.append("refilled")
        budget.take(100)
        if len(calls) < 3:
            budget.when_free(refill)

    budget.take(100)
    budget.when_free(refill)
    for _ in range(3):
        budget.give_back(100)
    assert calls == ["refilled"] * 3


def test_waiters_are_called_in_order_until_the_budget_is_spent_again() -> None:
    budget, calls = ByteBudget(100), []

    def take(name: str) -> Callable[[], None]:
        def callback() -> None:
            calls.append(name)
            budget.take(50)

        return callback

    budget.take(100)
    for name in "abc":
        budget.when_free(take(name))
    budget.give_back(100)
    assert calls == ["a", "b"] and budget.has_waiters
    budget.give_back(20)
    assert calls == ["a", "b"], "three quarters are still held"
    budget.give_back(5)
    assert calls == ["a", "b", "c"] and not budget.has_waiters


def test_a_waiter_that_fails_stops_no_other_waiter() -> None:
    budget, calls = ByteBudget(100), []

    def fail() -> None:
        raise ZeroDivisionError

    budget.take(100)
    budget.when_free(fail)
    budget.when_free(lambda: calls.append("next"))
    budget.give_back(100)
    assert calls == ["next"] and not budget.has_waiters
