"""Jobs as tasks of a real Spark give what they give in this process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pulsar
import pytest

from quire.spark_source.jobs.audit import audit
from quire.spark_source.jobs.compact import compact
from quire.spark_source.jobs.export import export
from quire.spark_source.jobs.iceberg import Into, copy
from quire.spark_source.jobs.iceberg_table import open_catalog
from quire.spark_source.jobs.profile import profile

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


def test_every_job(server: Any, client: pulsar.Client, spark: Any, tmp_path: Path) -> None:
    client.create_producer("every", block_if_queue_full=True).close()
    producer = client.create_producer("every", block_if_queue_full=True)
    for i in range(2000):
        producer.send_async(b"%d" % i, None, partition_key=f"k{i % 7}")
    producer.flush()
    server.archive()
    for i in range(2000, 2100):
        producer.send(b"%d" % i, partition_key=f"k{i % 7}")
    options = {"service_url": server.http_url, "topic": "every"}
    report = audit(options, spark=spark)
    assert report.findings == [] and report.messages == 2100
    assert report == audit(options)
    assert profile(options, spark=spark).as_dict() == profile(options).as_dict()
    assert export(tmp_path / "files", options, spark=spark).rows == 2100
    assert compact(tmp_path / "latest", options, spark=spark).rows == 7
    into = Into(str(tmp_path / "lake"), "n.t")
    assert copy(options, into, spark=spark).rows == 2100
    values = open_catalog(into.catalog).load_table(into.table).scan().to_arrow()["value"].to_pylist()
    assert sorted(map(int, values)) == list(range(2100))
