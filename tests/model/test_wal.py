"""The model of a write-ahead log on object storage, within small bounds: nothing is lost, and each law is needed."""

from __future__ import annotations

import pytest

from tests.model.wal import OMISSIONS, SMALL, Bounds, search


@pytest.mark.parametrize("bounds", SMALL, ids=str)
def test_nothing_is_lost_and_one_end_is_told_in_any_order(bounds: Bounds) -> None:
    found = search(bounds)
    assert not found.wrong, f"{found.wrong}: {found.history}"
    assert found.states > 3_000, "too little can happen"


@pytest.mark.parametrize("name", OMISSIONS)
def test_without_a_law_something_goes_wrong(name: str) -> None:
    with OMISSIONS[name]():
        found = search(Bounds(closers=1), frozenset([name]))
    assert found.wrong and len(found.history) > 2


def test_two_who_close_tell_two_ends_where_versions_do_not_count() -> None:
    found = search(Bounds(objects=1, late=0), frozenset(["a close without version"]))
    assert "two ends" in found.wrong or "gone" in found.wrong
