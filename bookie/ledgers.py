"""State of each ledger on a bookie, beside its blocks: fence, limbo, tombstone, LAC.

    fenced      another writer took over: only blocks with the recovery flag are accepted (rules 9, 10)
    limbo       blocks may be lost here, so this bookie never answers that an entry is absent (rules 17, 19)
    tombstone   the ledger was deleted permanently (rule 20); also fenced
    LAC         greatest last-add-confirmed in any block or explicit write

All of this state is journalled, or derived from journalled records. Each checkpoint commits it to the index (rule 21),
as this record:

    offset size
         0    1  version        1
         1    1  flags          1 fenced, 2 limbo, 4 tombstone
         2    8  LAC            signed, -1 none
        10    8  last entry     of the blocks in the entry log, signed, -1 none
        18    8  bytes          of the blocks in the entry log
        26    8  tombstone      version of the metadata record in DELETING, signed
        34    4  crc            CRC32C over the bytes before
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from quire.runtime.errors import CorruptionError
from quire.wire.checksum import crc32c

_RECORD: Final = Struct(">BBqqqq")
_CRC: Final = Struct(">I")
RECORD_BYTES: Final = _RECORD.size + _CRC.size
_VERSION: Final = 1
_FENCED: Final = 1
_LIMBO: Final = 2
_TOMBSTONE: Final = 4

assert RECORD_BYTES == 38


class LedgerState:
    """State of one ledger. `last_entry` includes blocks in memory; the `flushed_` values only those in the entry log.

    `is_closed_to_writers` is true if the ledger is fenced or has a tombstone, so the hot path checks only this.
    """

    __slots__ = (
        "flushed_bytes",
        "flushed_last_entry",
        "is_closed_to_writers",
        "is_fenced",
        "is_limbo",
        "lac",
        "last_entry",
        "ledger_id",
        "tombstone_version",
    )

    def __init__(self, ledger_id: int) -> None:
        self.ledger_id = ledger_id
        self.is_fenced = False
        self.is_limbo = False
        self.is_closed_to_writers = False
        self.tombstone_version: int | None = None
        self.lac = -1
        self.last_entry = -1
        self.flushed_last_entry = -1
        self.flushed_bytes = 0

    @property
    def is_deleted(self) -> bool:
        return self.tombstone_version is not None

    def fence(self) -> None:
        """Accept only blocks with the recovery flag from now on."""
        self.is_fenced = True
        self.is_closed_to_writers = True

    def lay_tombstone(self, version: int) -> None:
        """Mark the ledger as deleted; `version` is the version of its metadata record in DELETING."""
        self.fence()
        self.tombstone_version = version

    def put_in_limbo(self) -> None:
        """Fence the ledger; never answer again that an entry is absent, because blocks of the ledger may be lost."""
        self.fence()
        self.is_limbo = True

    def encode(self) -> bytes:
        deleted = self.tombstone_version is not None
        assert self.is_closed_to_writers or not self.is_fenced
        assert self.lac >= -1 and self.flushed_last_entry >= -1 and self.flushed_bytes >= 0
        flags = _FENCED * self.is_fenced | _LIMBO * self.is_limbo | _TOMBSTONE * deleted
        version = self.tombstone_version if self.tombstone_version is not None else -1
        fields = _RECORD.pack(_VERSION, flags, self.lac, self.flushed_last_entry, self.flushed_bytes, version)
        return fields + _CRC.pack(crc32c(fields))


def decode(ledger_id: int, record: bytes) -> LedgerState:
    """Return the ledger's state from its record in the index, as of the last checkpoint. Raises `CorruptionError`."""
    fields, crc = record[: _RECORD.size], record[_RECORD.size :]
    if len(record) != RECORD_BYTES or _CRC.unpack(crc)[0] != crc32c(fields) or fields[0] != _VERSION:
        raise CorruptionError(f"the index's record of ledger {ledger_id} is damaged")
    _, flags, lac, last_entry, size_bytes, version = _RECORD.unpack(fields)
    state = LedgerState(ledger_id)
    state.lac, state.last_entry = lac, last_entry
    state.flushed_last_entry, state.flushed_bytes = last_entry, size_bytes
    if flags & _FENCED:
        state.fence()
    if flags & _TOMBSTONE:
        state.lay_tombstone(version)
    state.is_limbo = bool(flags & _LIMBO)
    return state
