"""A broker's HTTP side in a thread, with topics that tests make up, and an archive written through `tiering`."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import pulsar
import pytest
from aiohttp import web

from quire.identity.marker import NAME as MARKER
from quire.identity.marker import encode_marker, read_marker_blocking
from quire.objects.open import open_blocking
from quire.runtime.limits import MIB
from quire.testing.place import CLUSTER
from quire.tiering.segment_object import SegmentBuilder, footer_crc
from quire.wire import block
from quire.wire.message import read_metadata
from quire.wire.publish_time import ANY_TIME_MS, publish_times
from tests.moto_store import moto_store

TIME_MS = 1_700_000_000_000


@dataclass
class Segment:
    """One segment of a made-up topic: its blocks, and what the broker says of it."""

    ledger_id: int
    blocks: list[bytes]
    state: str = "sealed"
    archive: dict[str, Any] | None = None
    on_broker: bool = True
    """False: the broker answers 404 for its blocks."""
    times: dict[str, int] = field(default_factory=dict)
    """Of those that the record of a segment has beside the clocks of its blocks."""

    def described(self) -> dict[str, Any]:
        headers = [block.read_header(content) for content in self.blocks]
        messages = [sum(block.message_counts(c, h)) for c, h in zip(self.blocks, headers, strict=True)]
        return {
            "ledger_id": self.ledger_id,
            "first_index": headers[0].first_index if headers else 0,
            "last_entry": headers[-1].last_entry if headers else -1,
            "messages": sum(messages),
            "bytes": sum(map(len, self.blocks)),
            "first_clock_ms": headers[0].clock_ms if headers else 0,
            "last_clock_ms": headers[-1].clock_ms if headers else 0,
            "state": self.state,
            "archive": self.archive,
            "on_bookies": self.on_broker,
        } | self.times

    def range(self, start_ms: int, end_ms: int) -> tuple[int, int]:
        """Return the entries from the first to the last one published in a range, as `TimeSearch.ranges`."""
        found = [
            header.first_entry + number
            for one in self.blocks
            for header in (block.read_header(one),)
            for number, time_ms in enumerate(publish_times(one, header))
            if time_ms == ANY_TIME_MS or start_ms <= time_ms < end_ms
        ]
        return (found[0], found[-1] + 1) if found else (0, 0)


@dataclass
class FakeBroker:
    """Topics by full name; a partitioned parent is a number of partitions."""

    url: str = ""
    topics: dict[str, list[Segment] | int] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    failures: list[int] = field(default_factory=list)
    """Statuses to answer with before answering rightly."""
    next_index: int = 0
    lacking: list[int] = field(default_factory=list)
    """For each of the next plans, the place of a segment that it lacks."""
    cursors: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    """By topic and subscription: `next`, the entry that is read next, and `properties`."""
    generations: dict[str, int] = field(default_factory=dict)
    """By topic; a broker of an older version gives none."""
    trimmed: dict[str, int] = field(default_factory=dict)
    """The next index of topics without segments."""
    has_ranges: bool = True
    """False: a broker of an older version, which does not search segments for a range of times."""
    compacted: set[str] = field(default_factory=set)
    """Topics that a compaction has left a result of."""
    tables: list[dict[str, str]] = field(default_factory=list)
    """Policies that an Iceberg table is kept fresh."""
    schemas: dict[str, list[tuple[str, ...]]] = field(default_factory=dict)
    """By topic, its versions: kind, definition, and properties as JSON where there are any."""

    def segment(
        self,
        ledger_id: int,
        entries: Sequence[bytes],
        counts: Sequence[int] | None = None,
        *,
        per_block: int = 50,
        clock_ms: int = TIME_MS,
        state: str = "sealed",
    ) -> Segment:
        """A segment of these entries, its message index after that of the segment made before."""
        counts = counts or [1] * len(entries)
        blocks = []
        for i in range(0, len(entries), per_block):
            some = slice(i, i + per_block)
            blocks.append(
                bytes(block.cut(ledger_id, i, i - 1, clock_ms, self.next_index, entries[some], counts[some]))
            )
            self.next_index += sum(counts[some])
        return Segment(ledger_id, blocks, state)

    def application(self) -> web.Application:
        app = web.Application(middlewares=[self._fail])
        topic = "/quire/v1/topics/{domain}/{tenant}/{namespace}/{topic}"
        admin = "/admin/v2/persistent/{tenant}/{namespace}"
        app.add_routes(
            [
                web.get(f"{topic}/segments", self._segments),
                web.get(f"{topic}/blocks", self._blocks),
                web.get("/admin/v2/tenants", self._tenants),
                web.get("/quire/v1/iceberg", self._tables),
                web.get("/admin/v2/namespaces/{tenant}", self._namespaces),
                web.get(admin, self._list),
                web.get(f"{admin}/{{topic}}/partitions", self._partitions),
                web.get("/admin/v2/schemas/{tenant}/{namespace}/{topic}/schema", self._schema),
                web.get("/admin/v2/schemas/{tenant}/{namespace}/{topic}/schema/{version}", self._schema),
                web.get(f"{admin}/{{topic}}/lastMessageId", self._last),
                web.get(f"{admin}/{{topic}}/getMessageIdByIndex", self._by_index),
                web.get(f"{admin}/{{topic}}/messageid/{{time_ms}}", self._by_time),
                web.get(f"{admin}/{{topic}}/internalStats", self._internal),
                web.put(f"{admin}/{{topic}}/subscription/{{subscription}}", self._subscribe),
                web.post(f"{admin}/{{topic}}/subscription/{{subscription}}/resetcursor", self._reset),
            ]
        )
        return app

    @web.middleware
    async def _fail(self, request: web.Request, handler: Any) -> web.StreamResponse:
        self.requests.append(request.path)
        if self.failures:
            return web.Response(status=self.failures.pop(0), text="not now")
        response: web.StreamResponse = await handler(request)
        return response

    def _find(self, request: web.Request) -> tuple[str, list[Segment] | int]:
        name = "persistent://{tenant}/{namespace}/{topic}".format(**request.match_info)
        if name not in self.topics:
            raise web.HTTPNotFound(text=f"no topic {name}")
        return name, self.topics[name]

    async def _segments(self, request: web.Request) -> web.Response:
        name, content = self._find(request)
        if isinstance(content, int):
            return web.json_response(
                {"topic": name, "partitions": content, "end": {"ledger": -1, "entry": -1}, "segments": []}
            )
        described = [segment.described() for segment in content]
        if self.has_ranges and {"start_ms", "end_ms"} & request.query.keys():
            start_ms, end_ms = (int(request.query.get(key, "0")) for key in ("start_ms", "end_ms"))
            for segment, row in zip(content, described, strict=True):
                if not segment.archive:
                    row["first_entry"], row["end_entry"] = segment.range(start_ms, end_ms or 1 << 63)
        end = {"ledger": -1, "entry": -1}
        if described:
            end = {"ledger": described[-1]["ledger_id"], "entry": described[-1]["last_entry"]}
        if self.lacking:
            del described[self.lacking.pop(0)]
        answer = {"topic": name, "partitions": 0, "end": end, "segments": described}
        if name in self.generations:
            answer["generation"] = self.generations[name]
        return web.json_response(answer)

    async def _blocks(self, request: web.Request) -> web.Response:
        _, content = self._find(request)
        ledger_id, entry, size = (int(request.query[key]) for key in ("ledger", "entry", "bytes"))
        assert not isinstance(content, int)
        found = [segment for segment in content if segment.ledger_id == ledger_id and segment.on_broker]
        if not found:
            raise web.HTTPNotFound(text="trimmed")
        body = b""
        for one in found[0].blocks:
            if block.read_header(one).last_entry >= entry and (not body or len(body) + len(one) <= size):
                body += one
        return web.Response(body=body, content_type="application/octet-stream")

    def _segments_of(self, request: web.Request) -> tuple[str, list[dict[str, Any]]]:
        name, content = self._find(request)
        assert not isinstance(content, int)
        return name, [segment.described() for segment in content]

    async def _last(self, request: web.Request) -> web.Response:
        _, found = self._segments_of(request)
        last = found[-1] if found else {"ledger_id": -1, "last_entry": -1}
        return web.json_response({"ledgerId": last["ledger_id"], "entryId": last["last_entry"]})

    async def _by_index(self, request: web.Request) -> web.Response:
        _, content = self._find(request)
        assert not isinstance(content, int)
        index = int(request.query["index"])
        for segment in content:
            for one in segment.blocks:
                header = block.read_header(one)
                first = header.first_index
                for entry_id, count in enumerate(block.message_counts(one, header), header.first_entry):
                    if first <= index < first + count:
                        return web.json_response({"ledgerId": segment.ledger_id, "entryId": entry_id})
                    first += count
        raise web.HTTPNotFound(text=f"no message {index}")

    async def _by_time(self, request: web.Request) -> web.Response:
        """Return the first entry published then or later; behind the last one when there is none."""
        _, content = self._find(request)
        assert not isinstance(content, int)
        ledger, number = -1, 0
        for segment in content:
            for one in segment.blocks:
                header = block.read_header(one)
                for number, entry in enumerate(block.entries(one, header), header.first_entry):
                    ledger = segment.ledger_id
                    if read_metadata(entry)[0].publish_time >= int(request.match_info["time_ms"]):
                        return web.json_response({"ledgerId": ledger, "entryId": number})
        return web.json_response({"ledgerId": ledger, "entryId": number + 1})

    async def _internal(self, request: web.Request) -> web.Response:
        name, found = self._segments_of(request)
        ledgers = [{"firstIndex": one["first_index"], "messages": one["messages"]} for one in found]
        ledgers += [{"firstIndex": self.trimmed[name], "messages": 0}] if name in self.trimmed else []
        cursors = {
            subscription: {
                "markDeletePosition": f"{one['next'][0]}:{one['next'][1] - 1}",
                "properties": one["properties"],
            }
            for (topic, subscription), one in self.cursors.items()
            if topic == name
        }
        compacted = {"ledgerId": 77 if name in self.compacted else -1}
        return web.json_response({"ledgers": ledgers, "cursors": cursors, "compactedLedger": compacted})

    async def _schema(self, request: web.Request) -> web.Response:
        name = "persistent://{tenant}/{namespace}/{topic}".format(**request.match_info)
        versions = self.schemas.get(name, [])
        number = int(request.match_info.get("version", len(versions) - 1))
        if not 0 <= number < len(versions):
            raise web.HTTPNotFound(text=f"topic {name} has no such schema")
        kind, data, *more = versions[number]
        properties = json.loads(more[0]) if more else {}
        return web.json_response({"version": number, "type": kind, "data": data, "properties": properties})

    async def _subscribe(self, request: web.Request) -> web.Response:
        """Make a subscription; as in a broker that creates topics on use, the topic as well."""
        self.topics.setdefault("persistent://{tenant}/{namespace}/{topic}".format(**request.match_info), [])
        name, _ = self._find(request)
        key = name, request.match_info["subscription"]
        if key in self.cursors:
            raise web.HTTPConflict(text="there already")
        body = await request.json()
        at = body["ledgerId"], body["entryId"]
        self.cursors[key] = {"next": at, "properties": body["properties"]}
        return web.Response(status=204)

    async def _reset(self, request: web.Request) -> web.Response:
        name, _ = self._find(request)
        key = name, request.match_info["subscription"]
        if key not in self.cursors:
            raise web.HTTPNotFound(text="no such subscription")
        body = await request.json()
        self.cursors[key]["next"] = body["ledgerId"], body["entryId"]
        return web.Response(status=204)

    async def _tables(self, _: web.Request) -> web.Response:
        return web.json_response(self.tables)

    async def _tenants(self, _: web.Request) -> web.Response:
        return web.json_response(sorted({name.split("/")[2] for name in self.topics}))

    async def _namespaces(self, request: web.Request) -> web.Response:
        of_tenant = f"persistent://{request.match_info['tenant']}/"
        found = {"/".join(name.split("/")[2:4]) for name in self.topics if name.startswith(of_tenant)}
        return web.json_response(sorted(found))

    async def _list(self, request: web.Request) -> web.Response:
        prefix = "persistent://{tenant}/{namespace}/".format(**request.match_info)
        plain = [n for n, c in self.topics.items() if n.startswith(prefix) and not isinstance(c, int)]
        return web.json_response(plain)

    async def _partitions(self, request: web.Request) -> web.Response:
        name = "persistent://{tenant}/{namespace}/{topic}".format(**request.match_info)
        content = self.topics.get(name, 0)
        return web.json_response({"partitions": content if isinstance(content, int) else 0})


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    fake = FakeBroker()
    ready = threading.Event()
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()

    async def serve() -> None:
        runner = web.AppRunner(fake.application())
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        fake.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        ready.set()
        await stop.wait()
        await runner.cleanup()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    assert ready.wait(10)
    yield fake
    loop.call_soon_threadsafe(stop.set)
    thread.join(10)
    loop.close()


class Archivist:
    """Writes segments into an object store, as the offload does."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.store = open_blocking(url)
        self.store.prepare()
        if read_marker_blocking(self.store) is None:
            upload = self.store.begin(MARKER)
            upload.write([encode_marker(CLUSTER)])
            upload.finish()

    def archive(self, segment: Segment, *, keep_on_broker: bool = False) -> None:
        """Write the segment's object and record it; the broker's copy is gone unless kept."""
        builder = SegmentBuilder(segment.ledger_id)
        for one in segment.blocks:
            builder.add(one)
        footer, tail = builder.finish()
        name = f"segments/{segment.ledger_id}-{os.urandom(4).hex()}"
        content = b"".join((*segment.blocks, tail))
        upload = self.store.begin(name)
        for start in range(0, len(content), 8 * MIB):
            upload.write([content[start : start + 8 * MIB]])
        upload.finish()
        crc = footer_crc(tail)
        segment.archive = {"store": self.url, "name": name, "bytes": footer.object_bytes, "crc": crc}
        segment.state = "archived"
        segment.on_broker = keep_on_broker


@pytest.fixture
def archivist(tmp_path: Path) -> Archivist:
    return Archivist(f"file://{tmp_path}/archive")


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An S3 bucket's URL. boto3 finds the credentials in the environment, and so do Spark's workers.

    All of moto's servers in a process have the same buckets: each test has one of its own.
    """
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    name = f"bucket-{os.urandom(4).hex()}"
    with moto_store(name) as endpoint:
        yield f"s3://{name}/quire?endpoint={endpoint}&region=us-east-1"


class Server(NamedTuple):
    """A real `quire standalone`."""

    pulsar_url: str
    http_url: str

    def archive(self) -> None:
        """Seal what is open and archive it."""
        request = urllib.request.Request(f"{self.http_url}/quire/v1/archive/run?seal=true", method="POST")
        with urllib.request.urlopen(request, timeout=60) as answer:
            json.load(answer)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    data: Path = tmp_path_factory.mktemp("standalone")
    loopback = "127.0.0.1:0"
    command = [sys.executable, "-m", "quire", "standalone", "--data", str(data)]
    process = subprocess.Popen(
        [*command, "--listen", loopback, "--http", loopback], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    ready = process.stdout.readline().split()
    assert ready[0] == "ready", ready
    yield Server(ready[1], ready[2])
    process.terminate()
    process.wait(30)


@pytest.fixture
def client(server: Server) -> Iterator[pulsar.Client]:
    made = pulsar.Client(server.pulsar_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    yield made
    made.close()


def at_most(rows: int) -> dict[str, str]:
    """The limit of a micro-batch, where this version of PySpark has limits for streams."""
    from quire.spark_source.stream.reader import HAS_LIMITS

    return {"max_rows_per_trigger": str(rows)} if HAS_LIMITS else {}


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    """A session that was told nothing of the data source."""
    with spark_session("local[2]") as session:
        yield session


@contextmanager
def spark_session(master: str, **settings: str) -> Iterator[Any]:
    """A quiet session on loopback whose workers find this tree; `settings` are Spark's, with `__` for a dot."""
    root = str(Path(__file__).parents[2])
    python = {
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH")))),
    }
    from pyspark.sql import SparkSession

    builder = (
        SparkSession.builder.master(master)
        .appName("quire-tests")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
    )
    for name, value in settings.items():
        builder = builder.config(name.replace("__", "."), value)
    with patch.dict(os.environ, python):
        session = builder.getOrCreate()
        session.sparkContext.setLogLevel("OFF")
        yield session
        session.stop()
