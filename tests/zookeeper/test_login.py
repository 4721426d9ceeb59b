"""A user and a password to ZooKeeper: what a cluster keeps there is for its processes alone."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError
from kazoo.security import ACL, Id, Permissions

from quire.metadata.open import open_store
from quire.metadata.store import Create, SessionEvent
from quire.metadata.zookeeper import ZooKeeperStore
from quire.runtime.credentials import NOBODY, Credentials
from quire.runtime.errors import ConfigurationError, Unavailable
from quire.security.configuration import load
from tests.cluster.zookeeper import ZooKeeper


def login(folder: Path, password: str, user: str = "quire") -> Credentials:
    """As the security file has it."""
    (folder / f"{password}.txt").write_text(f"{password}\n")
    file = f'[metadata]\nuser = "{user}"\npassword_file = "{password}.txt"\n'
    (folder / "security.toml").write_text(file)
    return load(str(folder / "security.toml")).metadata.login


@contextmanager
def somebody(url: str, **who: object) -> Iterator[tuple[KazooClient, str]]:
    """Another client of that ZooKeeper, and the chroot."""
    host, _, chroot = url.removeprefix("zk://").partition("?")[0].partition("/")
    client = KazooClient(hosts=host, **who)
    client.start()
    try:
        yield client, f"/{chroot}"
    finally:
        client.stop()
        client.close()


async def test_nobody_else_reads_or_changes_what_is_there(zookeeper: ZooKeeper, tmp_path: Path) -> None:
    url = zookeeper.fresh_url()
    ours = await open_store(url, login=login(tmp_path, "secret"))
    await ours.create("/a/b", b"x")
    await ours.create("/a/lease", b"", ephemeral=True)
    await ours.create("/a/number-", b"", sequential=True)
    await ours.transact([Create("/c/d", b"y")])
    with somebody(url) as (stranger, chroot):
        for path in ("", "/a", "/a/b", "/a/lease", "/a/number-0000000002", "/c", "/c/d"):
            full = chroot + path
            for ask in (stranger.get, stranger.get_children, lambda full: stranger.set(full, b"mine")):
                with pytest.raises(NoAuthError):
                    ask(full)
            if "lease" not in path:
                with pytest.raises(NoAuthError):
                    stranger.create(f"{full}/mine")
        with pytest.raises(NoAuthError):
            stranger.delete(f"{chroot}/c/d")
    await ours.close()


async def test_another_process_with_the_password_is_let_in_and_one_with_another_is_not(
    zookeeper: ZooKeeper, tmp_path: Path
) -> None:
    url = zookeeper.fresh_url()
    ours = await open_store(url, login=login(tmp_path, "secret"))
    await ours.create("/a/b", b"x")
    again = await open_store(url, login=login(tmp_path, "secret"))
    assert await again.put("/a/b", b"z", 0) == 1
    for wrong in (login(tmp_path, "guessed"), login(tmp_path, "secret", "other")):
        with pytest.raises(ConfigurationError, match=r"\[metadata\], the user and password"):
            await open_store(url, login=wrong)
    without = await open_store(url)
    with pytest.raises(ConfigurationError, match=r"\[metadata\], the user and password"):
        await without.get("/a/b")
    for one in (ours, again, without):
        await one.close()


async def test_a_tree_that_was_made_without_a_password_is_told_of(
    zookeeper: ZooKeeper, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    url = zookeeper.fresh_url()
    before = await open_store(url)
    await before.create("/a", b"x")
    await before.close()
    for expected in (True, False):
        caplog.clear()
        with caplog.at_level(logging.WARNING, "quire.metadata"):
            ours = await open_store(url, login=login(tmp_path, "secret"))
        assert ("open to all clients" in caplog.text) is expected
        assert (await ours.get("/a")).value == b"x"
        await ours.close()
        with somebody(url, auth_data=[("digest", "quire:secret")]) as (operator, chroot):
            for path in (chroot, f"{chroot}/a"):  # as `setAcl -R` does
                operator.set_acls(path, [ACL(Permissions.ALL, Id("auth", ""))])
    closed = await open_store(url)
    with pytest.raises(ConfigurationError):
        await closed.get("/a")
    await closed.close()


async def test_a_new_session_logs_in_again(zookeeper: ZooKeeper, tmp_path: Path) -> None:
    url = zookeeper.fresh_url("2s")
    ours = await ZooKeeperStore.open(url, login=login(tmp_path, "secret"))
    await ours.create("/a", b"x")
    lost = asyncio.Event()
    ours.on_session(lambda event: lost.set() if event is SessionEvent.LOST else None)
    ours.give_up_session()
    async with asyncio.timeout(30):
        await lost.wait()
        while True:
            try:
                assert (await ours.get("/a")).value == b"x"
                break
            except Unavailable:
                await asyncio.sleep(0.05)
    await ours.close()


@pytest.mark.parametrize(
    "table", ['user = "quire"', 'password_file = "password"', 'user = "a:b"\npassword_file = "password"']
)
def test_half_a_login_is_refused(tmp_path: Path, table: str) -> None:
    (tmp_path / "security.toml").write_text(f"[metadata]\n{table}\n")
    with pytest.raises(ConfigurationError, match=r"\[metadata\] needs both user"):
        load(str(tmp_path / "security.toml"))


def test_without_the_table_nobody_logs_in(tmp_path: Path) -> None:
    (tmp_path / "security.toml").write_text("")
    assert load(str(tmp_path / "security.toml")).metadata.login == NOBODY
