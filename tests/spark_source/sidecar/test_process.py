"""A broker's own builder of sidecars: each archived segment gets one, whenever its process dies, and nobody waits."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from quire.metadata.records import ArchivePointer, SegmentRecord
from quire.process import broker_parts as parts_module
from quire.process.broker import BrokerProcessSettings
from quire.process.broker_parts import start_sidecars
from quire.process.parts import Process
from quire.process.settings import LoadedSettings
from quire.runtime.limits import SIDECAR_PROCESS_BYTES_MAX
from quire.runtime.settings import Loaded
from quire.serving.settings import BrokerSettings
from quire.spark_source.sidecar import process as process_module
from quire.spark_source.sidecar.archive import State, find
from quire.spark_source.sidecar.process import SidecarBuilder
from quire.spark_source.sidecar.worker import run_job
from quire.tiering.archive import sidecar_of
from quire.tiering.offload import Archived
from quire.wire import block
from quire.wire.message import OutgoingMessage, encode_one
from tests.cli.running import quire, standalone
from tests.machine_speed import times_slower
from tests.spark_source.sidecar.topics import TIME_MS, TOPIC
from tests.spark_source.test_memory import large_batch, large_bombs

ODD_WORKER = """
import itertools, os, signal, sys
from pathlib import Path
from types import SimpleNamespace
from quire.runtime.errors import Unavailable
from quire.spark_source.sidecar import worker
from quire.objects import filesystem

flags, what, at = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
steps = itertools.count()

def odd():
    if next(steps) == at and (what == "always" or not flags.exists()):
        flags.touch()
        if what == "unavailable":
            raise Unavailable("the store is away")
        if what == "deaf":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if what in ("sleep", "deaf"):
            signal.pause()
        os.kill(os.getpid(), signal.SIGKILL)

def patched(of, name):
    work = getattr(of, name)
    def step(*given, **more):
        odd()
        result = work(*given, **more)
        odd()
        return result
    setattr(of, name, step)

store = filesystem.FilesystemBlockingStore
for name in ("size", "begin"):
    patched(store, name)
for name in ("write", "finish"):
    patched(filesystem._FileUpload, name)
del sys.argv[1:4]
worker.lower_priority = lambda: None
worker.main()
"""
"""A worker to which something happens at one of its steps: once, or each time it gets there."""
STEPS = 11

EAGER_WORKER = """
import os
from quire.spark_source.sidecar import worker

os.nice = lambda increment: 0
os.sched_setscheduler = lambda *given: None
worker.main()
"""
"""A worker that is no less urgent than others: one that is gets no turn while other tests keep all cores busy."""


def archived_of(segment: Any) -> Archived:
    pointer = ArchivePointer(archived_ms=TIME_MS, **segment.archive)
    last_entry = segment.described()["last_entry"]
    record = SegmentRecord(segment.ledger_id, sealed_ms=1, last_entry=last_entry, archive=pointer)
    return Archived(TOPIC, record)


@pytest.fixture
def segments(broker: Any, archivist: Any) -> list[Archived]:
    """Three that are archived; no broker has them any more."""
    found = []
    for ledger_id in (3, 5, 8):
        entries = [encode_one(OutgoingMessage(b"v", key=f"k{i % 5}"), "p", i, TIME_MS + i) for i in range(90)]
        segment = broker.segment(ledger_id, entries)
        archivist.archive(segment)
        found.append(archived_of(segment))
    return found


@pytest.fixture
async def builders(archivist: Any) -> AsyncIterator[Callable[..., SidecarBuilder]]:
    """Makes them, and stops them."""
    made: list[SidecarBuilder] = []

    def make(*odd: object, **more: Any) -> SidecarBuilder:
        if odd:
            more["argv"] = (sys.executable, "-c", ODD_WORKER, *map(str, odd))
        more.setdefault("argv", (sys.executable, "-c", EAGER_WORKER))
        made.append(SidecarBuilder(archivist.url, **{"pause_s": 0.01, **more}))
        made[-1].start()
        return made[-1]

    yield make
    for one in made:
        await one.stop()


async def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 60 * times_slower()
    while not condition():
        assert time.monotonic() < end
        await asyncio.sleep(0.02)


def counts(builder: SidecarBuilder) -> tuple[float, ...]:
    """Built, failed, waiting."""
    return tuple(
        builder.metrics()[f"quire_tiering_sidecars_{one}"]
        for one in ("built_total", "failed_total", "waiting")
    )


def states(archivist: Any, segments: Sequence[Archived]) -> list[State]:
    from quire.spark_source.plan import ArchivedObject, Slice, origin_of
    from quire.spark_source.positions import Window

    found = []
    for topic, segment in segments:
        assert segment.archive is not None
        pointer = segment.archive
        archived = ArchivedObject(archivist.url, pointer.name, pointer.bytes, pointer.crc)
        piece = Slice(origin_of(topic, segment.ledger_id), 0, segment.last_entry + 1, Window(), archived)
        found.append(find(piece).state)
    return found


async def test_what_is_archived_gets_one(segments: Any, builders: Any, archivist: Any) -> None:
    builder = builders()
    assert builder.pid is None, "nothing to do, no process"
    builder.look(segments[:2])
    builder.look(segments[:2])
    await until(lambda: counts(builder) == (2, 0, 0))
    builder.look(segments)
    await until(lambda: counts(builder) == (3, 0, 0))
    assert states(archivist, segments) == [State.THERE] * 3
    pid = builder.pid
    builder.look([])
    builder.look(segments)  # as after a load: they are looked at again, and are there
    await until(lambda: counts(builder) == (3, 0, 0))
    assert builder.pid == pid
    assert builder.metrics()["quire_tiering_sidecars_built_bytes_total"] > 0


async def test_its_process_ends_when_there_is_nothing_to_do(segments: Any, builders: Any) -> None:
    builder = builders(idle_s=0.05)
    builder.look(segments[:1])
    await until(lambda: counts(builder) == (1, 0, 0) and builder.pid is None)
    builder.look(segments)
    await until(lambda: counts(builder) == (3, 0, 0))


@pytest.mark.parametrize("at", range(STEPS))
async def test_its_process_is_killed_at_any_step(
    segments: Any, builders: Any, archivist: Any, tmp_path: Path, at: int
) -> None:
    builder = builders(tmp_path / "flag", "once", at)
    builder.look(segments[:1])
    await until(lambda: counts(builder)[1:] == (0, 0))
    assert (tmp_path / "flag").exists(), "it has fewer steps"
    assert states(archivist, segments[:1]) == [State.THERE]


async def test_it_has_not_more_steps(segments: Any, builders: Any, tmp_path: Path) -> None:
    builder = builders(tmp_path / "flag", "once", STEPS)
    builder.look(segments[:1])
    await until(lambda: counts(builder) == (1, 0, 0))
    assert not (tmp_path / "flag").exists()


async def test_what_kills_it_each_time_is_left_without(
    segments: Any, builders: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    builder = builders(tmp_path / "flag", "always", 3)
    with caplog.at_level(logging.INFO, process_module.__name__):
        builder.look(segments[:1])
        await until(lambda: counts(builder) == (0, 1, 0))
    said = [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]
    assert len(said) == 2 and "code -9" in said[1]
    assert said[1].startswith(f"segment 3 of {TOPIC}: sidecar not built: ")


async def test_a_store_that_is_away_is_asked_again(
    segments: Any, builders: Any, archivist: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    builder = builders(tmp_path / "flag", "unavailable", 3)
    with caplog.at_level(logging.INFO, process_module.__name__):
        builder.look(segments)
        await until(lambda: counts(builder) == (3, 0, 0))
    assert states(archivist, segments) == [State.THERE] * 3
    assert [one.getMessage() for one in caplog.records] == [
        f"segment 3 of {TOPIC}: sidecar not built, retrying: the store is away",
        "sidecars are being built again",
    ]


async def test_what_is_damaged_or_gone_keeps_no_other_from_its_own(
    segments: Any, builders: Any, archivist: Any, tmp_path: Path
) -> None:
    names = [one.segment.archive.name for one in segments]
    damaged = tmp_path / "archive" / names[0]
    damaged.chmod(0o600)
    content = bytearray(damaged.read_bytes())
    content[200] ^= 1
    damaged.write_bytes(content)
    archivist.store.delete(names[1])
    builder = builders()
    builder.look(segments)
    await until(lambda: counts(builder) == (1, 1, 0))
    assert [info.name for info in archivist.store.list("segments/")] == [
        names[0],
        names[2],
        sidecar_of(names[2]),
    ]


async def test_lost_entries(broker: Any, archivist: Any, builders: Any) -> None:
    segment = broker.segment(9, [encode_one(OutgoingMessage(b"x"), "p", 1, TIME_MS)] * 3, per_block=1)
    header = block.read_header(segment.blocks[1])
    segment.blocks[1] = block.blank(9, header.first_entry, header.clock_ms, header.first_index, [1])
    archivist.archive(segment)
    builder = builders()
    builder.look([archived_of(segment)])
    await until(lambda: counts(builder) == (0, 0, 0) and builder.pid)


async def test_what_is_too_much_waits_for_a_later_round(
    segments: Any, builders: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_module, "SIDECARS_WAITING_MAX", 1)
    builder = builders()
    for round in range(1, 4):
        builder.look(segments)
        assert counts(builder)[2] == 1
        await until(lambda round=round: counts(builder) == (round, 0, 0))


@pytest.mark.parametrize("what", ["sleep", "deaf"])
async def test_a_stop_waits_for_nobody(
    segments: Any, builders: Any, archivist: Any, tmp_path: Path, what: str
) -> None:
    builder = builders(tmp_path / "flag", what, 7)
    builder.look(segments)
    await until((tmp_path / "flag").exists)
    pid, began = builder.pid, time.monotonic()
    await builder.stop()
    assert time.monotonic() - began < 10, "a second, and what a busy machine takes"
    await until(lambda: not Path(f"/proc/{pid}").exists())
    assert len(list(archivist.store.list("segments/"))) == 3, "no sidecar"
    await until(lambda: all(one.name != "quire-sidecars" for one in threading.enumerate()))


def test_it_ends_with_its_broker(segments: Any, archivist: Any, tmp_path: Path) -> None:
    worker = [sys.executable, "-c", ODD_WORKER, str(tmp_path / "flag"), "sleep", "7"]
    program = f"""
import sys, time, types
from quire.spark_source.sidecar.process import Job, SidecarBuilder
builder = SidecarBuilder({archivist.url!r}, argv={worker!r})
builder.start()
builder._queue.put(Job("x", "x", {_line(archivist, segments[0])!r}))
while builder.pid is None:
    time.sleep(0.01)
print(builder.pid, flush=True)
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        _wait((tmp_path / "flag").exists)
        parent.kill()
    _wait(lambda: not _runs(pid))


def _line(archivist: Any, one: Archived) -> bytes:
    return SidecarBuilder(archivist.url)._job(one).line


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _wait(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 60 * times_slower()
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


async def test_it_runs_when_nobody_else_wants_to(segments: Any, builders: Any) -> None:
    builder = builders(argv=process_module.WORKER)
    builder.look(segments[:1])
    await until(lambda: counts(builder) == (1, 0, 0))
    assert os.sched_getscheduler(builder.pid) == os.SCHED_IDLE and os.getpriority(0, builder.pid) == 19
    assert Path(f"/proc/{builder.pid}/oom_score_adj").read_text() == "1000\n"
    os.kill(builder.pid, signal.SIGKILL)
    builder.look(segments)
    await until(lambda: counts(builder) == (3, 0, 0))


@pytest.mark.parametrize("made", [large_bombs, large_batch])
async def test_its_memory_is_bounded_and_enough(
    made: Callable[[], Any], broker: Any, archivist: Any, builders: Any
) -> None:
    """Entries that inflate to 128 MiB, within what the process sets itself as its limit."""
    segment = broker.segment(9, *made(), per_block=1)
    archivist.archive(segment)
    builder = builders()
    builder.look([archived_of(segment)])
    await until(lambda: counts(builder) == (1, 0, 0))
    limits = Path(f"/proc/{builder.pid}/limits").read_text()
    assert f"{SIDECAR_PROCESS_BYTES_MAX}" in next(one for one in limits.splitlines() if "Max data" in one)


def test_a_mistake_of_ours_is_an_answer() -> None:
    assert run_job({})["state"] == "failed"


async def test_without_pyarrow_it_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(parts_module, "is_possible", lambda: False)
    settings = LoadedSettings((Loaded(BrokerSettings(), {}),))
    broker: Any = SimpleNamespace(offloading=SimpleNamespace())
    with caplog.at_level(logging.DEBUG):
        async with Process("broker", settings, BrokerProcessSettings()) as process:
            await start_sidecars(process, broker, f"file://{tmp_path}")
            assert process.metrics == [process.watchdog.metrics]
    assert "pyarrow is not installed" in caplog.text


# -- in a server -----------------------------------------------------------------------------------------


def _publish_and_archive(url: str, service_url: str, tmp_path: Path) -> None:
    lines = tmp_path / "lines"
    lines.write_text("".join(f"line {i}\n" for i in range(100)))
    assert quire("produce", "t", str(lines), "--service-url", service_url).code == 0
    assert quire("archive", "run", "--seal", "--admin-url", url).code == 0


def _listed(url: str) -> list[str]:
    return [one["state"] for one in quire("archive", "sidecars", "list", "--json", "--admin-url", url).json]


def _metrics(url: str) -> str:
    with urllib.request.urlopen(f"{url}/metrics") as answer:
        return str(answer.read(), "utf-8")


def test_a_server_builds_them_also_after_a_kill(tmp_path: Path) -> None:
    with standalone(tmp_path, "--archive-sidecars", "false") as server:
        _publish_and_archive(server.http_url, server.service_url, tmp_path)
        assert _listed(server.http_url) == ["missing"]
        server.process.kill()
    with standalone(tmp_path) as server:
        _wait(lambda: _listed(server.http_url) == ["there"])
        _wait(lambda: "quire_tiering_sidecars_built_total 1\n" in _metrics(server.http_url))
        assert quire("topics", "delete", "t", "--admin-url", server.http_url).code == 0
    _wait(lambda: not list((tmp_path / "data" / "archive" / "segments").iterdir()))
