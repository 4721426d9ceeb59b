"""Benchmark of reading the archive with Spark, compared with Kafka and an upper bound: `python -m bench.spark_peers`.

The same number of messages of 1 KiB is read with `local[2]` into Spark's no-op sink, alternately in one session:

- *prebuilt*: Arrow batches with Quire's columns, built in advance in the Python worker, through the same data source
  API. No source in Python can be faster.
- *Quire*, from an archive in a directory: single messages, batches of 100, the same batches compressed by lz4 and zstd
  (JSON, to 54 % and 30 % of its size), and without values. Each is cut into the same number of tasks.
- *Kafka*, by Spark's own connector (a source in the JVM) from a Kafka broker on this machine: the same messages in four
  partitions, in uncompressed batches of 100. Maven must be able to fetch both into `build/kafka`.

Each result is a line of JSON: rows per second of the best of three runs, and the CPU time of JVM and Python workers
together. Then the ratios of the rates and of the CPU times follow. An argument sets the number of rows.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.version import __version__ as SPARK_VERSION

from bench.report import machine, show
from bench.spark import BATCH, MESSAGE_BYTES, SEGMENT_BYTES, TIME_MS, archive, cpu_s, serve, session
from quire.spark_source import schema
from quire.wire import pulsar_pb2 as pb

ROWS: Final = 600_000
RUNS: Final = 3
BATCH_ROWS: Final = 8192
TASKS: Final = 4
BUILT: Final = Path(__file__).parents[1] / "build" / "kafka"
KAFKA_VERSION: Final = "4.1.0"
TOPIC: Final = "rows"
START_S: Final = 60.0

POM: Final = """<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>bench</groupId><artifactId>{artifact}</artifactId><version>1</version><dependencies><dependency>
<groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{version}</version>
</dependency></dependencies></project>
"""

BROKER: Final = """process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
controller.listener.names=CONTROLLER
offsets.topic.replication.factor=1
num.partitions={partitions}
log.dirs={directory}
"""


# -- prebuilt batches -------------------------------------------------------------------------------------


class PrebuiltReader(DataSourceReader):
    def __init__(self, rows: int) -> None:
        self._rows = rows

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(self._rows // TASKS) for _ in range(TASKS)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        batch = _batch()
        for left in range(partition.value, 0, -BATCH_ROWS):
            yield batch.slice(0, min(left, BATCH_ROWS))


class Prebuilt(DataSource):
    @classmethod
    def name(cls) -> str:
        return "prebuilt"

    def schema(self) -> str:
        return schema.ddl(schema.COLUMNS)

    def reader(self, schema: Any) -> PrebuiltReader:
        return PrebuiltReader(int(self.options["rows"]))


def _batch() -> pa.RecordBatch:
    """Return a record batch of Quire's columns with values of 1 KiB."""
    same: dict[str, Any] = {
        "topic": "persistent://public/default/rows",
        "partition": -1,
        "ledger": 1,
        "entry": 1,
        "batch_index": 1,
        "message_index": 1,
        "key": None,
        "value": bytes(MESSAGE_BYTES),
        "properties": [],
        "publish_time": TIME_MS * 1000,
        "event_time": None,
        "producer": "bench-0",
        "sequence": 1,
    }
    fields = schema.arrow(schema.COLUMNS)
    return pa.RecordBatch.from_arrays(
        [pa.array([same[field.name]] * BATCH_ROWS, field.type) for field in fields], schema=fields
    )


# -- Kafka ------------------------------------------------------------------------------------------------


def fetched(group: str, artifact: str, version: str) -> list[str]:
    """Return the jars of an artifact and its dependencies, fetched by Maven; empty if Maven fails."""
    directory = BUILT / f"{artifact}-{version}"
    if not directory.exists() and shutil.which("mvn"):
        BUILT.mkdir(parents=True, exist_ok=True)
        pom = BUILT / f"{artifact}.xml"
        pom.write_text(POM.format(group=group, artifact=artifact, version=version))
        goal = ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={directory}"]
        subprocess.run(["mvn", "-q", "-B", "-f", str(pom), *goal], capture_output=True, check=False)
    return [str(jar) for jar in sorted(directory.glob("*.jar"))]


@contextlib.contextmanager
def kafka(jars: list[str], directory: Path) -> Iterator[str]:
    """Run a Kafka broker on the loopback interface, and yield its address."""
    port, controller = _free_port(), _free_port()
    settings = directory / "kafka.properties"
    settings.write_text(
        BROKER.format(port=port, controller=controller, partitions=TASKS, directory=directory / "kafka")
    )
    java = ["java", "-cp", ":".join(jars)]
    cluster = subprocess.run(
        [*java, "kafka.tools.StorageTool", "random-uuid"], capture_output=True, text=True, check=True
    )
    form = [*java, "kafka.tools.StorageTool", "format", "-t", cluster.stdout.split()[-1], "-c", str(settings)]
    subprocess.run(form, capture_output=True, check=True)
    with (directory / "kafka.log").open("w") as log:
        broker = subprocess.Popen([*java, "kafka.Kafka", str(settings)], stdout=log, stderr=log)
    try:
        _wait_for(port)
        yield f"127.0.0.1:{port}"
    finally:
        broker.terminate()
        broker.wait(START_S)


def _wait_for(port: int) -> None:
    until = time.monotonic() + START_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.2)


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


# -- the measurement --------------------------------------------------------------------------------------


class Run(NamedTuple):
    seconds: float
    cpu_s: float


def measure(frames: dict[str, Any]) -> dict[str, Run]:
    """Return the best run of each frame. Runs of the frames alternate, and the first run of each is a warm-up."""
    found: dict[str, list[Run]] = {name: [] for name in frames}
    for _ in range(RUNS + 1):
        for name, frame in frames.items():
            start, cpu_start = time.perf_counter(), cpu_s()
            frame.write.format("noop").mode("overwrite").save()
            found[name].append(Run(time.perf_counter() - start, cpu_s() - cpu_start))
    return {name: Run(*map(min, zip(*runs[1:], strict=True))) for name, runs in found.items()}


def _why_without(connector: list[str]) -> str:
    if not shutil.which("mvn"):
        return "mvn, which downloads Spark's connector and Kafka, is not in PATH: install Maven"
    if connector:
        return f"Maven cannot fetch kafka_2.13 {KAFKA_VERSION}"
    return (
        f"Maven cannot fetch spark-sql-kafka-0-10_2.13 {SPARK_VERSION}: it may not be published for this PySpark yet; "
        "install one that has it, such as pyspark==4.2.0"
    )


def main() -> None:
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else ROWS
    show("machine", **machine())
    connector = fetched("org.apache.spark", "spark-sql-kafka-0-10_2.13", SPARK_VERSION)
    broker = fetched("org.apache.kafka", "kafka_2.13", KAFKA_VERSION) if connector else []
    if not broker:
        show("kafka", left_out=_why_without(connector))
    with contextlib.ExitStack() as stack:
        directory = Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="quire-bench-", dir="/var/tmp"))
        )
        made = {
            "batched": (BATCH, pb.NONE),
            "single": (1, pb.NONE),
            "lz4": (BATCH, pb.LZ4),
            "zstd": (BATCH, pb.ZSTD),
        }
        per_segment = SEGMENT_BYTES // MESSAGE_BYTES
        topics = {
            name: [
                archive(f"file://{directory}", 100 * number + i, first, min(per_segment, rows - first), *how)
                for i, first in enumerate(range(0, rows, per_segment))
            ]
            for number, (name, how) in enumerate(made.items())
        }
        server = serve(topics)
        stack.callback(server.shutdown)
        spark = session(jars=connector)
        stack.callback(spark.stop)
        spark.dataSource.register(Prebuilt)
        url = f"http://127.0.0.1:{server.server_port}"

        def quire(name: str, **options: str) -> Any:
            even = -(-3 * sum(one["bytes"] for one in topics[name]) // (4 * TASKS))
            options = {"service_url": url, "topic": name, "slice_bytes": str(even), **options}
            return spark.read.format("quire").options(**options).load()

        frames = {
            "prebuilt": spark.read.format("prebuilt").options(rows=rows).load(),
            **{name: quire(name) for name in made},
            "without_values": quire("batched", columns="key,message_index,publish_time"),
        }
        if broker:
            address = stack.enter_context(kafka(broker, directory))
            fill = quire("batched", columns="value").write.format("kafka").option("topic", TOPIC)
            sizes = {"kafka.batch.size": BATCH * MESSAGE_BYTES, "kafka.linger.ms": 20}
            fill.options(**{"kafka.bootstrap.servers": address, **sizes}).save()
            read = spark.read.format("kafka").option("kafka.bootstrap.servers", address)
            frames["kafka"] = read.option("subscribe", TOPIC).load()
        found = measure(frames)
    for name, one in found.items():
        show(name, rows=rows, rows_per_s=rows / one.seconds, cpu_us_per_row=one.cpu_s / rows * 1e6)
    pairs = [("batched", "prebuilt"), ("single", "prebuilt"), ("lz4", "batched"), ("zstd", "batched")]
    pairs += [("without_values", "batched"), ("batched", "kafka")]
    there = [(one, of) for one, of in pairs if of in found]
    show("Rates", **{f"{one}_of_{of}": found[of].seconds / found[one].seconds for one, of in there})
    show("CPU", **{f"{one}_of_{of}": found[of].cpu_s / found[one].cpu_s for one, of in there})


if __name__ == "__main__":
    main()
