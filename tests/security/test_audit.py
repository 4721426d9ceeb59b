"""The audit log: a line each, whatever clients name; renamed when it is full; an unwritable one stops nobody."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from quire.runtime.clock import SystemClock
from quire.runtime.errors import ConfigurationError
from quire.security.audit import EVENTS, AuditLog
from quire.security.configuration import Audit
from quire.security.identity import Identity

APP = Identity("app", "token")


def test_a_line_each_whatever_they_say(tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    log = AuditLog(Audit(str(file)), SystemClock())
    log.record("denied", APP, "/10.0.0.1:4711", "PRODUCER", "topic x\ny\u2028z %s {}", "no")
    log.record("login-failed", None, "/10.0.0.1:4711", "CONNECT", outcome="x" * 10_000)
    log.close()
    first, second = map(json.loads, file.read_text().splitlines())
    assert first["role"] == "app" and first["on"] == "topic x\ny\u2028z %s {}"
    assert second["role"] == "" and len(second["outcome"]) == 500
    assert log.events_total == {**dict.fromkeys(EVENTS, 0), "denied": 1, "login-failed": 1}


def test_it_is_renamed_when_it_is_full(tmp_path: Path) -> None:
    log = AuditLog(Audit(str(tmp_path / "audit.jsonl"), bytes_max=4096, files_kept=2), SystemClock())
    for number in range(200):
        log.record("denied", APP, "", "PRODUCER", outcome=str(number))
    log.close()
    files = sorted(tmp_path.iterdir())
    assert [file.name for file in files] == ["audit.jsonl", "audit.jsonl.1", "audit.jsonl.2"]
    assert all(file.stat().st_size <= 4096 for file in files)
    assert json.loads(files[0].read_text().splitlines()[-1])["outcome"] == "199"


def test_without_a_file_nothing_is_written() -> None:
    log = AuditLog(None, SystemClock())
    log.record("denied", APP, "", "PRODUCER")
    log.close()


def test_a_file_that_cannot_be_opened_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="audit file"):
        AuditLog(Audit(str(tmp_path)), SystemClock())


def test_a_disk_that_is_full_is_told_once_and_stops_nobody(caplog: pytest.LogCaptureFixture) -> None:
    log = AuditLog(Audit("/dev/full"), SystemClock())
    for _ in range(3):
        log.record("denied", APP, "", "PRODUCER")
    assert sum("cannot be written" in line.message for line in caplog.records) == 1
