"""A segment that only the archive had, and has no more: everybody who asks is told, in words and by the exit code."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pulsar
import pytest

from quire.cli.output import FAILED, TRY_AGAIN
from tests.cli.running import Server, quire, standalone

HURRIED = ("--archive-lag-ms", "0", "--archive-delay-ms", "0")


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    with standalone(tmp_path, *HURRIED) as running:
        monkeypatch.setenv("QUIRE_ADMIN_URL", running.http_url)
        monkeypatch.setenv("QUIRE_SERVICE_URL", running.service_url)
        yield running


def publish(server: Server, *payloads: bytes) -> None:
    client = pulsar.Client(server.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    client.subscribe("lost", "audit").close()
    producer = client.create_producer("lost")
    for payload in payloads:
        producer.send(payload)
    client.close()


def test_a_lost_object_is_told_of_by_every_command(server: Server) -> None:
    publish(server, b"one", b"two")
    quire("archive", "run", "--seal")
    publish(server, b"three")
    quire("archive", "run")
    ledgers = quire("topics", "internal-stats", "lost", "--json").json["ledgers"]
    assert [row["state"] for row in ledgers] == ["released", "active"]
    archived = ledgers[0]["archive"]
    (Path(archived["store"].removeprefix("file://")) / archived["name"]).unlink()
    quire("topics", "unload", "lost")

    arguments = ("lost", "-s", "audit", "--no-follow", "--wait", "500ms", "--service-url", server.service_url)
    ran = quire("consume", *arguments)
    assert ran.code == TRY_AGAIN and "not all messages were read" in ran.err and ran.out == ""
    stats = quire("topics", "stats", "lost")
    assert stats.code == 0 and f"{archived['name']} is missing" in stats.out
    assert quire("topics", "stats", "lost", "--json").json["subscriptions"]["audit"]["msgBacklog"] == 3
    peeked = quire("subscriptions", "peek", "lost", "audit", "--count", "3")
    assert peeked.code == FAILED and "2 of 3 entries cannot be read" in peeked.err
    assert archived["name"] in peeked.out.splitlines()[0] and peeked.out.splitlines()[2].endswith("three")
    repaired = quire("archive", "repair")
    assert repaired.code == FAILED and "no bookie has all their entries" in repaired.err
    assert "quire_tiering_objects_damaged 1\n" in _metrics(server)


def test_a_data_directory_that_is_moved_brings_its_archive_along(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    with standalone(tmp_path / "old", *HURRIED) as server:
        publish(server, b"one", b"two")
        where = ("--admin-url", server.http_url)
        quire("archive", "run", "--seal", *where)
        publish(server, b"three")
        quire("archive", "run", *where)
        ledgers = quire("topics", "internal-stats", "lost", "--json", *where).json["ledgers"]
        assert [row["state"] for row in ledgers] == ["released", "active"]
    (tmp_path / "old").rename(tmp_path / "new")
    with standalone(tmp_path / "new", *HURRIED) as server:
        peeked = quire(
            "subscriptions", "peek", "lost", "audit", "--count", "3", "--admin-url", server.http_url
        )
        assert peeked.code == 0, peeked
        assert [line.split()[-1] for line in peeked.out.splitlines()] == ["one", "two", "three"]
        verified = quire("archive", "verify", "--admin-url", server.http_url)
        assert verified.code == 0, verified


def _metrics(server: Server) -> str:
    with urllib.request.urlopen(f"{server.http_url}/metrics", timeout=10) as answer:
        text: str = answer.read().decode()
        return text
