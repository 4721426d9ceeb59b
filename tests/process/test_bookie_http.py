"""Who asks a bookie for what it tells of itself must be a superuser, where people log in; probes are for everybody."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
from aiohttp.test_utils import TestClient, TestServer

from quire.process.bookie import BookieProcessSettings
from quire.process.bookie_http import advertised_http, make_app
from quire.process.parts import Process
from quire.process.settings import LoadedSettings
from quire.runtime.findings import error
from quire.runtime.machine import Machine
from quire.runtime.member import DOCTOR, SUPPORT, Member
from quire.runtime.metrics import Values
from quire.runtime.probes import Scrapes
from tests.cli.running import quire


class Bookie:
    def why_not_ready(self) -> Sequence[str]:
        return []

    def warnings(self) -> Sequence[str]:
        return []

    def metrics(self) -> Values:
        return {"quire_bookie_ledgers": 7}


class Client:
    def __init__(self, client: TestClient, folder: Path) -> None:
        self._client = client
        self._folder = folder

    async def status(self, path: str, role: str = "") -> int:
        headers = {}
        if role:
            made = quire("tokens", "create", role, "--secret-key", str(self._folder / "key"))
            headers = {"Authorization": f"Bearer {made.out.strip()}"}
        async with self._client.get(path, headers=headers) as answer:
            await answer.read()
            return answer.status


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[Client]:
    assert quire("tokens", "create-key", str(tmp_path / "key")).code == 0
    file = tmp_path / "security.toml"
    file.write_text(
        "[authentication.token]\nsecret_key = 'key'\n[authorization]\nsuperusers = ['admin']\n"
        "[audit]\nfile = 'audit.jsonl'\n"
    )
    own = BookieProcessSettings(security=str(file))
    async with Process("bookie", LoadedSettings(()), own) as process:
        node = Bookie()
        app = make_app(node, Scrapes([node.metrics]), Member("bookie", "b:1"), process)
        async with TestClient(TestServer(app)) as made:
            yield Client(made, tmp_path)


@pytest.mark.parametrize("path", [DOCTOR, SUPPORT])
async def test_only_superusers_are_told(client: Client, path: str) -> None:
    assert await client.status(path) == 401
    assert await client.status(path, "app") == 403
    assert await client.status(path, "admin") == 200
    assert await client.status("/metrics") == await client.status("/health") == 200


async def test_refusals_are_in_the_audit_file(client: Client, tmp_path: Path) -> None:
    for role in ("", "app", "admin"):
        await client.status(SUPPORT, role)
    lines = [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
    assert [(line["event"], line["role"]) for line in lines] == [("login-failed", ""), ("denied", "app")]
    assert {line["action"] for line in lines} == {"HTTP"} and all(line["address"] for line in lines)


@pytest.mark.parametrize(
    ("http_url", "address", "told"),
    [
        ("", "bookie-1:3181", ""),
        ("http://0.0.0.0:8000", "bookie-1:3181", "http://bookie-1:8000"),
        ("http://127.0.0.1:8000", "127.0.0.1:3181", "http://127.0.0.1:8000"),
        ("http://127.0.0.1:8000", "bookie-1:3181", ""),
        ("https://10.0.0.7:8000", "bookie-1:3181", "https://10.0.0.7:8000"),
    ],
)
def test_brokers_are_told_a_port_that_they_can_reach(http_url: str, address: str, told: str) -> None:
    assert advertised_http(http_url, address) == told


async def test_a_check_that_fails_or_hangs_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quire.runtime.member.CHECK_S", 0.05)

    async def fails() -> list[object]:
        raise OSError("no such device")

    async def hangs() -> list[object]:
        await asyncio.sleep(60)
        return []

    async def finds() -> list[object]:
        return [error("it burns", "pour water")]

    asked = 0

    async def counts() -> list[object]:
        nonlocal asked
        asked += 1
        return []

    member = Member(
        "bookie", "b:1", checks={"a count": counts, "a disk": fails, "a mount": hangs, "fire": finds}
    )  # type: ignore[dict-item]
    first, second = await asyncio.gather(member.doctor(), member.doctor())
    assert first == second and asked == 1, "who asks at the same time gets the same answer"
    found = [one["what"] for one in first["findings"]]
    assert found == [
        "checking a disk failed: no such device", "checking a mount takes more than 0.05 s", "it burns"
    ]  # fmt: skip


async def test_a_disk_that_hangs_keeps_one_thread_however_often_one_asks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("quire.runtime.member.CHECK_S", 0.05)
    hangs, former = threading.Event(), {*threading.enumerate()}
    machine = Machine()
    monkeypatch.setattr(Machine, "findings", lambda _: hangs.wait(60.0) or [])
    member = Member("bookie", "b:1", machine=machine)
    for _ in range(3):
        (one,) = (await member.doctor())["findings"]
        assert one["what"] == "checking this machine takes more than 0.05 s"
    assert len({*threading.enumerate()} - former) == 1
    hangs.set()
