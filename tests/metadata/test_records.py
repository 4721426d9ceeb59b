"""Records as bytes: what a node holds is one, or damage with the node's name."""

from __future__ import annotations

import json

import msgspec
import pytest
from msgspec.structs import replace

from quire.metadata.records import (
    BookieRecord,
    BrokerRecord,
    Fragment,
    LedgerRecord,
    TopicRecord,
    decode,
    encode,
)
from quire.runtime.errors import CorruptionError


def test_a_record_comes_back() -> None:
    record = LedgerRecord(ledger_id=5, last_entry=7)
    assert decode(LedgerRecord, encode(record), "/ledgers/5") == record


@pytest.mark.parametrize(
    "value",
    [b"", b"{}", b'{"ledger_id": "five"}', b'{"ledger_id": 5, "purpose": "\xff"}', b'{"x":' + b"[" * 100_000],
)
def test_what_is_none_is_damage(value: bytes) -> None:
    with pytest.raises(CorruptionError, match="/ledgers/5 is not a LedgerRecord"):
        decode(LedgerRecord, value, "/ledgers/5")


def test_records_from_before_tls_are_read() -> None:
    broker = b'{"broker_id":"b:1","service_url":"pulsar://b:1","http_url":"http://b:2","listeners":{"out":"pulsar://o:1"}}'
    old = decode(BrokerRecord, broker, "/quire/brokers/b")
    assert (old.service_url_tls, old.http_url_tls, old.listeners_tls) == ("", "", {})
    assert not decode(BookieRecord, b'{"uuid":"u","incarnation":1,"address":"a:1"}', "/quire/bookies/u").tls


# -- fields of newer versions ------------------------------------------------------------------------------

NEWER = {
    "name": "persistent://t/n/x",
    "colour": {"deep": [1, 2.5, None, "ü"], "large": 2**64 + 1},
    "growth": {"first": 1, "end": 2, "speed": 3},
    "properties": {"colour": "red", "unknown_fields": "a property"},
    "segments": [
        {
            "ledger_id": 1,
            "heat": 7,
            "archive": {"store": "s", "name": "n", "bytes": 1, "crc": 2, "archived_ms": 3, "tier": 4},
        },
        {"ledger_id": 2},
    ],
}


def test_a_rewrite_keeps_the_fields_of_a_newer_version() -> None:
    value = msgspec.json.encode(NEWER)
    topic = decode(TopicRecord, value, "/topics/x")
    assert topic.growth is not None and (topic.growth.end, topic.segments[1].ledger_id) == (2, 2)
    changed = replace(
        topic, terminated=True, segments=(topic.segments[0], replace(topic.segments[1], messages=9))
    )
    stored = json.loads(encode(changed))
    last = {"ledger_id": 2, "messages": 9}
    assert stored == NEWER | {"terminated": True, "segments": [NEWER["segments"][0], last]}
    assert decode(TopicRecord, encode(changed), "/topics/x") == changed


def test_a_record_is_still_hashable() -> None:
    fragment = decode(Fragment, b'{"first_entry":0,"bookies":["b"],"new":1}', "/x")
    assert fragment in {fragment} and fragment != Fragment(first_entry=0, bookies=("b",))


def test_a_newer_record_with_wrong_fields_is_damage() -> None:
    with pytest.raises(CorruptionError, match="ledger_id"):
        decode(LedgerRecord, b'{"new":1,"ledger_id":"five"}', "/x")
