"""Wrong addresses, ranges and objects, and an S3 that answers badly: one sentence that names what and where, or a retry
that succeeds. Never fewer rows than there are."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from quire.objects import s3
from quire.runtime import rest
from quire.runtime.errors import ConfigurationError, CorruptionError, NotFound, QuireError, Unavailable
from quire.spark_source import fetch
from quire.spark_source.options import for_batch, parse
from quire.spark_source.source import QuireReader
from tests.spark_source.test_read import TOPIC, entries, numbers, reader


@pytest.fixture
def archived(broker: Any, archivist: Any) -> Any:
    """1,000 messages of 4 KB, in the archive alone."""
    broker.topics[TOPIC] = [broker.segment(3, entries(0, 1000, 4000))]
    archivist.archive(broker.topics[TOPIC][0])
    return broker


def object_of(broker: Any, tmp_path: Path, number: int = 0) -> Path:
    path = tmp_path / "archive" / broker.topics[TOPIC][number].archive["name"]
    path.chmod(0o600)
    return path


# -- addresses and ranges --------------------------------------------------------------------------------


@pytest.fixture
def server() -> Iterator[Callable[[type[BaseHTTPRequestHandler]], str]]:
    """Serves by a handler; returns the URL."""
    running: list[ThreadingHTTPServer] = []

    def serve(handler: type[BaseHTTPRequestHandler]) -> str:
        made = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        running.append(made)
        threading.Thread(target=made.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{made.server_port}"

    yield serve
    for one in running:
        one.shutdown()
        one.server_close()


class Quiet(BaseHTTPRequestHandler):
    body = b""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.body)))
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


class Pages(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.mark.parametrize("body", [b"<html>hello</html>", b'{"status": "UP"}', b"[]", b""])
def test_an_address_that_is_no_brokers(server: Any, body: bytes) -> None:
    url = server(type("Other", (Quiet,), {"body": body}))
    with pytest.raises(ConfigurationError, match=f"{url} is not a "):
        QuireReader(parse({"service_url": url, "topic": "t"})).partitions()


def test_an_address_of_some_web_server(server: Any) -> None:
    url = server(Pages)
    with pytest.raises(ConfigurationError, match=f"the server at {url} is not a Quire broker"):
        QuireReader(parse({"service_url": url, "topic": "t"})).partitions()


def test_a_topic_that_is_not_there(broker: Any) -> None:
    with pytest.raises(NotFound, match=f"no topic {TOPIC}"):
        reader(broker).partitions()


@pytest.mark.parametrize(("start", "end"), [("5:0", "3:0"), ("3:7", "3:6"), ("2026-01-02", "2026-01-01")])
def test_a_range_that_is_upside_down(start: str, end: str) -> None:
    with pytest.raises(ConfigurationError, match=f"start='{start}' comes after end='{end}'"):
        for_batch({"service_url": "http://h", "topic": "t", "start": start, "end": end})


def test_a_position_beyond_the_topic(archived: Any) -> None:
    assert numbers(reader(archived, start="3:1000")) == []
    for start in ("3:1001", "4:0", "900:0"):
        with pytest.raises(ConfigurationError, match=f"{start} is beyond the end of {TOPIC}, .* 3:999"):
            reader(archived, start=start).partitions()


# -- objects ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 50, 1_000_000, -1])
def test_an_object_that_was_truncated(archived: Any, tmp_path: Path, size: int) -> None:
    path = object_of(archived, tmp_path)
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(
        CorruptionError, match=f"cannot read entries 0 to .* of ledger 3 of {TOPIC}.*{path.name}"
    ):
        numbers(reader(archived))


def test_an_object_that_was_deleted(archived: Any, tmp_path: Path) -> None:
    object_of(archived, tmp_path).unlink()
    with pytest.raises(NotFound, match=f"cannot read entries 0 to .* of ledger 3 of {TOPIC}: .* trimmed"):
        numbers(reader(archived))


def test_an_object_that_was_replaced(archived: Any, archivist: Any, tmp_path: Path) -> None:
    """By one of another topic, once of the same length; and once the broker itself says the other one."""
    other = archived.segment(8, entries(0, 1000, 4000))
    longer = archived.segment(9, entries(0, 1100, 4000))
    for one in (other, longer):
        archivist.archive(one)
    path, recorded = object_of(archived, tmp_path), dict(archived.topics[TOPIC][0].archive)
    for one, sentence in ((longer, path.name), (other, "differs from its record")):
        path.write_bytes((tmp_path / "archive" / one.archive["name"]).read_bytes())
        with pytest.raises(CorruptionError, match=f"of ledger 3 of {TOPIC}: .*{sentence}"):
            numbers(reader(archived))
    archived.topics[TOPIC][0].archive = recorded | dict(other.archive)
    with pytest.raises(CorruptionError, match=f"of ledger 3 of {TOPIC}: .* belongs to ledger 8"):
        numbers(reader(archived))


def test_a_broker_that_answers_with_another_ledger(broker: Any) -> None:
    broker.topics[TOPIC] = [broker.segment(3, entries(0, 100))]
    rows = reader(broker)
    plan = rows.partitions()
    broker.topics[TOPIC][0].blocks = broker.segment(8, entries(0, 100)).blocks
    with pytest.raises(CorruptionError, match=f"of ledger 3 of {TOPIC}: .* returned a block of ledger 8"):
        numbers(rows, plan)


def test_a_segment_that_is_trimmed_while_it_is_read(
    archived: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(fetch, "CHUNK_BYTES", 300_000)
    path = object_of(archived, tmp_path)
    content = path.read_bytes()
    for options in ({}, {"on_data_loss": "report"}):
        path.write_bytes(content)
        rows = reader(archived, slice_bytes="100MiB", **options)
        reading = rows.read(rows.partitions()[0])
        count = next(reading).num_rows
        path.unlink()
        if options:
            assert 0 < count + sum(batch.num_rows for batch in reading) < 1000
            assert f"of ledger 3 of {TOPIC}: " in caplog.text
        else:
            with pytest.raises(
                NotFound, match=f"cannot read entries [1-9].* of ledger 3 of {TOPIC}: .* trimmed"
            ):
                list(reading)


# -- S3 --------------------------------------------------------------------------------------------------


class BadS3:
    """One bucket with one object; `faults` are what it does wrong at the next requests, then it is good."""

    def __init__(self) -> None:
        self.content = b""
        self.faults: list[str] = []
        self.requests = 0

    def handler(self) -> type[BaseHTTPRequestHandler]:
        store = self

        class Handler(Quiet):
            def do_GET(self) -> None:
                store.requests += 1
                fault = store.faults.pop(0) if store.faults else ""
                first, _, last = self.headers["Range"].removeprefix("bytes=").partition("-")
                store.answer(self, fault, store.content[int(first) : int(last) + 1])

        return Handler

    def answer(self, handler: BaseHTTPRequestHandler, fault: str, body: bytes) -> None:
        status, announced = 206, len(body)
        if fault in ("500", "503", "403"):
            code = {"500": "InternalError", "503": "SlowDown", "403": "AccessDenied"}[fault]
            status, body = int(fault), f"<Error><Code>{code}</Code></Error>".encode()
            announced = len(body)
        elif fault == "cut":
            body = body[: len(body) // 2]
        elif fault == "short":
            body = body[:-1]
            announced -= 1
        elif fault == "whole":
            status, body, announced = 200, self.content, len(self.content)
        elif fault == "other":
            body = bytes(len(body))
        elif fault == "slow":
            time.sleep(1)
        handler.send_response(status)
        handler.send_header("Content-Length", str(announced))
        handler.end_headers()
        try:
            handler.wfile.write(body)
        except ConnectionError:
            pass  # it was not waited for
        handler.close_connection = True


@pytest.fixture
def bad_s3(archived: Any, server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BadS3:
    """The archive of `archived`, in S3, where nobody waits long."""
    monkeypatch.setattr(s3, "PATIENT", s3.Patience(timeout_s=0.3))
    monkeypatch.setattr("botocore.endpoint.time", SimpleNamespace(sleep=lambda _: None, time=time.time))
    monkeypatch.setattr(rest, "PAUSE_S", 0)
    store = BadS3()
    store.content = object_of(archived, tmp_path).read_bytes()
    url = server(store.handler())
    pointer = archived.topics[TOPIC][0].archive
    pointer["store"] = f"s3://bucket/quire?endpoint={url}&region=us-east-1&access_key=a&secret_key=b"
    return store


TRANSIENT = ["500", "503", "cut", "slow"]
WRONG = ["short", "whole", "other"]


@pytest.mark.parametrize("fault", TRANSIENT)
@pytest.mark.parametrize("good", [0, 1])
def test_an_answer_of_s3_that_fails_is_asked_for_again(
    archived: Any, bad_s3: BadS3, fault: str, good: int
) -> None:
    bad_s3.faults = [""] * good + [fault] * 2
    assert numbers(reader(archived, slice_bytes="100MiB")) == list(range(1000))
    assert bad_s3.requests > 3
    assert not any("blocks" in path for path in archived.requests)


@pytest.mark.parametrize("fault", [*TRANSIENT, *WRONG, "403"])
@pytest.mark.parametrize("good", [0, 1])
def test_an_s3_that_goes_on_failing_is_told_by_name(
    archived: Any, bad_s3: BadS3, fault: str, good: int
) -> None:
    bad_s3.faults = [""] * good + [fault] * 99
    name = archived.topics[TOPIC][0].archive["name"]
    with pytest.raises(
        QuireError, match=f"cannot read entries 0 to 999 of ledger 3 of {TOPIC}: .*{name}"
    ) as told:
        numbers(reader(archived, slice_bytes="100MiB"))
    kind = CorruptionError if fault in WRONG else Unavailable
    assert type(told.value) is kind or isinstance(told.value, kind)


@pytest.mark.parametrize("fault", [*TRANSIENT, *WRONG, "403"])
def test_an_s3_that_fails_is_passed_over_while_the_broker_has_the_bytes(
    archived: Any, bad_s3: BadS3, fault: str
) -> None:
    archived.topics[TOPIC][0].on_broker = True
    bad_s3.faults = [fault] * 99
    assert numbers(reader(archived, slice_bytes="100MiB")) == list(range(1000))


def test_wrong_credentials_of_the_users_own(archived: Any, bad_s3: BadS3) -> None:
    bad_s3.faults = ["403"] * 99
    archive = archived.topics[TOPIC][0].archive
    archived.topics[TOPIC][0].on_broker = True
    with pytest.raises(
        ConfigurationError, match=f"cannot read s3://bucket/quire/{archive['name']}: AccessDenied"
    ):
        numbers(reader(archived, archive=archive["store"]))
