"""`quire check`: its judgement on histories made by hand, and a run against a real server."""

from __future__ import annotations

from pathlib import Path

import pytest

from quire.cli import own_topics
from quire.cli.check import Verdict
from quire.cli.own_topics import Brokers, OwnTopics
from quire.runtime.credentials import NOBODY
from quire.runtime.rest import Admin
from quire.runtime.tls import ClientTls
from tests.cli.recording import recording
from tests.cli.running import quire, standalone


@pytest.mark.parametrize(
    "acknowledged, read, lost, out_of_order, read_twice",
    [
        ({0, 1, 2}, [0, 1, 2], 0, 0, 0),
        ({0, 2}, [0, 1, 2, 3], 0, 0, 0),
        ({0, 1, 2}, [0, 1, 0, 1, 2], 0, 0, 2),
        ({0, 1, 2}, [0, 2], 1, 0, 0),
        ({0, 1, 2}, [0, 2, 1], 0, 1, 0),
        ({0, 1}, [], 2, 0, 0),
        (set(), [], 0, 0, 0),
    ],
)
def test_what_is_lost_and_what_is_not(
    acknowledged: set[int], read: list[int], lost: int, out_of_order: int, read_twice: int
) -> None:
    verdict = Verdict()
    verdict.judge("t", acknowledged, read)
    assert (verdict.lost, verdict.out_of_order, verdict.read_twice) == (lost, out_of_order, read_twice)
    assert verdict.is_good == (not lost and not out_of_order)
    assert ("No acknowledged message is lost" in str(verdict)) == verdict.is_good


def test_topics_are_deleted_at_the_host_that_was_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the port is guessed; when that fails the option that names it is told."""
    monkeypatch.delenv("QUIRE_ADMIN_URL", raising=False)
    with standalone(tmp_path) as server:
        other_host = server.service_url.replace("127.0.0.1", "localhost")
        arguments = ("check", "--seconds", "0.5", "--topics", "1", "--service-url", other_host, "--json")
        monkeypatch.setattr(own_topics, "PORT", int(server.http_url.rpartition(":")[2]))
        assert quire(*arguments).json["topics_kept"] == []
        monkeypatch.setattr(own_topics, "PORT", 1)
        elsewhere = quire(*arguments)
    assert len(elsewhere.json["topics_kept"]) == 1
    assert "requests were sent to http://localhost:1" in elsewhere.err and "set --admin-url" in elsewhere.err


@pytest.mark.parametrize(
    "service_url, urls",
    [
        ("pulsar://127.0.0.1:6650", ["http://127.0.0.1:8080"]),
        ("pulsar://a:7650,b:7651", ["http://a:8080", "http://b:8080"]),
        ("pulsar://[::1]:6650", ["http://[::1]:8080"]),
        ("pulsar://a:1,a:2", ["http://a:8080"]),
        ("pulsar+ssl://a,b", ["https://a:8443", "https://b:8443"]),
    ],
)
def test_where_http_usually_is(service_url: str, urls: list[str]) -> None:
    assert own_topics.beside(service_url) == urls


def test_topics_are_deleted_at_another_broker_when_one_was_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the run a broker names the others; the next owner of a topic may need a while."""
    monkeypatch.setattr(own_topics, "PAUSE_S", 0.0)
    topic = "/admin/v2/persistent/public/default/t?force=true"
    with recording() as killed, recording() as other:
        killed.answers["GET /quire/v1/brokers"] = [[{"httpUrl": killed.url}, {"httpUrl": other.url}]]
        brokers = Brokers([Admin(killed.url)])
        killed.server.shutdown()
        killed.server.server_close()
        other.statuses[f"DELETE {topic}"] = [503, 404]
        brokers.delete(topic)
    assert other.changes() == [("DELETE", topic, None)] * 2


def test_a_topic_that_no_broker_knows_is_not_taken_for_deleted() -> None:
    with recording() as elsewhere:
        elsewhere.statuses["DELETE /admin/v2/persistent/public/default/t?force=true"] = [404]
        topics = OwnTopics(["t"], "pulsar://127.0.0.1:6650", elsewhere.url, ClientTls(), NOBODY)
        assert topics.delete() == ["t"]


def test_all_topics_are_read_back(tmp_path: Path) -> None:
    with standalone(tmp_path) as server:
        arguments = [
            "check",
            "--seconds",
            "1",
            "--topics",
            "3",
            "--service-url",
            server.service_url,
            "--json",
        ]
        found = quire(*arguments, "--admin-url", server.http_url).json
        assert quire("topics", "list", "--admin-url", server.http_url, "--json").json == []
        kept = quire(*arguments, "--admin-url", server.http_url, "--keep").json["topics_kept"]
        left = quire("topics", "list", "--admin-url", server.http_url).out.splitlines()
        assert left == sorted(f"persistent://public/default/{name}" for name in kept)
        unreachable = quire(*arguments, "--admin-url", "http://127.0.0.1:1")
    assert found["published"] == found["acknowledged"] == found["read"] > 100
    assert found["lost"] == found["out_of_order"] == 0
    assert found["slowest_receipt_s"] > 0
    assert (found["topics_kept"], len(kept)) == ([], 3)
    assert unreachable.code == 0 and len(unreachable.json["topics_kept"]) == 3
