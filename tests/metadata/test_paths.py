"""Names of any kind become one component each, and come back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.metadata import paths
from quire.metadata.tree import assert_path


@given(st.text(min_size=1))
def test_any_name_is_one_component_and_comes_back(name: str) -> None:
    if any(0xD800 <= ord(char) <= 0xDFFF for char in name):
        return
    component = paths.encode(name)
    assert "/" not in component
    assert component not in (".", "..")
    assert paths.decode(component) == name
    assert_path(paths.topic("t", "n", name))


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (paths.topic("t", "n", "a/b"), "/quire/topics/t/n/persistent/a%2Fb"),
        (paths.manifest(paths.topic("t", "n", "x"), "77"), "/quire/manifests/t/n/persistent/x-77"),
        (paths.ledger(0xABCD), "/quire/ledgers/cd/000000000000abcd"),
        (paths.policies("t", "n", "x"), "/quire/policies/t/n/x"),
        (paths.policies("t", "n", "x", "non-persistent"), "/quire/policies/t/n:non-persistent/x"),
        (paths.policies("t", "n:non-persistent", "x"), "/quire/policies/t/n%3Anon-persistent/x"),
        (paths.schemas("t", "n", "x"), "/quire/schemas/t/n/x"),
        (paths.schemas("t", "n", "x", "non-persistent"), "/quire/schemas/t/n:non-persistent/x"),
        (
            paths.schema_body(paths.schemas("t", "n", "x", "non-persistent"), "7"),
            "/quire/schema-bodies/t/n:non-persistent/x-7",
        ),
        (paths.topic("t", "n", ".."), "/quire/topics/t/n/persistent/%2E%2E"),
    ],
)
def test_where_records_lie(made: str, expected: str) -> None:
    assert made == expected
