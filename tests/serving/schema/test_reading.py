"""Values as text for people: each kind by its schema, what does not fit as it is, and nothing takes long."""

from __future__ import annotations

import base64
import io
import json
import struct
import time
from typing import Any

import fastavro
import pytest
from google.protobuf import descriptor_pb2, timestamp_pb2
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.serving.schema import avro_values
from quire.serving.schema.definition import KINDS, Definition
from quire.serving.schema.reading import VALUE_BYTES_MAX, shown
from quire.wire import avro
from quire.wire import pulsar_pb2 as pb
from quire.wire.key_value import join

RECORD = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "what", "type": ["null", "string"]},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["NEW", "OLD"]}},
        {"name": "lines", "type": {"type": "array", "items": "double"}},
        {"name": "tags", "type": {"type": "map", "values": "boolean"}},
        {"name": "hash", "type": {"type": "fixed", "name": "Hash", "size": 2}},
        {"name": "raw", "type": "bytes"},
        {"name": "next", "type": ["null", "Order"]},
    ],
}
ORDER = Definition("AVRO", json.dumps(RECORD).encode())
values = st.recursive(
    st.none(),
    lambda next: st.fixed_dictionaries(
        {
            "id": st.integers(-(1 << 63), (1 << 63) - 1),
            "what": st.none() | st.text(max_size=5),
            "kind": st.sampled_from(["NEW", "OLD"]),
            "lines": st.lists(st.floats(allow_nan=False), max_size=3),
            "tags": st.dictionaries(st.text(max_size=3), st.booleans(), max_size=3),
            "hash": st.binary(min_size=2, max_size=2),
            "raw": st.binary(max_size=5),
            "next": next,
        }
    ),
    max_leaves=3,
).filter(lambda value: value is not None)


def written(definition: Any, value: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, definition, value)
    return out.getvalue()


@settings(max_examples=200)
@given(values)
def test_what_a_library_writes_is_read(value: Any) -> None:
    assert avro_values.read(avro.parse(ORDER.data), written(RECORD, value)) == value


@settings(max_examples=300)
@given(st.binary(max_size=60), st.sampled_from([None, *KINDS]))
def test_any_bytes_are_shown_whatever_they_are_said_to_be(payload: bytes, kind: str | None) -> None:
    assert shown(payload, None if kind is None else Definition(kind, ORDER.data)).text is not None


def test_a_few_bytes_that_stand_for_very_much_are_refused_at_once() -> None:
    nulls = Definition("AVRO", b'{"type": "array", "items": "null"}')
    itself = Definition("AVRO", b'{"type": "record", "name": "R", "fields": [{"name": "r", "type": "R"}]}')
    began = time.process_time()
    for definition in (nulls, itself):
        assert "more than" in shown(b"\xfe\xff\xff\xff\xff\xff\xff\xff\x7f", definition).problem
    assert time.process_time() - began < 1.0


def test_numbers_stay_as_they_were_written() -> None:
    exact = b'{"id":12345678901234567890,"price":1.50,"\\u003cb\\u003e":"<b>"}'
    for definition in (None, Definition("JSON", b"{}")):
        found = shown(exact, definition)
        assert found.form == "json" and "12345678901234567890" in found.text and "1.50" in found.text


@pytest.mark.parametrize(
    ("kind", "payload", "text"),
    [
        ("STRING", "grüße".encode(), "grüße"),
        ("INT8", b"\xff", "-1"),
        ("INT64", struct.pack(">q", 1 << 60), str(1 << 60)),
        ("BOOLEAN", b"\x01", "true"),
        ("DOUBLE", struct.pack(">d", 1.5), "1.5"),
        ("TIMESTAMP", struct.pack(">q", 0), "1970-01-01T00:00:00+00:00"),
        ("LOCAL_DATE_TIME", struct.pack(">qq", 1, 1_000_000_001), "1970-01-02T00:00:01.000000001"),
        ("INSTANT", struct.pack(">qi", 60, 5), "1970-01-01T00:01:00.000000005Z"),
    ],
)
def test_what_is_no_record_is_read_as_java_writes_it(kind: str, payload: bytes, text: str) -> None:
    assert shown(payload, Definition(kind)).text == text
    assert not shown(payload, Definition(kind)).problem


def test_protobuf_is_read_by_the_descriptors_in_its_schema() -> None:
    files = descriptor_pb2.FileDescriptorSet(
        file=[descriptor_pb2.FileDescriptorProto.FromString(pb.DESCRIPTOR.serialized_pb)]
    )
    data = {"fileDescriptorSet": base64.b64encode(files.SerializeToString()).decode()}
    root = pb.MessageIdData.DESCRIPTOR.full_name
    definition = Definition("PROTOBUF_NATIVE", json.dumps({**data, "rootMessageTypeName": root}).encode())
    found = shown(pb.MessageIdData(ledgerId=7, entryId=8).SerializeToString(), definition)
    assert json.loads(found.text)["ledgerId"] == "7" and found.form == "json"


@pytest.mark.parametrize("is_apart", [True, False])
def test_keys_and_values(is_apart: bool) -> None:
    properties = {
        "key.schema.type": "STRING",
        "value.schema.type": "AVRO",
        "kv.encoding.type": "SEPARATED" if is_apart else "INLINE",
    }
    definition = Definition("KEY_VALUE", join(b"", b'"long"'), properties)
    payload = b"\x0e" if is_apart else join(b"k", b"\x0e")
    found = shown(payload, definition, b"k" if is_apart else None)
    assert json.loads(found.text) == {"key": "k", "value": 7}


def test_what_does_not_fit_is_shown_as_it_is_and_said_to_be() -> None:
    found = shown(b"\x00\x01", Definition("INT32"))
    assert found.form == "hex" and found.text == "00 01" and "INT32" in found.problem
    large = shown(b"x" * (VALUE_BYTES_MAX + 1), ORDER)
    assert "are shown" in large.problem and large.form == "text"


def test_protobuf_that_json_cannot_express_is_shown_as_it_is() -> None:
    """A timestamp beyond the year 9999."""
    messages = descriptor_pb2.FileDescriptorProto(
        name="m.proto", package="p", dependency=["google/protobuf/timestamp.proto"], syntax="proto3"
    )
    message = messages.message_type.add(name="M")
    message.field.add(name="t", number=1, type=11, label=1, type_name=".google.protobuf.Timestamp")
    known = descriptor_pb2.FileDescriptorProto()
    timestamp_pb2.DESCRIPTOR.CopyToProto(known)
    files = descriptor_pb2.FileDescriptorSet(file=[known, messages])
    described = {
        "fileDescriptorSet": base64.b64encode(files.SerializeToString()).decode(),
        "rootMessageTypeName": "p.M",
        "rootFileDescriptorName": "m.proto",
    }
    definition = Definition("PROTOBUF_NATIVE", json.dumps(described).encode())
    for seconds, form, problem in ((1, "json", ""), (1 << 60, "hex", "the value does not match its schema")):
        stamp = timestamp_pb2.Timestamp(seconds=seconds).SerializeToString()
        found = shown(b"\x0a" + bytes([len(stamp)]) + stamp, definition)
        assert found.form == form and found.problem.startswith(problem)
