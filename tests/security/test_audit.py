"""The audit log: a line each, whatever clients name; renamed when it is full; an unwritable one stops nobody."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from quire.runtime.clock import SystemClock
from quire.runtime.errors import ConfigurationError
from quire.security import audit
from quire.security.audit import EVENTS, LINES_A_S_MAX, LINES_OF_ONE_A_S_MAX, AuditLog, Caller
from quire.security.configuration import Audit
from quire.security.identity import Identity

APP = Identity("app", "token")


def test_a_line_each_whatever_they_say(tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    log = AuditLog(Audit(str(file)), SystemClock())
    log.record("denied", Caller(APP, "/10.0.0.1:4711", "PRODUCER"), "topic x\ny\u2028z %s {}", "no")
    log.record("login-failed", Caller(None, "/10.0.0.1:4711", "CONNECT"), outcome="x" * 10_000)
    log.close()
    first, second = map(json.loads, file.read_text().splitlines())
    assert first["role"] == "app" and first["on"] == "topic x\ny\u2028z %s {}"
    assert second["role"] == "" and len(second["outcome"]) == 500
    assert log.events_total == {**dict.fromkeys(EVENTS, 0), "denied": 1, "login-failed": 1}


def test_it_is_renamed_when_it_is_full(tmp_path: Path) -> None:
    log = AuditLog(Audit(str(tmp_path / "audit.jsonl"), bytes_max=4096, files_kept=2), SystemClock())
    for number in range(200):
        log.record("changed", Caller(APP, "", "PUT"), outcome=str(number))
    log.close()
    files = sorted(tmp_path.glob("audit-changes*"))
    assert [file.name for file in files] == [f"audit-changes.jsonl{end}" for end in ("", ".1", ".2")]
    assert all(file.stat().st_size <= 4096 for file in files)
    assert json.loads(files[0].read_text().splitlines()[-1])["outcome"] == "199"


def test_without_a_file_nothing_is_written() -> None:
    log = AuditLog(None, SystemClock())
    log.record("denied", Caller(APP, "", "PRODUCER"))
    log.close()


def test_a_file_that_cannot_be_opened_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="audit file"):
        AuditLog(Audit(str(tmp_path)), SystemClock())


def test_a_disk_that_is_full_is_told_once_and_stops_nobody(caplog: pytest.LogCaptureFixture) -> None:
    log = AuditLog(Audit("/dev/full"), SystemClock())
    for _ in range(3):
        log.record("denied", Caller(APP, "", "PRODUCER"))
    assert sum("cannot be written" in line.message for line in caplog.records) == 1


class Clock(SystemClock):
    now_s = 1_000.0

    def monotonic(self) -> float:
        return self.now_s


def lines(file: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_who_floods_with_refusals_pushes_out_no_change_and_is_counted(tmp_path: Path) -> None:
    clock = Clock()
    log = AuditLog(Audit(str(tmp_path / "audit.jsonl"), bytes_max=4096, files_kept=1), clock)
    log.record("changed", Caller(APP, "/10.0.0.1:1", "PUT /admin", "17"), "tenant t", "204")
    for second in range(20):
        clock.now_s = 1_000.0 + second
        for number in range(10 * LINES_OF_ONE_A_S_MAX):
            log.record("login-failed", Caller(None, f"/10.0.0.9:{number}", "CONNECT"), outcome="x" * 100)
        log.record("login-failed", Caller(None, "/10.0.0.1:1", "CONNECT"), outcome="an honest one")
    log.close()
    (changed,) = lines(tmp_path / "audit-changes.jsonl")
    assert (changed["action"], changed["request"]) == ("PUT /admin", "17")
    unwritten = 20 * 9 * LINES_OF_ONE_A_S_MAX
    assert log.events_total["not-written"] == unwritten
    assert log.events_total["login-failed"] == 20 * (10 * LINES_OF_ONE_A_S_MAX + 1)
    written = lines(tmp_path / "audit.jsonl")
    assert written[-1]["outcome"] == "an honest one", "who floods takes no line from others"
    assert (
        written[-2]["event"] == "not-written"
        and f"{9 * LINES_OF_ONE_A_S_MAX} refusals" in written[-2]["outcome"]
    )


def test_many_who_flood_write_no_more_either(tmp_path: Path) -> None:
    log = AuditLog(Audit(str(tmp_path / "audit.jsonl")), Clock())
    for number in range(10 * LINES_A_S_MAX):
        log.record("denied", Caller(APP, f"/10.0.{number // 250}.{number % 250}:1", "PRODUCER"))
    log.close()
    *written, last = lines(tmp_path / "audit.jsonl")
    assert len(written) == LINES_A_S_MAX and f"{9 * LINES_A_S_MAX} refusals" in last["outcome"]


def test_what_a_topic_does_not_take_is_bounded_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "UNPUBLISHED_MAX", 3)
    log = AuditLog(Audit(topic="persistent://t/n/audit"), SystemClock())
    for number in range(10):
        log.record("changed", Caller(APP, "", "PUT"), outcome=str(number))
    assert [json.loads(line)["outcome"] for line in log.unpublished] == ["0", "1", "2"]
    assert log.has_unpublished.is_set()
    log.unpublished.clear()
    log.record("changed", Caller(APP, "", "PUT"), outcome="10")
    told, last = map(json.loads, log.unpublished)
    assert told["event"] == "not-published" and told["outcome"].startswith("7 lines")
    assert last["outcome"] == "10" and log.metrics()["quire_security_events_total"]["not-published",] == 7
