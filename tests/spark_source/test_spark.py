"""Real Spark over an archive in a directory and in S3, and the open tail through a broker."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from quire.spark_source.broker import Broker
from quire.spark_source.sidecar.archive import build_all
from quire.wire import pulsar_pb2 as pb
from quire.wire.message import OutgoingMessage, encode_batch, encode_one, seal

pytestmark = pytest.mark.spark

TIME_MS = 1_700_000_000_000
TOPIC = "persistent://public/default/t"


def batches(first: int, count: int, codec: int = pb.NONE) -> tuple[list[bytes], list[int]]:
    """`count` batches of ten messages."""
    entries = []
    for i in range(first, first + count):
        messages = [
            OutgoingMessage(b"%06d" % (10 * i + j), key=f"k{j}", properties={"j": str(j)}) for j in range(10)
        ]
        entries.append(encode_batch(messages, "p", 10 * i, TIME_MS + i, codec))
    return entries, [10] * count


@pytest.fixture
def topic(broker: Any, archivist: Any) -> Any:
    """5,000 messages: two archived segments, a sealed and an active one, in all compressions."""
    segments = []
    for i, codec in enumerate((pb.NONE, pb.ZSTD, pb.LZ4, pb.SNAPPY, pb.ZLIB)):
        entries, counts = batches(100 * i, 100, codec)
        segments.append(broker.segment(10 + i, entries, counts, state="active" if i == 4 else "sealed"))
    for segment in segments[:3]:
        archivist.archive(segment)
    broker.topics[TOPIC] = segments
    return broker


def read(spark: Any, broker: Any, **options: str) -> Any:
    return spark.read.format("quire").options(service_url=broker.url, **({"topic": "t"} | options)).load()


def test_found_without_registration_and_everything_is_there(spark: Any, topic: Any) -> None:
    frame = read(spark, topic)
    assert frame.schema.simpleString() == (
        "struct<topic:string,partition:int,ledger:bigint,entry:bigint,batch_index:int,message_index:bigint,"
        "key:binary,value:binary,properties:map<string,string>,publish_time:timestamp,event_time:timestamp,"
        "producer:string,sequence:bigint>"
    )
    rows = frame.orderBy("message_index").collect()
    assert [int(row.value) for row in rows] == [row.message_index for row in rows] == list(range(5000))
    one = rows[1234]
    assert (one.topic, one.partition, one.ledger, one.entry, one.batch_index) == (TOPIC, -1, 11, 23, 4)
    assert (bytes(one.key), one.properties, one.producer, one.sequence) == (b"k4", {"j": "4"}, "p", 1234)
    when = datetime.fromtimestamp((TIME_MS + 123) / 1000, UTC)
    assert one.publish_time.astimezone(UTC) == when and one.event_time is None


def test_sql_over_ranges_and_columns(spark: Any, topic: Any) -> None:
    read(spark, topic, start="11:20", end="12:5:3", columns="key,message_index").createOrReplaceTempView(
        "part"
    )
    (row,) = spark.sql("SELECT count(*) n, min(message_index) lo, max(message_index) hi FROM part").collect()
    assert (row.n, row.lo, row.hi) == (853, 1200, 2052)
    (row,) = spark.sql("SELECT count(*) n FROM part WHERE key = X'6B33'").collect()
    assert row.n == 85
    frame = read(spark, topic, start=str(TIME_MS + 50), end=str(TIME_MS + 60))
    assert frame.count() == 100
    assert read(spark, topic, start="latest").count() == 0
    assert len(read(spark, topic).limit(3).collect()) == 3


def test_a_topic_without_messages_has_no_rows(spark: Any, broker: Any) -> None:
    broker.topics[TOPIC] = []
    assert read(spark, broker).collect() == []
    assert read(spark, broker).groupBy("key").count().collect() == []


def test_an_undecodable_entry_ends_the_query_or_is_kept(spark: Any, broker: Any) -> None:
    encrypted = seal(
        pb.MessageMetadata(
            producer_name="p",
            sequence_id=1,
            publish_time=TIME_MS,
            encryption_keys=[pb.EncryptionKeys(key="k", value=b"v")],
        ),
        b"secret",
    )
    ordinary = encode_one(OutgoingMessage(b"x"), "p", 0, TIME_MS)
    broker.topics[TOPIC] = [broker.segment(7, [ordinary, encrypted, ordinary])]
    with pytest.raises(Exception, match=f"entry 7:1 of {TOPIC} cannot be decoded: .*encrypted"):
        read(spark, broker).collect()
    rows = read(spark, broker, on_undecodable="raw").orderBy("entry").collect()
    assert [bytes(row.value) for row in rows] == [b"x", encrypted, b"x"]
    assert [row.undecoded is None for row in rows] == [True, False, True]
    assert rows[1].properties is None and rows[0].properties == {}


def test_what_sidecars_answer_without_the_segments(spark: Any, topic: Any, archivist: Any) -> None:
    assert build_all(Broker(topic.url)).built == 3
    expected = read(spark, topic, columns="key,properties,publish_time,message_index", sidecars="ignore")
    rows = sorted(expected.collect(), key=lambda row: row.message_index)
    (row,) = read(spark, topic, key="k3", start=str(TIME_MS + 50), end=str(TIME_MS + 51)).collect()
    assert (bytes(row.value), row.message_index) == (b"000503", 503)
    for segment in topic.topics[TOPIC][:3]:
        archivist.store.delete(segment.archive["name"])
    frame = read(spark, topic, columns="key,properties,publish_time,message_index")
    assert sorted(frame.collect(), key=lambda row: row.message_index) == rows and len(rows) == 5000
    table = spark.read.parquet(f"{archivist.url}/segments/*.parquet")
    assert table.filter("undecoded IS NULL").count() == 3000
    assert table.agg({"value_bytes": "sum"}).collect()[0][0] == 18_000


def test_wrong_options_are_sentences(spark: Any, topic: Any) -> None:
    with pytest.raises(Exception, match="option tpic is not known to format quire"):
        read(spark, topic, tpic="t")
    with pytest.raises(Exception, match="no topic persistent://public/default/nobody"):
        read(spark, topic, topic="nobody").collect()


def test_an_archive_in_s3(spark: Any, broker: Any, bucket: str, archivist: Any) -> None:
    entries, counts = batches(0, 100)
    segment = broker.segment(7, entries, counts)
    type(archivist)(bucket).archive(segment)
    broker.topics[TOPIC] = [segment]
    with_keys = f"{bucket}&access_key=testing&secret_key=testing"
    rows = read(spark, broker, archive=with_keys, columns="value").collect()
    assert sorted(int(row.value) for row in rows) == list(range(1000))
    assert not any("blocks" in path for path in broker.requests)
