"""Reader of a sidecar in its store. It is opened by its object's pointer; groups are read and verified on demand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import pyarrow as pa

from quire.objects.store import BlockingStore
from quire.runtime.errors import QuireError
from quire.runtime.limits import KIB, MIB
from quire.spark_source.plan import ArchivedObject
from quire.spark_source.sidecar.layout import (
    TAIL_BYTES,
    Footer,
    Group,
    Identity,
    SidecarError,
    footer_bytes,
    read_footer,
    read_group,
)
from quire.tiering.archive import sidecar_of

TAIL_GUESS_BYTES: Final = 64 * KIB
"""Length of the first read, which contains the footer of a sidecar with up to some twenty groups."""

READ_BYTES: Final = 8 * MIB
"""Greatest size of one read of several groups."""


class Sidecar:
    """Sidecar of one object. All methods but the constructor raise `SidecarError` and the store's errors."""

    def __init__(self, store: BlockingStore, name: str, file_bytes: int, footer: Footer) -> None:
        self.name = name
        self.file_bytes = file_bytes
        self._store = store
        self._footer = footer

    @property
    def groups(self) -> Sequence[Group]:
        return self._footer.groups

    @property
    def rows(self) -> int:
        return self._footer.parquet.num_rows  # type: ignore[no-any-return]

    def tables(self, numbers: Sequence[int], columns: Sequence[str]) -> Iterator[tuple[Group, pa.Table]]:
        """Yield the given groups in ascending order, each with a table of the given columns."""
        for run in self._runs(numbers):
            first, last = self.groups[run[0]], self.groups[run[-1]]
            length = last.offset + last.length - first.offset
            content = memoryview(self._store.get_range(self.name, first.offset, length))
            for number in run:
                group = self.groups[number]
                start = group.offset - first.offset
                part = content[start : start + group.length]
                with arrow_errors(self.name):
                    table = read_group(self._footer, number, part, columns, self.name)
                yield group, table

    def _runs(self, numbers: Sequence[int]) -> Iterator[list[int]]:
        """Combine adjacent groups into reads of at most `READ_BYTES`; a larger group is a read of its own."""
        run: list[int] = []
        for number in numbers:
            group = self.groups[number]
            end = group.offset + group.length
            if run and (number != run[-1] + 1 or end - self.groups[run[0]].offset > READ_BYTES):
                yield run
                run = []
            run.append(number)
        if run:
            yield run


def open_sidecar(store: BlockingStore, archived: ArchivedObject, ledger_id: int) -> Sidecar:
    """Open an object's sidecar. Raises `NotFound` if it has none, `SidecarError`, and the store's errors."""
    name = sidecar_of(archived.name)
    file_bytes = store.size(name)
    if file_bytes < TAIL_BYTES:
        raise SidecarError("a sidecar is too short for Parquet", name, 0)
    size = min(file_bytes, TAIL_GUESS_BYTES)
    tail = store.get_range(name, file_bytes - size, size)
    needed = footer_bytes(tail, name)
    if needed > file_bytes:
        raise SidecarError(f"a sidecar of {file_bytes} bytes claims a footer of {needed}", name, 0)
    if needed > size:
        tail = store.get_range(name, file_bytes - needed, needed)
    with arrow_errors(name):
        footer = read_footer(tail, file_bytes, Identity(ledger_id, archived.bytes, archived.crc), name)
    return Sidecar(store, name, file_bytes, footer)


@contextmanager
def arrow_errors(name: str) -> Iterator[None]:
    """Map the errors that Arrow and other libraries raise for invalid bytes to `SidecarError`."""
    try:
        yield
    except QuireError:
        raise
    except (pa.ArrowException, OSError, ValueError, LookupError, TypeError) as error:
        raise SidecarError(f"a sidecar cannot be read: {error}", name, 0) from error
