"""How many connections there are: of an address, of a role, and of those who have not logged in."""

from __future__ import annotations

import pytest

from quire.runtime.errors import TooMany
from quire.security import connections as module
from quire.security.configuration import Limits
from quire.security.connections import Connections
from quire.security.identity import Identity

FAR = "/192.0.2.1:4711"


def identity(role: str, original: str = "") -> Identity:
    return Identity(role, "token", original=original)


def test_the_oldest_that_has_not_logged_in_goes_for_a_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOGGING_IN_MAX", 3)
    table: Connections[int] = Connections(100, Limits())
    assert [table.came(number, FAR) for number in range(3)] == [None] * 3
    table.logged_in(0, None)
    assert table.came(3, FAR) is None
    assert table.came(4, FAR) == 1, "0 has logged in"
    assert list(table) == [0, 2, 3, 4] and table.logging_in == 3 and table.total == 5
    table.logged_in(1, None)  # it had to go while its credentials were looked at
    table.left(1)
    assert list(table) == [0, 2, 3, 4] and table.logging_in == 3


def test_a_flood_from_one_network_closes_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOGGING_IN_MAX", 3)
    table: Connections[int] = Connections(100, Limits())
    table.came(0, "/192.0.2.9:1")
    flood = [table.came(number, f"/[2001:db8:0:{number:x}::1]:1") for number in range(1, 9)]
    assert flood == [None, None, 1, 2, 3, 4, 5, 6] and list(table) == [0, 7, 8]


def test_silent_ones_do_not_take_the_last_connections() -> None:
    table: Connections[int] = Connections(3, Limits())
    for number in range(3):
        table.came(number, FAR)
    table.logged_in(1, None)
    assert table.came(3, FAR) == 0
    assert table.came(4, FAR) == 2
    table.logged_in(3, None)
    table.logged_in(4, None)
    with pytest.raises(TooMany) as refused:
        table.came(5, FAR)
    assert refused.value.limit == "connections" and len(table) == 3
    table.left(4)
    assert table.came(6, FAR) is None


def test_an_address_has_so_many_logged_in_or_not() -> None:
    table: Connections[int] = Connections(100, Limits(connections_per_address=2))
    table.came(1, FAR)
    table.came(2, FAR)
    table.logged_in(1, None)
    with pytest.raises(TooMany, match=r"2 connections from 192\.0\.2\.1") as refused:
        table.came(3, FAR)
    assert refused.value.limit == "connections_per_address" and len(table) == 2
    table.left(3)
    table.came(4, "/192.0.2.2:4711")
    table.left(1)
    table.came(5, FAR)


def test_a_role_has_so_many_and_a_superuser_any_number() -> None:
    table: Connections[int] = Connections(100, Limits(connections_per_role=2), ["admin"])
    for number in range(20):
        table.came(number, FAR)
    table.logged_in(0, identity("app"))
    table.logged_in(1, identity("gateway", "app"))
    with pytest.raises(TooMany, match="2 connections of app") as refused:
        table.logged_in(2, identity("app"))
    assert refused.value.limit == "connections_per_role" and table.logging_in == 18
    with pytest.raises(TooMany):
        table.logged_in(2, identity("admin", "app"))
    table.logged_in(3, identity("other"))
    for number in range(4, 10):
        table.logged_in(number, identity("admin"))
    table.left(1)
    table.logged_in(2, identity("gateway", "app"))


def test_what_comes_through_a_proxy_is_not_its_address_s() -> None:
    table: Connections[int] = Connections(100, Limits(connections_per_address=1))
    for number in range(5):
        table.came(number, FAR)
        table.logged_in(number, identity("gateway", f"app-{number}"))
    table.came(5, FAR)
    with pytest.raises(TooMany):
        table.came(6, FAR)
    for number in range(6):
        table.left(number)
    assert not table and not table._by_address and not table._by_role
