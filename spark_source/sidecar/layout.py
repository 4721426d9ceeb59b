"""Byte format of a sidecar: a Parquet file with an archived segment's columns, without the values.

Any reader of [Parquet](https://parquet.apache.org/docs/file-format/) can read it. A row is a message, in the topic's
order; the file contains all entries of the segment.

| column | type | is |
|---|---|---|
| topic, partition, ledger, entry, batch_index, message_index | | as in `schema` |
| publish_time, event_time | timestamp(ms) | |
| key | binary | its first 256 bytes |
| key_bytes | int | the whole key's length; null: no key |
| key_hash | int | murmur3 of the whole key, by which Key_Shared subscriptions choose a consumer |
| producer, sequence, properties | | as in `schema` |
| value_bytes | bigint | length of the value, decompressed; null for a null value |
| stored_bytes | bigint | bytes of the entry in the segment; 0 except for its first message, so that sums are right |
| undecoded | string | null for messages; else the reason why the entry was not decoded |

Entries *apart* can be read only from the segment object: chunks of a message that is also in other entries, encrypted
entries, and undecodable ones. Each is one row with `undecoded`, its place and `stored_bytes`.

The file's metadata has two more keys, by which a reader verifies the file:

    quire.sidecar   JSON: `version`, the segment object's identity (`ledger`, `bytes`, `crc`, as in the metadata
                    store's pointer to it) and `groups`, a list for each row group (`Group`)
    quire.proof     crc32c:XXXXXXXX, CRC32C over the file's Parquet footer (metadata, its length, "PAR1"), computed
                    with 00000000 in place of XXXXXXXX

The footer's checksum covers the list of groups, and a group's checksum covers its bytes. Groups follow one another
without a gap, from the segment's first entry to its last; an entry's rows are in one group. A file that deviates from
this is refused (`SidecarError`), and the object is read instead. There is no recovery: a sidecar can be built again
from the object.

This file performs no I/O.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from quire.runtime.errors import CorruptionError
from quire.runtime.limits import MIB
from quire.spark_source import schema
from quire.wire.block import Buffer
from quire.wire.checksum import crc32c

VERSION: Final = 1
KEY_BYTES_MAX: Final = 256
GROUP_ROWS: Final = 65_536
GROUP_BYTES: Final = 16 * MIB
"""Numbers of rows and bytes at which a group ends. A reader holds a whole group in memory."""

TAIL_BYTES: Final = 12
"""Minimum size of a Parquet file."""

_TIME: Final = pa.timestamp("ms", tz="UTC")
SCHEMA: Final = pa.schema(
    [
        *((name, schema.FIELDS[name]) for name in ("topic", "partition", "ledger", "entry", "batch_index")),
        ("message_index", pa.int64()),
        ("publish_time", _TIME),
        ("event_time", _TIME),
        ("key", pa.binary()),
        ("key_bytes", pa.int32()),
        ("key_hash", pa.int32()),
        ("producer", pa.string()),
        ("sequence", pa.int64()),
        ("value_bytes", pa.int64()),
        ("stored_bytes", pa.int64()),
        ("properties", schema.PROPERTIES),
        (schema.UNDECODED, pa.string()),
    ]
)
_DELTA: Final = ("entry", "batch_index", "message_index", "publish_time", "event_time", "sequence")
_MAP: Final = ("properties.key_value.key", "properties.key_value.value")
_DICTIONARY: Final = [*(name for name in SCHEMA.names if name not in (*_DELTA, "properties")), *_MAP]
_OF_KEYS: Final = ("key", "key_hash")

_PROOF: Final = re.compile(rb"crc32c:([0-9a-f]{8})")
_PARQUET: Final = b"PAR1"


class SidecarError(CorruptionError):
    """Error for bytes that are not the sidecar of this object. The object itself may be intact."""


class Identity(NamedTuple):
    """Identity of a sidecar's segment object, from the metadata store's pointer to the object."""

    ledger: int
    bytes: int
    crc: int


class Group(NamedTuple):
    """One row group: the entries `[first_entry, end_entry)`, its bytes, and the extremes of its columns.

    Times are of messages, and None if the group has no message. `apart` is the number of rows of entries set apart.
    """

    first_entry: int
    end_entry: int
    rows: int
    apart: int
    offset: int
    length: int
    crc: int
    publish_min_ms: int | None
    publish_max_ms: int | None
    event_min_ms: int | None
    event_max_ms: int | None
    key_min: str | None
    """Hexadecimal, like `key_max`; None if no message has a key."""
    key_max: str | None
    key_bytes_max: int


class Summary(NamedTuple):
    """Properties of a group, besides its rows, that `Writer` needs."""

    first_entry: int
    end_entry: int
    apart: int
    publish_ms: tuple[int | None, int | None]
    event_ms: tuple[int | None, int | None]
    keys: tuple[bytes | None, bytes | None]
    key_bytes_max: int


class Writer:
    """Writer of a sidecar's bytes, group by group; the caller concatenates them."""

    def __init__(self, identity: Identity) -> None:
        self._identity = identity
        self._sink = _Sink()
        self._groups: list[Group] = []
        self._writer: pq.ParquetWriter | None = None

    def _begun(self, rows: pa.Table) -> pq.ParquetWriter:
        """Create Parquet's writer, with a dictionary of keys unless most keys of the first group differ."""
        differ = pc.count_distinct(rows["key"]).as_py() > rows.num_rows // 2
        return pq.ParquetWriter(
            pa.PythonFile(self._sink, mode="w"),
            SCHEMA,
            compression="zstd",
            compression_level=6,
            use_dictionary=[name for name in _DICTIONARY if not (differ and name in _OF_KEYS)],
            column_encoding=dict.fromkeys(_DELTA, "DELTA_BINARY_PACKED"),
        )

    def add_group(self, rows: pa.Table, summary: Summary) -> bytes:
        """Add a group, and return its bytes."""
        if self._writer is None:
            self._writer = self._begun(rows)
        opening = self._sink.drain()
        offset = self._sink.written
        self._writer.write_table(rows, row_group_size=max(rows.num_rows, 1))
        content = self._sink.drain()
        low, high = (None if key is None else key.hex() for key in summary.keys)
        self._groups.append(
            Group(
                summary.first_entry,
                summary.end_entry,
                rows.num_rows,
                summary.apart,
                offset,
                len(content),
                crc32c(content),
                *summary.publish_ms,
                *summary.event_ms,
                low,
                high,
                summary.key_bytes_max,
            )
        )
        return opening + content

    def finish(self) -> bytes:
        """Return the bytes after the groups. At least one group must have been added."""
        assert self._writer is not None, "a segment without entries has no object"
        said = {"version": VERSION, **self._identity._asdict(), "groups": self._groups}
        self._writer.add_key_value_metadata(
            {"quire.sidecar": json.dumps(said, separators=(",", ":")), "quire.proof": "crc32c:00000000"}
        )
        self._writer.close()
        footer = self._sink.drain()
        place = _place(footer)
        assert place is not None, "Parquet did not keep the text of the proof"
        return footer[: place[0]] + _crc(footer, place) + footer[place[1] :]


class _Sink:
    """File object for Parquet's writer, whose bytes are removed group by group."""

    def __init__(self) -> None:
        self._held = bytearray()
        self.written = 0
        self.closed = False

    def write(self, data: Any) -> int:
        view = memoryview(data)
        self._held += view
        self.written += view.nbytes
        return view.nbytes

    def drain(self) -> bytes:
        """Return the bytes written since the last call."""
        held = bytes(self._held)
        self._held.clear()
        return held

    def tell(self) -> int:
        return self.written

    def flush(self) -> None: ...

    def close(self) -> None:
        self.closed = True


class Footer(NamedTuple):
    """Verified footer of a sidecar."""

    identity: Identity
    groups: Sequence[Group]
    parquet: pq.FileMetaData


def footer_bytes(tail: Buffer, name: str) -> int:
    """Return the footer's length in bytes, from at least the last `TAIL_BYTES` of a file. Raises `SidecarError`."""
    end = bytes(memoryview(tail)[-8:])
    if len(end) < 8 or end[4:] != _PARQUET:
        raise SidecarError("a sidecar does not end as Parquet", name)
    return int.from_bytes(end[:4], "little") + 8


def read_footer(tail: Buffer, file_bytes: int, identity: Identity, name: str) -> Footer:
    """Parse the footer from a file's last bytes, which contain all of it. Raises `SidecarError`."""
    size = footer_bytes(tail, name)
    footer = bytes(memoryview(tail)[-size:])
    place = _place(footer)
    if len(footer) < size or place is None or footer[place[0] : place[1]] != _crc(footer, place):
        raise SidecarError("a sidecar's footer does not match its checksum", name, file_bytes - size)
    parquet = pq.read_metadata(pa.BufferReader(footer))
    said: Mapping[str, Any] = json.loads((parquet.metadata or {}).get(b"quire.sidecar", b"{}"))
    if said.get("version") != VERSION:
        raise SidecarError(f"a sidecar has version {said.get('version')}; this Quire reads {VERSION}", name)
    found = Identity(said["ledger"], said["bytes"], said["crc"])
    if found != identity:
        raise SidecarError(f"a sidecar belongs to another object, {found}", name)
    groups = [Group(*one) for one in said["groups"]]
    ends = [0, *(one.end_entry for one in groups)]
    follow = all(one.first_entry == end for one, end in zip(groups, ends, strict=False))
    touch = all(one.offset + one.length == following.offset for one, following in pairwise(groups))
    if not groups or not follow or not touch or len(groups) != parquet.num_row_groups:
        raise SidecarError("a sidecar's groups do not follow one another", name)
    return Footer(found, groups, parquet)


def _crc(footer: bytes, place: tuple[int, int]) -> bytes:
    """Compute the checksum of a footer for `quire.proof`, with zeros in place of the checksum that it contains."""
    start, end = place
    return b"%08x" % crc32c(footer[end:], crc32c(b"0" * (end - start), crc32c(footer[:start])))


def _place(footer: bytes) -> tuple[int, int] | None:
    """Locate the checksum in a footer: the last text of its form, because a key or name before it may look the same."""
    found = None
    for match in _PROOF.finditer(footer):
        found = match.span(1)
    return found


def read_group(footer: Footer, number: int, content: Buffer, columns: Sequence[str], name: str) -> pa.Table:
    """Read columns of group `number` from its bytes `content`. Raises `SidecarError`, and the errors of Arrow."""
    group = footer.groups[number]
    if len(content) != group.length or crc32c(content) != group.crc:
        raise SidecarError("a sidecar's rows do not match their checksum", name, group.offset)
    source = pa.PythonFile(_Source(memoryview(content), group.offset), mode="r")
    with pq.ParquetFile(source, metadata=footer.parquet, pre_buffer=False) as file:
        table = file.read_row_group(number, columns=list(columns), use_threads=False)
    if table.num_rows != group.rows:
        raise SidecarError(f"a sidecar has {table.num_rows} rows instead of {group.rows}", name)
    return table


class _Source:
    """File object over one byte range, for pyarrow."""

    def __init__(self, content: memoryview, offset: int) -> None:
        self._content = content
        self._offset = offset
        self._at = 0
        self.closed = False

    def read(self, size: int = -1) -> memoryview:
        start = self._at - self._offset
        if start < 0 or size < 0 or start + size > len(self._content):
            raise SidecarError(
                f"a sidecar's footer refers to bytes {self._at} to {self._at + size} outside of its group"
            )
        self._at += size
        return self._content[start : start + size]

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset + (0, self._at, self._offset + len(self._content))[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def close(self) -> None:
        self.closed = True
