"""`quire demo`: publishes, consumes, archives and reads real data, kills the server meanwhile, and checks the result.

Every line of Python's own standard library becomes a message whose key is the file, published with the stock Pulsar
client and consumed by three consumers of one shared subscription. Halfway, the server is killed and restarted. Then all
segments are sealed and archived. Spark reads them back, and streams them into another topic.

The result compares five multisets of (key, line), by their sizes and the sums of their members' CRC32: the messages
published, acknowledged by the server, received by the consumers (counted once per id), read by Spark, and in the other
topic. Deduplication is enabled, so messages that the client resends after the kill are stored once. Exit code 0 means
that all five are equal and the subscription's backlog is empty.

Reading order: `_story`, then `proof`, `server`, `clients` and `spark` in `demo/`.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from quire.cli.noun import json_option
from quire.cli.output import Table, print_json
from quire.demo.proof import Multiset, Proof
from quire.demo.server import DemoServer
from quire.process.child import QUIRE
from quire.runtime.errors import ConfigurationError, QuireError
from quire.runtime.installation import pip_install
from quire.runtime.rest import Admin

TOPIC = "persistent://public/default/stdlib"
STATS = "/admin/v2/persistent/public/default/stdlib/stats"
STREAMED = "persistent://public/default/stdlib-streamed"
SUBSCRIPTION = "demo"
CONSUMERS = 3


class Narrator:
    """Prints lines with the seconds since the start; to standard error if standard output has the JSON result."""

    def __init__(self, *, quiet_stdout: bool) -> None:
        self.to_stderr = quiet_stdout
        self._began = time.monotonic()

    def say(self, text: str) -> None:
        click.echo(f"{time.monotonic() - self._began:6.1f} s  {text}", err=self.to_stderr)


@click.command("demo", epilog="Example: quire demo --lines 100000")
@click.option(
    "--lines", type=click.IntRange(min=1000), help="Publish only this number of lines.  [all of them]"
)
@click.option("--keep", is_flag=True, help="Keep the data directory and the logs.")
@json_option
def command(lines: int | None, keep: bool, as_json: bool) -> None:
    """Publish and consume real data, kill the server, archive, read back with Spark, and compare all counts.

    \b
    Examples:
      quire demo
      quire demo --lines 100000 --keep
    """
    if importlib.util.find_spec("pulsar") is None:
        raise ConfigurationError(
            f"the demo needs the stock Pulsar client, which is not installed: {pip_install('demo')}"
        )
    narrator = Narrator(quiet_stdout=as_json)
    directory = Path(tempfile.mkdtemp(prefix="quire-demo-"))
    try:
        proof = _story(directory, lines, narrator)
    finally:
        if keep:
            narrator.say(f"kept {directory}")
        else:
            shutil.rmtree(directory, ignore_errors=True)
    _print_proof(proof, as_json)
    if not proof.agrees:
        raise QuireError("the demo's counts differ; run it with --keep and check the logs")
    if proof.spark is None:
        raise QuireError(f"the check is incomplete: {why_no_spark()}; all other counts are equal")


def _story(directory: Path, lines: int | None, narrator: Narrator) -> Proof:
    """Run the steps of the demo, and return the counts."""
    from quire.demo.clients import Consumers, Publisher, connect

    texts = standard_library(lines)
    files = len({key for key, _ in texts})
    narrator.say(f"{len(texts):,} lines in {files:,} files of Python's standard library, a message each")
    with DemoServer(QUIRE, directory) as server:
        narrator.say(f"server ready in {server.start():.1f} s at {server.service_url}, data in {server.data}")
        with connect(server.service_url, directory / "client.log") as session:
            consumers = Consumers(session, TOPIC, SUBSCRIPTION, CONSUMERS)
            publisher = Publisher(session, TOPIC, texts)
            narrator.say(f"publishing, and consuming with {CONSUMERS} consumers of one shared subscription")
            publisher.start()
            publisher.wait_for(len(texts) // 2)
            killed_ms = _kill_and_start(server, publisher, consumers, narrator)
            publisher.join()
            narrator.say(f"published all: {publisher.acknowledged.messages:,} acknowledged")
            consumers.wait_for(len(texts))
            backlog = _backlog(Admin(server.http_url))
            consumers.close()
            narrator.say(f"consumed all: {consumers.received:,} deliveries")
        proof = Proof(publisher.published, publisher.acknowledged, consumers.consumed)
        proof.redelivered = consumers.received - consumers.consumed.messages
        proof.backlog = backlog
        _archive(Admin(server.http_url, timeout_s=300), narrator)
        _spark(server, directory, killed_ms, proof, narrator)
        narrator.say(f"server stopped by SIGTERM in {server.stop():.1f} s")
    return proof


def standard_library(lines_max: int | None) -> list[tuple[str, bytes]]:
    """Return (file, line) for every line of the interpreter's own library, in the order of the files' names."""
    root = Path(sysconfig.get_path("stdlib"))

    def read() -> Iterator[tuple[str, bytes]]:
        for path in sorted(root.rglob("*.py")):
            if not {"site-packages", "dist-packages"}.intersection(path.parts):
                key = path.relative_to(root).as_posix()
                for line in path.read_bytes().splitlines():
                    yield key, line

    return [pair for pair, _ in zip(read(), range(lines_max or sys.maxsize), strict=False)]


def _kill_and_start(server: DemoServer, publisher: Any, consumers: Any, narrator: Narrator) -> int:
    """Kill the server and start it again; return the time of the kill in ms."""
    server.kill()
    killed_ms = time.time_ns() // 1_000_000
    narrator.say(
        f"killed the server (SIGKILL) after {publisher.acknowledged.messages:,} acknowledgements"
        f" and {consumers.received:,} deliveries"
    )
    narrator.say(f"started again on the same data: ready in {server.start():.1f} s")
    return killed_ms


def _backlog(admin: Admin) -> int:
    """Return the subscription's backlog after the last acknowledgements have arrived.

    The consumers must still be connected: acknowledgements that the client had not sent before the kill are lost, so
    these messages are redelivered.
    """
    from quire.demo.clients import Progress

    progress = Progress()
    while True:
        backlog = int(admin.get(STATS)["subscriptions"][SUBSCRIPTION]["msgBacklog"])
        if backlog == 0 or progress.has_stalled(backlog):
            return backlog
        time.sleep(0.1)


def _archive(admin: Admin, narrator: Narrator) -> None:
    report = admin.post("/quire/v1/archive/run?seal=true")
    narrator.say(f"sealed and archived {report['archived']} segments, {report['archived_bytes']:,} bytes")
    verified = admin.post("/quire/v1/archive/verify")
    if verified["damaged"]:
        raise QuireError(f"the archive is damaged: {verified['damaged'][0]}")
    narrator.say(f"verified every byte of {verified['objects']} archived objects")


def _spark(server: DemoServer, directory: Path, killed_ms: int, proof: Proof, narrator: Narrator) -> None:
    """Add Spark's counts to `proof`, if Spark can run here."""
    reason = why_no_spark()
    if reason:
        narrator.say(f"skipping Spark: {reason}")
        return
    from quire.demo.spark import History

    narrator.say("Spark reads the history from the archive")
    with History(server.http_url, TOPIC) as history:
        proof.spark = Multiset(*history.count_and_checksum())
        narrator.say(f"Spark read {proof.spark.messages:,} rows")
        for title, columns, rows in history.tables(killed_ms):
            click.echo(f"\n{title}", err=narrator.to_stderr)
            Table(columns, rows, right=("lines", "length")).print(err=narrator.to_stderr)
        click.echo(err=narrator.to_stderr)
        batches = history.stream_into(STREAMED, directory / "checkpoint")
        narrator.say(f"Spark streamed the history into {STREAMED} in micro-batches: {batches}")
        proof.streamed = Multiset(*history.count_and_checksum(STREAMED))


def why_no_spark() -> str:
    """Return why Spark cannot run here; empty if it can."""
    for module in ("pyspark", "pyarrow", "numpy"):
        if importlib.util.find_spec(module) is None:
            return f"{module} is not installed: {pip_install('demo')}"
    home = os.environ.get("JAVA_HOME")
    if shutil.which("java") is None and not (home and Path(home, "bin", "java").exists()):
        return "Java 17 or newer is not installed on this machine"
    return ""


def _print_proof(proof: Proof, as_json: bool) -> None:
    if as_json:
        print_json({**asdict(proof), "agrees": proof.agrees})
        return
    rows = [(name, f"{one.messages:,}", f"{one.checksum:x}") for name, one in proof.parties.items()]
    click.echo()
    Table(("the proof", "messages", "checksum"), rows, right=("messages",)).print()
    click.echo(f"\nleft to consume: {proof.backlog}; delivered again after the kill: {proof.redelivered:,}")
    if proof.agrees:
        click.echo(" = ".join(proof.parties))
