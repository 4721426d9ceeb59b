"""Records as bytes: what a node holds is one, or damage with the node's name."""

from __future__ import annotations

import pytest

from quire.metadata.records import BookieRecord, BrokerRecord, LedgerRecord, decode, encode
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
