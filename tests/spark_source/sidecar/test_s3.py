"""Sidecars in S3: written and read as in a directory, with the credentials of the option `archive`."""

from __future__ import annotations

from typing import Any

import pytest

from quire.spark_source.sidecar.process import SidecarBuilder
from quire.tiering.archive import sidecar_of
from quire.wire.message import OutgoingMessage, encode_one
from tests.spark_source.sidecar.test_process import archived_of, until
from tests.spark_source.sidecar.test_rows import reader, rows
from tests.spark_source.sidecar.topics import TIME_MS, TOPIC, build


def test_written_read_and_written_again(broker: Any, archivist: Any, bucket: str) -> None:
    entries = [encode_one(OutgoingMessage(b"v", key=f"k{i % 5}"), "p", i, TIME_MS + i) for i in range(200)]
    in_s3 = type(archivist)(bucket)
    broker.topics[TOPIC] = [broker.segment(7, entries)]
    in_s3.archive(broker.topics[TOPIC][0])
    with_keys = f"{bucket}&access_key=testing&secret_key=testing"
    assert build(broker, archive_url=with_keys).built == 1
    assert build(broker, archive_url=with_keys, rebuild=True).built == 1
    assert build(broker, archive_url=with_keys).there == 1
    assert len(rows(reader(broker, archive=with_keys, key="k3"))) == 40
    name = broker.topics[TOPIC][0].archive["name"]
    in_s3.store.delete(name)
    assert len(rows(reader(broker, archive=with_keys, columns="key,entry"))) == 200
    assert [info.name for info in in_s3.store.list("segments/")] == [sidecar_of(name)]


async def test_a_broker_s_builder_has_the_archive_s_keys(
    broker: Any, archivist: Any, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are in the URL that the broker was given, and not in what is recorded of an object."""
    segment = broker.segment(7, [encode_one(OutgoingMessage(b"v"), "p", 1, TIME_MS)])
    type(archivist)(bucket).archive(segment)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    builder = SidecarBuilder(f"{bucket}&access_key=testing&secret_key=testing")
    builder.start()
    try:
        builder.look([archived_of(segment)])
        await until(lambda: builder.built)
    finally:
        await builder.stop()
