"""What is slow is named in every part that it passes, by the same ledger and entry: here all is called slow."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pulsar
import pytest

from quire.process.settings import Given
from quire.process.standalone import load, standalone
from quire.runtime import slow
from quire.runtime.rest import Admin

TOPIC = "persistent://public/default/orders"


def said(caplog: pytest.LogCaptureFixture, kind: str) -> list[dict[str, Any]]:
    """The fields of the lines of one kind."""
    found = [record for record in caplog.records if record.name == "quire.slow"]
    return [dict(one.args) for one in found if str(one.msg).startswith(f"slow {kind}:")]  # type: ignore[arg-type]


def publish(url: str) -> tuple[int, int]:
    """Ledger and entry of one message."""
    client = pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    sent = client.create_producer(TOPIC).send(b"x")
    client.close()
    return sent.ledger_id(), sent.entry_id()


async def test_all_parts_tell_of_one_message(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = {"data": str(tmp_path / "data"), "listen": "127.0.0.1:0", "http": "127.0.0.1:0"}
    with caplog.at_level(logging.INFO):
        async with standalone(load(Given(flags, None))) as server:
            monkeypatch.setattr(slow.BOUND, "s", -1.0)
            ledger, entry = await asyncio.to_thread(publish, server.service_url)
            await asyncio.to_thread(Admin(server.http_url).post, "/quire/v1/archive/run?seal=true")
    (published,) = said(caplog, "publish")
    assert (published["topic"], published["ledger"], published["entry"]) == (TOPIC, ledger, entry)
    assert published["parts"].keys() == {"waiting", "bookies"}
    assert sum(published["parts"].values()) == pytest.approx(published["took_s"], abs=0.002)
    assert (ledger, entry) in [
        (one["ledger"], one["entry"]) for one in said(caplog, "sync") if "ledger" in one
    ]
    (loaded,) = [one for one in said(caplog, "load") if one["topic"] == TOPIC]
    assert {"its record", "its bundle's state log", "the rest"} <= loaded["parts"].keys()
    (uploaded,) = said(caplog, "upload")
    assert uploaded["ledger"] == ledger and uploaded["parts"].keys() == {"reading and sending", "verifying"}
    met = [record.getMessage() for record in caplog.records if "Pulsar-CPP" in record.getMessage()]
    assert met and all(
        line.startswith("client connected: connection=c") and "/127.0.0.1:" in line for line in met
    )


async def test_nothing_is_told_when_all_is_quick(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = {"data": str(tmp_path / "data"), "listen": "127.0.0.1:0", "http": "127.0.0.1:0"}
    with caplog.at_level(logging.INFO):
        async with standalone(load(Given(flags, None))) as server:
            monkeypatch.setattr(slow.BOUND, "s", 60.0)
            await asyncio.to_thread(publish, server.service_url)
    assert not [record for record in caplog.records if record.name == "quire.slow"]
