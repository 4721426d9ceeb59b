"""Every format at rest, byte for byte: `tests/data/at_rest.txt`, and `tests/data/records.txt` for what is JSON.

What is there was on somebody's disk: it is read to the same values for ever, and what is written today is the same
bytes. (Frames, blocks and entries are in `tests/wire/test_golden`, the archived segment in
`tests/tiering/test_segment_object`, a whole data directory in `test_directory`.)

A new version of a format is a new case; the old one stays. A record's new field is a change of its case here, and the
directory keeps what records without it look like.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any, cast

import lmdb
import msgspec
import pytest
from msgspec import inspect
from pyroaring import BitMap

from quire.bookie import entry_record, journal_core, ledgers
from quire.bookie.identity import Cookie
from quire.bookie.index import IndexRow
from quire.bookie.index_lmdb import LmdbIndex
from quire.bookie.journal_core import Control, ControlKind, Group, SegmentHeader
from quire.bookie.ledgers import LedgerState
from quire.ledger import labels
from quire.metadata import records, schema_records
from quire.metadata.records import CompactedRecord, Fragment, LedgerRecord, Record
from quire.metadata.records import LedgerState as LedgerRecordState
from quire.metadata.unknown_fields import UNKNOWN_FIELDS
from quire.runtime.disk import PAGE_BYTES, aligned_buffer
from quire.runtime.errors import CorruptionError
from quire.serving.model.ports import Position
from quire.serving.subscription.cursor import cursor_record
from quire.serving.subscription.cursor.cursor import Cursor, CursorKey, Delta
from quire.serving.subscription.cursor.cursor_record import Kind
from quire.serving.subscription.cursor.entry_set import EntrySet
from quire.serving.subscription.cursor.partial_acks import Chunk
from quire.serving.subscription.delayed.delayed_snapshot import SnapshotSegment, Times
from quire.serving.topic import dedup
from quire.serving.topic.compaction import compacted
from quire.serving.topic.compaction.compaction import Output
from quire.testing.disk import SimulatedDisk
from quire.wal import wal_object
from quire.wal.wal_object import Catalogue, SetEntry, Tombstone
from quire.wire import block
from quire.wire.block import Buffer
from quire.wire.checksum import crc32c
from tests import golden

AT_REST, JSON = "at_rest.txt", "records.txt"
BLOCK = bytes(block.cut(9, 128, 127, 1_700_000_000_000, 4_000, [b"one", b"three"], [1, 2]))
TOPIC = "persistent://public/default/golden"


# -- the journal -------------------------------------------------------------------------------------------
SEGMENT = SegmentHeader(3, 17, 0x01020304, bytes(range(16)), 2, 16)
CONTROLS = [
    Control(ControlKind.FENCE, 9),
    Control(ControlKind.LAC, 9, 129),
    Control(ControlKind.TOMBSTONE, 8, 4),
]


def journal_group() -> bytes:
    parts: list[Buffer] = [BLOCK, *map(journal_core.encode_control, CONTROLS)]
    group = Group(17, journal_core.GROUP_HEADER_BYTES + sum(map(len, parts)), parts)
    memory = aligned_buffer(PAGE_BYTES)
    size_bytes = journal_core.encode_group(group, SEGMENT, memory.write, memoryview(memory))
    assert size_bytes == PAGE_BYTES
    return bytes(memory[: group.bytes])


def test_a_journal_segment_is_read() -> None:
    image = bytearray(2 * PAGE_BYTES)
    image[:64] = GOLDEN["journal segment 1"]
    group = GOLDEN["journal group 1"]
    image[PAGE_BYTES : PAGE_BYTES + len(group)] = group
    assert journal_core.decode_segment_header(image[:PAGE_BYTES]) == SEGMENT
    (found,) = journal_core.scan_segment(memoryview(image), SEGMENT)
    assert (found.number, found.length) == (17, len(group))
    (header, kept), *controls = journal_core.records(group)
    assert header == block.peek(BLOCK) and kept == BLOCK
    assert controls == CONTROLS


LABELLED = LedgerRecord(
    ledger_id=9, state=LedgerRecordState.CLOSED, write_quorum=3, ack_quorum=2,
    fragments=(Fragment(first_entry=0, bookies=("b:1", "c:2")),),
    last_entry=129, bytes=262, purpose=f"topic:{TOPIC}", generation=5, created_ms=1_700_000_000_000,
)  # fmt: skip


def test_a_label_is_read() -> None:
    assert labels.read(GOLDEN["label 1"]) == (LABELLED, 3)
    made = GOLDEN["label 1 with a nonce"]
    assert (
        labels.read(made) == (msgspec.structs.replace(LABELLED, nonce=1 << 61), 3)
        and block.peek(made).lac == 1 << 61
    )


# -- entry log and ledgers ---------------------------------------------------------------------------------
def entry_log_record() -> bytes:
    filled = entry_record.HEADER_BYTES + len(BLOCK)
    view = memoryview(bytearray(PAGE_BYTES))
    view[entry_record.HEADER_BYTES : filled] = BLOCK
    assert entry_record.seal(view, filled, 5, 7, (4, 2)) == PAGE_BYTES and not any(view[filled:])
    return bytes(view[:filled])


def test_an_entry_log_is_read() -> None:
    disk, raw = SimulatedDisk(), GOLDEN["entry log record"]
    file = disk.open("5", create=True)
    file.write(raw.ljust(PAGE_BYTES, b"\0"), 0)
    (span,) = entry_record.find_records(file, 5)[-1:]
    assert span.header is not None
    assert span.header[:4] == (5, 7, (4, 2), len(BLOCK))
    assert raw[entry_record.HEADER_BYTES :] == BLOCK


def ledger_state() -> LedgerState:
    state = LedgerState(9)
    state.lay_tombstone(4)
    state.put_in_limbo()
    state.lac, state.flushed_last_entry, state.flushed_bytes = 128, 129, len(BLOCK)
    return state


def test_a_bookies_ledger_is_read() -> None:
    found, state = ledgers.decode(9, GOLDEN["bookie ledger 1"]), ledger_state()
    state.last_entry = state.flushed_last_entry
    assert [getattr(found, name) for name in LedgerState.__slots__] == [
        getattr(state, name) for name in LedgerState.__slots__
    ]


# -- the index ---------------------------------------------------------------------------------------------
ROW = IndexRow(9, 128, 129, 5, 4_144, len(BLOCK), 1_700_000_000_000, 1_700_000_000_001, 127)
INDEX = [(b"rows", "index row"), (b"ledgers", "index ledger"), (b"logs", "index log")]
META = [(b"mark", "index mark"), (b"format", "index format 1")]


def index_values(directory: Path) -> dict[str, bytes]:
    """What a commit puts into LMDB: of each table the only key and its value."""
    index = LmdbIndex(directory)
    index.commit([ROW], {9: b"of a ledger"}, b"of a mark")
    index.close()
    values: dict[str, bytes] = {}
    with lmdb.open(str(directory), max_dbs=4) as env:
        for table, name in INDEX:
            with env.begin(db=env.open_db(table)) as txn:
                ((key, value),) = txn.cursor()
                values |= {f"{name} key": bytes(key), f"{name} value": bytes(value)}
        with env.begin(db=env.open_db(b"meta")) as txn:
            values |= {name: bytes(txn.get(key)) for key, name in META}
    return values


def test_an_index_is_written_as_ever(tmp_path: Path) -> None:
    assert index_values(tmp_path) == {name: raw for name, raw in GOLDEN.items() if name.startswith("index")}


def test_an_index_is_read(tmp_path: Path) -> None:
    write_index(tmp_path)
    index = LmdbIndex(tmp_path)
    index.verify()
    assert (index.find(9, 129), list(index.ledgers()), index.mark()) == (
        ROW,
        [(9, b"of a ledger")],
        b"of a mark",
    )
    assert index.usage() == {5: len(BLOCK)}
    index.close()


def test_an_index_of_a_newer_format_is_refused(tmp_path: Path) -> None:
    newer = (2).to_bytes(4, "big")
    write_index(tmp_path, **{"index format 1": newer + crc32c(newer, crc32c(b"format")).to_bytes(4, "big")})
    with pytest.raises(CorruptionError, match="a format that this version does not support"):
        LmdbIndex(tmp_path)


def write_index(directory: Path, **instead: bytes) -> None:
    values = {**GOLDEN, **instead}
    with lmdb.open(str(directory), max_dbs=4) as env:
        for table, name in INDEX:
            with env.begin(write=True, db=env.open_db(table)) as txn:
                txn.put(values[f"{name} key"], values[f"{name} value"])
        with env.begin(write=True, db=env.open_db(b"meta")) as txn:
            for key, name in META:
                txn.put(key, values[name])


# -- a write-ahead log on object storage -------------------------------------------------------------------
WAL = "5f0c0a5e-0000-4000-8000-000000000001"
NEXT_BLOCK = bytes(block.cut(9, 130, 129, 1_700_000_000_005, 4_003, [b"five"], [1]))
OTHER_BLOCK = bytes(block.cut(7, 0, -1, 1_700_000_000_002, 0, [b"seven"], [1]))
CATALOGUE = Catalogue((SetEntry(f"wal/{WAL}/set-00000001-x", 700, 0x01020304, 3, 17),), {8: 4})


def test_objects_of_a_wal_are_read() -> None:
    data, fence, made = (GOLDEN[f"wal {kind} 1"] for kind in ("data object", "fence", "set"))
    header = wal_object.read_header(data, "data")
    assert (header.kind, header.wal, *header[2:8]) == (
        wal_object.Kind.DATA,
        WAL,
        17,
        3,
        15,
        1_700_000_000_009,
        3,
        2,
    )
    rows, tombstones = wal_object.read_data_tail(header, data[header.tail_offset :], "data")
    assert tombstones == {8: 4}
    assert [row[:3] for row in wal_object.ROW.iter_unpack(rows)] == [(7, 0, 0), (9, 128, 130)]
    header = wal_object.read_header(fence, "fence")
    assert (header.kind, header.seq, header.object_bytes) == (wal_object.Kind.FENCE, 18, len(fence))
    header = wal_object.read_header(made, "set")
    assert (header.kind, header.seq, header.trim_seq) == (wal_object.Kind.SET, 3, 17)
    found = wal_object.read_set_tail(made, len(made), wal_object.footer_crc(made), "set")
    assert [row[:3] + row[6:] for row in wal_object.SET_ROW.iter_unpack(found)] == [
        (7, 0, 0, 1_700_000_000_002),
        (9, 128, 130, 1_700_000_000_005),
    ]
    raw = GOLDEN["wal catalogue 1"]
    assert wal_object.decode_catalogue(raw, wal_object.catalogue_crc(raw), "catalogue") == CATALOGUE


# -- cursors and what delayed delivery found ---------------------------------------------------------------
def cursor() -> Cursor:
    return Cursor(CursorKey(TOPIC, 3, "sub"), Position(9, 127), {"owner": "me"})


def delta() -> Delta:
    acked = EntrySet()
    acked.add(9, BitMap([129, 131, 132]))
    partial = [Chunk(9, 2, BitMap([130, 133]), b"\x05\x01\xff\x00")]
    return Delta(Position(9, 128), acked, partial, [(9, 1, BitMap([130])), (10, 0, BitMap([0, 70_000]))])


def delayed_snapshot() -> SnapshotSegment:
    times = Times(20, 85_000_000_000, BitMap([129, 130]), [BitMap([129]), BitMap([129, 130])])
    return SnapshotSegment(
        9, 128, 131, 4_000, 0, array("I", [1, 2, 3]), times, array("H", [1, 2, 65_535]), True
    )


def test_cursors_are_read() -> None:
    begun = cursor_record.parse(GOLDEN["cursor begin 2"])
    assert (begun.kind, begun.cursor_id, begun.cursor is not None) == (Kind.BEGIN, 5, True)
    assert begun.cursor is not None
    assert (begun.cursor.key, begun.cursor.mark_delete) == (cursor().key, cursor().mark_delete)
    assert begun.cursor.properties == cursor().properties
    assert cursor_record.parse(GOLDEN["cursor delete 2"]) == (Kind.DELETE, 5, None, None, None)
    assert cursor_record.parse(GOLDEN["cursor survey 2"]).segment == delayed_snapshot()
    for version in (1, 2):
        found, expected = cursor_record.parse(GOLDEN[f"cursor delta {version}"]).delta, delta()
        assert found is not None
        assert (found.mark_delete, found.redelivered) == (expected.mark_delete, expected.redelivered)
        assert dict(found.acked.items()) == dict(expected.acked.items())
        assert {chunk.ledger_id: bits(found.partial) for chunk in found.partial} == {
            9: bits(expected.partial)
        }


def bits(chunks: Sequence[Chunk]) -> dict[int, int]:
    """By entry; the versions keep them in chunks of other widths."""
    return {
        entry_id: int.from_bytes(chunk.bits[chunk.width * at : chunk.width * (at + 1)], "little")
        for chunk in chunks
        for at, entry_id in enumerate(chunk.entries)
    }


# -- deduplication -----------------------------------------------------------------------------------------
SNAPSHOT = dedup.Snapshot(
    3,
    Position(9, 129),
    {"one": dedup.Seen(7, dedup.LAST, 1_700_000_000_000), "zwei ü": dedup.Seen(300, 2, 5)},
)


def removal() -> bytes:
    store = dedup.DedupStore()
    list(store.put(TOPIC, SNAPSHOT))
    record = store.remove(TOPIC)
    assert record is not None
    return record


def test_deduplication_is_read() -> None:
    store = dedup.DedupStore()
    store.apply(GOLDEN["deduplication 1"])
    assert store.find(TOPIC, 3) == SNAPSHOT
    store.apply(GOLDEN["deduplication of a topic that is gone 1"])
    assert store.find(TOPIC, 3) is None


def test_records_of_a_state_log_of_a_newer_version_are_refused() -> None:
    newer = {tag: bytes([tag[0], 3]) + raw[2:] for raw in GOLDEN.values() if (tag := raw[:1]) in (b"C", b"D")}
    with pytest.raises(CorruptionError, match=r"not a cursor record of version 1 or 2 .*version 3"):
        cursor_record.parse(newer[cursor_record.TAG])
    with pytest.raises(
        CorruptionError, match="unsupported deduplication record version 3; this broker reads version 1"
    ):
        dedup.DedupStore().apply(newer[dedup.KIND])


# -- a compacted topic -------------------------------------------------------------------------------------
RESULT = CompactedRecord(
    ledger_id=12, horizon_ledger=10, horizon_entry=3, horizon_index=4_020, entries=2, extra_messages=9,
    index_entries=2, bytes=0, finished_ms=8,
)  # fmt: skip


async def compact() -> tuple[CompactedRecord, list[bytes]]:
    """What a compaction of ledgers 9 and 10 writes that retains an entry, and two messages of a batch."""
    written: list[bytes] = []

    async def close() -> None:
        pass

    writer = SimpleNamespace(ledger_id=12, add=lambda made, last: written.append(bytes(made)), close=close)
    clock = SimpleNamespace(now_ms=lambda: 1_700_000_000_000)
    output = Output(cast(Any, SimpleNamespace(clock=clock)))
    output._writer = cast(Any, writer)
    output.add(Position(9, 128), b"one", 0, 1)
    output.add(Position(10, 3), b"of ten", 0b10_0000_0001, 10)
    record = await output.finish({9: 129, 10: 3}, Position(10, 3), 4_020, 8)
    return record, written


async def test_a_compacted_ledger_is_read() -> None:
    made = [GOLDEN["compacted entries"], GOLDEN["compacted index"]]

    async def read(entry: int, bytes_max: int) -> list[bytes]:
        return [one for one in made if block.verify(one).last_entry >= entry]

    async def open_ledger(ledger_id: int) -> object:
        return SimpleNamespace(read=read)

    found = await compacted.load(cast(Any, SimpleNamespace(open=open_ledger)), RESULT)
    assert (found.ledger_ids, found.last_entries) == ([9, 10], [129, 3])
    assert found.retained == [BitMap([128]), BitMap([3])]
    one, other = compacted.read_entries(made, 0, RESULT.entries)
    assert (one.place, bytes(one.data), one.left, one.messages) == (Position(9, 128), b"one", 0, 1)
    assert (other.place, bytes(other.data), other.left, other.messages) == (
        Position(10, 3),
        b"of ten",
        0x201,
        10,
    )
    assert (one.extra_before, other.extra_before) == (0, 0)


def test_a_compaction_is_recorded_as_ever() -> None:
    record, made = asyncio.run(compact())
    assert msgspec.structs.replace(record, bytes=0) == RESULT
    assert made == [GOLDEN["compacted entries"], GOLDEN["compacted index"]]


# -- records of the metadata store, and a bookie's cookie ------------------------------------------------------
COOKIE = Cookie(
    uuid="5f0c0a5e-0000-4000-8000-000000000001", role="journal", incarnation=3, lossy_before=2, ready=True,
    trusted=False, cluster="c", leaving=True, run="r", next_run="n",
)  # fmt: skip
STORED: list[type[Record]] = [
    records.ClusterRecord,
    records.LedgerRecord,
    records.TopicRecord,
    records.ManifestRecord,
    records.StateLogRecord,
    records.SettingRecord,
    records.TenantRecord,
    records.NamespaceRecord,
    records.Policies,
    schema_records.SchemasRecord,
    records.BookieRecord,
    records.WalRecord,
    records.DamageRecord,
    records.UnderreplicatedRecord,
    records.RepairRecord,
    records.BrokerRecord,
    records.OwnerRecord,
    records.LoadRecord,
]


WORDS: list[type[StrEnum]] = [records.LedgerState, records.BookieIntent, records.WalState]


def sample(info: Any, unknown: str = "") -> Any:
    """A value of a type as msgspec knows it, none of whose fields has its default: all are written.

    Each record in it has these fields of a newer version.
    """
    match info:
        case inspect.StructType():
            fields = {
                field.encode_name: (sample(field.type, unknown), field.default) for field in info.fields
            }
            values = {
                name: not value if value is default else value for name, (value, default) in fields.items()
            }
            return info.cls(**values | {UNKNOWN_FIELDS: unknown})
        case inspect.UnionType():
            return sample(next(one for one in info.types if not isinstance(one, inspect.NoneType)), unknown)
        case inspect.VarTupleType():
            return (sample(info.item_type, unknown),)
        case inspect.TupleType():
            return tuple(sample(one, unknown) for one in info.item_types)
        case inspect.DictType():
            return {sample(info.key_type): sample(info.value_type, unknown)}
        case inspect.EnumType():
            return list(info.cls)[-1]
        case inspect.BoolType():
            return True
        case inspect.IntType() | inspect.FloatType():
            return 7
        case inspect.BytesType():
            return b"bytes"
        case inspect.StrType():
            return "text"
    raise AssertionError(f"no sample of {info}")


@pytest.mark.parametrize("kind", STORED, ids=lambda kind: kind.__name__)
def test_records_are_read_and_written_as_ever(kind: type[Record]) -> None:
    expected, raw = sample(inspect.type_info(kind)), RECORDS[kind.__name__]
    assert records.decode(kind, raw, "path") == expected
    assert records.encode(expected) == raw


@pytest.mark.parametrize("kind", STORED, ids=lambda kind: kind.__name__)
def test_a_rewrite_keeps_fields_of_a_newer_version(kind: type[Record]) -> None:
    newer = sample(inspect.type_info(kind), '{"newer":[1]}')
    raw = records.encode(newer)
    assert UNKNOWN_FIELDS.encode() not in raw and raw.count(b'"newer":[1]') == raw.count(b"{") - raw.count(
        b'{"text":'
    ) - raw.count(b'{"7":')
    assert records.decode(kind, raw, "path") == newer


def test_every_record_is_among_them() -> None:
    held = set().union(*(kinds_in(inspect.type_info(kind)) for kind in STORED))
    modules = {records.__name__, schema_records.__name__}
    assert held == {kind for kind in Record.__subclasses__() if kind.__module__ in modules}


def kinds_in(info: Any) -> set[type]:
    parts = [field.type for field in getattr(info, "fields", ())]
    parts += [getattr(info, name) for name in ("item_type", "key_type", "value_type") if hasattr(info, name)]
    parts += getattr(info, "types", ())
    own = {info.cls} if isinstance(info, inspect.StructType) else set()
    return own.union(*map(kinds_in, parts))


def test_a_cookie_is_read_and_written_as_ever() -> None:
    raw = RECORDS["Cookie of layout 1"]
    assert msgspec.json.decode(raw, type=Cookie) == COOKIE
    assert msgspec.json.encode(COOKIE) == raw


def test_states_are_called_as_ever() -> None:
    assert msgspec.json.decode(RECORDS["words"]) == {kind.__name__: list(kind) for kind in WORDS}


# -- all of it -------------------------------------------------------------------------------------------------
BUILT = {
    "journal segment 1": journal_core.encode_segment_header(SEGMENT)[:64],
    "journal group 1": journal_group(),
    "entry log record": entry_log_record(),
    "bookie ledger 1": ledger_state().encode(),
    "label 1": bytes(labels.make(LABELLED, 3)),
    "label 1 with a nonce": bytes(labels.make(msgspec.structs.replace(LABELLED, nonce=1 << 61), 3)),
    "wal data object 1": b"".join(
        wal_object.encode_data(
            WAL, 17, 3, 15, 1_700_000_000_009, [BLOCK, NEXT_BLOCK, OTHER_BLOCK], [Tombstone(8, 4)]
        )
    ),
    "wal fence 1": wal_object.encode_fence(WAL, 18, 1_700_000_000_010, "broker-2"),
    "wal set 1": b"".join(
        wal_object.encode_set(WAL, 3, 17, 1_700_000_000_011, [(7, [OTHER_BLOCK]), (9, [BLOCK, NEXT_BLOCK])])
    ),
    "wal catalogue 1": wal_object.encode_catalogue(CATALOGUE),
    "cursor begin 2": cursor_record.begin(5, cursor()),
    "cursor delta 2": cursor_record.delta(5, delta()),
    "cursor delete 2": cursor_record.delete(5),
    "cursor survey 2": cursor_record.delayed_snapshot(5, delayed_snapshot()),
    "deduplication 1": b"".join(dedup.encode(TOPIC, SNAPSHOT)),
    "deduplication of a topic that is gone 1": removal(),
}


@pytest.mark.parametrize("name", BUILT)
def test_what_we_write_has_not_changed(name: str) -> None:
    assert BUILT[name] == GOLDEN[name]


def rewrite() -> None:
    with TemporaryDirectory() as directory:
        index = index_values(Path(directory))
    entries, rows = asyncio.run(compact())[1]
    made = BUILT | index | {"compacted entries": entries, "compacted index": rows}
    former = golden.load(AT_REST) if (golden.DATA / AT_REST).exists() else {}
    golden.save(AT_REST, {name: raw for name, raw in former.items() if name not in made} | made)
    stored = {kind.__name__: records.encode(sample(inspect.type_info(kind))) for kind in STORED}
    words = msgspec.json.encode({kind.__name__: list(kind) for kind in WORDS})
    golden.save(JSON, stored | {"Cookie of layout 1": msgspec.json.encode(COOKIE), "words": words})


if golden.REWRITE:
    rewrite()
GOLDEN, RECORDS = golden.load(AT_REST), golden.load(JSON)
