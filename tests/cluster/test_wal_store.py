"""A store that hangs or bars a broker, on real processes: clients wait and hear no error, and people hear why."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pulsar
import pytest

from quire.runtime.threads import DaemonThreads
from quire.testing.zookeeper_server import free_port
from tests.machine_speed import times_slower

from .local import ATTEMPT_S, POLL_S
from .s3 import S3, SECRET_KEY, VERSITYGW, versitygw
from .wired import Wired, wired

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(300)]

HANG_S = float(os.environ.get("QUIRE_HANG_SECONDS", "20"))
"""More than two time-outs of a request. It was tried with 60."""

SOON_S = 12.0
"""The longest pause before an upload is tried again is 2 s, a request that hangs ends after 5, and the rate is that of
two seconds, after two in which it may not be there yet."""

BROKER = "broker-1"
TOPIC = "persistent://public/default/t"
PAYLOAD = bytes(16 * 1024)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Wired]:
    async with wired(tmp_path / "cluster", bookies=0, brokers=1, session_s=10.0) as made:
        yield made


class Publishing:
    """A stock client with the patience that its users are told to have, as fast as it may."""

    def __init__(self, url: str) -> None:
        quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        self.client = pulsar.Client(url, logger=quiet)
        self.producer = self.client.create_producer(
            TOPIC,
            send_timeout_millis=0,
            block_if_queue_full=True,
            max_pending_messages=500,
            batching_enabled=False,
        )
        self.sent = self.acknowledged = 0
        self.errors: list[str] = []
        self._stopping = False

    async def run(self) -> None:
        """Until it is stopped. Its thread waits for answers for ever: a test that failed does not wait along."""
        await DaemonThreads(1, "publishing").run(self._publish)

    def _publish(self) -> None:
        while not self._stopping:
            self.producer.send_async(b"%d " % self.sent + PAYLOAD, self._answered)
            self.sent += 1
        self.producer.flush()

    def _answered(self, result: pulsar.Result, _: object) -> None:
        self.acknowledged += result == pulsar.Result.Ok
        if result != pulsar.Result.Ok:
            self.errors.append(str(result))

    def stop(self) -> None:
        self._stopping = True

    def read(self) -> list[int]:
        reader, found = self.client.create_reader(TOPIC, pulsar.MessageId.earliest), []
        while reader.has_message_available():
            found.append(int(reader.read_next(30_000).data().split()[0]))
        self.client.close()
        return found


async def rate(publishing: Publishing, seconds: float) -> float:
    """Messages acknowledged in a second."""
    before, began = publishing.acknowledged, time.monotonic()
    await asyncio.sleep(seconds)
    return (publishing.acknowledged - before) / (time.monotonic() - began)


def memory_mb(cluster: Wired) -> float:
    [pid] = [pid for pid, name in cluster.names().items() if name == BROKER]
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


async def test_a_store_that_hangs_is_waited_for(cluster: Wired) -> None:
    publishing = await asyncio.to_thread(Publishing, cluster.service_url)
    running, soon_s = asyncio.create_task(publishing.run()), SOON_S * times_slower()
    await asyncio.sleep(3)
    before, memory_before = await rate(publishing, 4), memory_mb(cluster)
    cluster.network.cut(BROKER, "store")
    used, memory, began = 0.0, 0.0, time.monotonic()
    while time.monotonic() < began + HANG_S:
        metrics = await cluster.metrics(BROKER)
        used = max(
            used, metrics["quire_serving_bytes_in_flight"] / metrics["quire_serving_bytes_in_flight_max"]
        )
        memory = max(memory, memory_mb(cluster))
        await asyncio.sleep(0.5)
    assert metrics["quire_wal_open"] == 1, "a store that does not answer ends nothing"
    cluster.network.mend(BROKER, "store")
    mended = time.monotonic()
    while (after := await rate(publishing, 2)) < before / 2:
        assert time.monotonic() < mended + soon_s, f"{after:.0f}/s, and {before:.0f}/s before"
    print(f"{before:.0f}/s, {after:.0f}/s {time.monotonic() - mended:.1f} s after {HANG_S:.0f} s; ", end="")
    print(f"{used:.2f} of the budget; memory from {memory_before:.0f} to {memory:.0f} MB")
    publishing.stop()
    await running
    assert not publishing.errors, publishing.errors[:3]
    assert await asyncio.to_thread(publishing.read) == list(range(publishing.sent))
    assert used <= 1.25, "and what sockets had given before"
    assert memory < memory_before + 150


SAID = {
    "AccessDenied": b"HTTP/1.1 403 Forbidden",
    "NoSuchBucket": b"HTTP/1.1 404 Not Found",
}


@pytest.mark.parametrize("code", SAID)
async def test_a_store_that_bars_the_broker_is_told_until_it_does_not(cluster: Wired, code: str) -> None:
    body = b"<Error><Code>%b</Code><Message>no</Message></Error>" % code.encode()
    answer = b"%b\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%b" % (SAID[code], len(body), body)
    publishing = await asyncio.to_thread(Publishing, cluster.service_url)
    running = asyncio.create_task(publishing.run())
    await rate(publishing, 2)
    cluster.network.turn_away(BROKER, "store", answer)
    await until(cluster, lambda status, why: status == 503 and code in why)
    await asyncio.sleep(8)  # of trying again
    cluster.network.mend(BROKER, "store")
    await until(cluster, lambda status, why: status == 200)
    await rate(publishing, 2)
    publishing.stop()
    await running
    assert not publishing.errors, publishing.errors[:3]
    found = await asyncio.to_thread(publishing.read)
    assert list(dict.fromkeys(found)) == list(range(publishing.sent)), "what had no answer may be there twice"
    told = [line for line in log(cluster).splitlines() if " ERROR   quire.wal" in line]
    assert len(told) == 1 and code in told[0] and "nothing can be published" in told[0], told
    assert "Traceback" not in log(cluster)


def log(cluster: Wired) -> str:
    return (cluster.data / "logs" / f"{BROKER}.log").read_text()


async def until(cluster: Wired, is_so: Callable[[int, str], bool]) -> None:
    """Wait until /health/ready answers so."""
    async with asyncio.timeout(60):
        while True:
            status, why = await asyncio.to_thread(ready, cluster)
            if is_so(status, why):
                return
            await asyncio.sleep(POLL_S)


def ready(cluster: Wired) -> tuple[int, str]:
    url = f"http://{cluster._http[BROKER]}/health/ready"
    try:
        with urllib.request.urlopen(url, timeout=ATTEMPT_S) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_wrong_credentials_are_told_in_a_sentence_at_start(tmp_path: Path) -> None:
    if versitygw() is None:
        pytest.skip(f"moto lets everybody in; go install {VERSITYGW}")
    store = S3(tmp_path / "s3", free_port())
    server = subprocess.Popen(store.command(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = store.url(f"127.0.0.1:{store.port}").replace(SECRET_KEY, "another-secret")
    words = ["--data", f"{tmp_path}/data", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--wal", url]
    try:
        while not asyncio.run(store.answers()):
            time.sleep(POLL_S)
        ran = subprocess.run(
            [sys.executable, "-m", "quire", "standalone", *words],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    finally:
        server.kill()
        server.wait()
    assert ran.returncode == 2 and "SignatureDoesNotMatch" in ran.stderr and "Traceback" not in ran.stderr
    assert "another-secret" not in ran.stderr
