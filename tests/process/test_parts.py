"""What every process is made of: parts that end in reverse order, as many open files as it may have connections, and
an HTTP port that keeps nobody who says nothing.
"""

from __future__ import annotations

import asyncio
import resource
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from quire.metadata.cluster import begin_cluster
from quire.metadata.open import open_store
from quire.process.broker import broker, load
from quire.process.gateway import KINDS, gateway
from quire.process.parts import Parts, Process
from quire.process.settings import Given, LoadedSettings
from quire.process.standalone import StandaloneSettings
from quire.runtime import http_server
from tests.cli.running import quire

FREE = {"listen": "127.0.0.1:0", "http": "127.0.0.1:0"}
FEW = 400


@pytest.fixture
async def metadata(tmp_path: Path) -> str:
    url = f"sqlite://{tmp_path}/metadata.db"
    store = await open_store(url)
    await begin_cluster(store, 0)
    await store.close()
    return url


@pytest.fixture
def few_files() -> Iterator[None]:
    now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (FEW, most))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (now, most))


def files_allowed() -> int:
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


async def test_a_broker_may_open_a_file_for_each_connection(metadata: str, few_files: None) -> None:
    async with broker(load(Given({**FREE, "metadata": metadata}, None))):
        assert files_allowed() > FEW


async def test_a_gateway_may_open_two_files_for_each_connection(metadata: str, few_files: None) -> None:
    given = Given({**FREE, "metadata": metadata, "connections_max": "1_000"}, None)
    async with gateway(given.load_all(KINDS)):
        assert files_allowed() >= 3_000


class Noted:
    """A part that says what happens to it."""

    def __init__(self, name: str, told: list[str], *, fails: bool = False) -> None:
        self.name, self.told, self.fails = name, told, fails

    async def start(self) -> None:
        if self.fails:
            raise RuntimeError(self.name)
        self.told.append(f"{self.name} started")

    async def stop(self) -> None:
        self.told.append(f"{self.name} stopped")


async def test_what_was_begun_is_undone_in_reverse_order_when_a_later_part_fails() -> None:
    told: list[str] = []
    with pytest.raises(RuntimeError, match="third"):
        async with Parts() as parts:
            await parts.start(Noted("first", told))
            await parts.start(Noted("second", told))
            await parts.start(Noted("third", told, fails=True))
    assert told == ["first started", "second started", "second stopped", "first stopped"]


@asynccontextmanager
async def http_port(kind: str, metadata: str) -> AsyncIterator[int]:
    """Of a broker or a gateway that runs inside."""
    given = Given({**FREE, "metadata": metadata}, None)
    if kind == "broker":
        async with broker(load(given)) as running:
            yield urlsplit(running.addresses.http_url).port or 0
    else:
        async with gateway(given.load_all(KINDS)) as urls:
            yield urlsplit(urls[1]).port or 0


@pytest.mark.parametrize("kind", ["broker", "gateway"])
async def test_who_says_nothing_over_http_is_closed(
    metadata: str, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(http_server, "HTTP_SILENT_S", 1.0)
    answered = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"
    async with http_port(kind, metadata) as port:
        peers = [await asyncio.open_connection("127.0.0.1", port) for _ in range(4)]
        said = (b"", b"G", b"GET /metrics HTTP/1.1\r\nHost: x\r\n", answered)
        for (_, writer), words in zip(peers, said, strict=True):
            writer.write(words)
        got = await asyncio.wait_for(asyncio.gather(*(reader.read() for reader, _ in peers)), 30)
        assert [one[:12] for one in got] == [b"", b"", b"", b"HTTP/1.1 200"], "and all were closed"
        for _, writer in peers:
            writer.close()


async def test_a_process_without_plain_ports_is_named_by_those_with_tls(tmp_path: Path) -> None:
    """The name that collectors get, `service.instance.id`, was empty for a standalone process."""
    assert quire("certs", "make", str(tmp_path / "certs")).code == 0
    file = tmp_path / "certs" / "security.toml"
    ports = 'plain = false\nlisten = "127.0.0.1:0"\nhttp = "127.0.0.1:0"\n'
    file.write_text(file.read_text().replace("[tls]\n", f"[tls]\n{ports}"))
    own = StandaloneSettings(metadata=f"sqlite://{tmp_path}/metadata.db", security=str(file))
    async with Process("standalone", LoadedSettings(()), own) as process:
        process.listen_for_clients("127.0.0.1:0", "127.0.0.1:0", 10)
        assert process.listeners.clients_tls is not None
        assert process.instance == f"pulsar+ssl://{process.name}"
        assert process.name == process.listeners.clients_tls.address
