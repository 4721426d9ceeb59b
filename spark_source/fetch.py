"""Reading of one slice's blocks, from the archive or the broker.

Archived segments are read from the object store, a few ranges ahead of the decoder; all others through the broker. A
segment may move between plan and task, and an object may be damaged while bookies still have a copy. Then reading
continues from the other source, from the first block that was not yielded: both have the same blocks. The task fails
only if both sources fail, with the errors of both.

Every yielded block is verified, either by the checksum of its run in the archive's index or by its own. A task also
verifies that no block is missing: blocks are contiguous from the slice's first entry to its last.

Stores are opened here, once per process, and are not shared: a boto3 client cannot be pickled.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from itertools import islice, pairwise
from typing import Final, NamedTuple

from quire.objects.open import open_blocking
from quire.objects.store import BlockingStore
from quire.runtime.errors import ConfigurationError, CorruptionError, NotFound, QuireError, Unavailable
from quire.runtime.limits import MIB, READ_BYTES_MAX
from quire.spark_source.broker import Broker
from quire.spark_source.plan import ArchivedObject, Slice, archived_object
from quire.tiering.segment_object import (
    FOOTER_BYTES,
    TAIL_GUESS_BYTES,
    Index,
    Row,
    SegmentError,
    footer_crc,
    read_footer,
    verify_run,
)
from quire.wire import block
from quire.wire.block import Buffer

CHUNK_BYTES: Final = 4 * MIB
"""Number of bytes of blocks that are decoded at once: enough rows to make the cost of a numpy call negligible."""

RANGES_AHEAD: Final = 3
"""Number of chunks that are read while one is decoded; together, they bound a task's memory."""

_warned: set[type[QuireError]] = set()

_log = logging.getLogger(__name__)

open_store = lru_cache(maxsize=8)(open_blocking)


class Chunk(NamedTuple):
    """Contiguous verified blocks, with the id of their first entry and the id after their last one."""

    blocks: Buffer
    first_entry: int
    next_entry: int


def blocks(piece: Slice, broker: Broker | None, archive_url: str | None) -> Iterator[Buffer]:
    """Yield the slice's blocks in order, in chunks. The first and last chunks may contain entries outside the slice.

    Without a broker, only the archive is read, so the segment must be archived. Raises `CorruptionError`,
    `Unavailable` or `NotFound` if not all blocks can be read from the archive or the broker.
    """
    at = piece.first_entry
    refusals: list[QuireError] = []
    for place in _places(piece, broker, archive_url):
        try:
            for chunk in place(at):
                if not chunk.first_entry <= at < chunk.next_entry:
                    raise CorruptionError(f"received entry {chunk.first_entry} instead of entry {at}")
                at = chunk.next_entry
                yield chunk.blocks
            if at >= piece.end_entry:
                if piece.archived is not None and refusals:
                    _warn_of_archive(piece, refusals[0])
                return
            raise CorruptionError(f"no block follows entry {at - 1}")
        except QuireError as error:
            if archive_url and isinstance(error, ConfigurationError):
                raise  # the option archive is wrong
            refusals.append(error)
    raise _neither(piece, at, refusals)


def _warn_of_archive(piece: Slice, error: QuireError) -> None:
    """Warn, once per kind of error, that blocks were read from the broker: the option `archive` may be wrong."""
    if type(error) not in _warned:
        _warned.add(type(error))
        _log.warning(
            "segment %d of %s is archived, but was read through the broker; check the option archive: %s",
            piece.origin.ledger_id,
            piece.origin.name,
            error,
        )


def _places(
    piece: Slice, broker: Broker | None, archive_url: str | None
) -> Iterator[Callable[[int], Iterator[Chunk]]]:
    """Yield the sources to read from, best first.

    A segment that was not archived when the query was planned may have moved to the archive since. The broker is asked
    for its new location only if reading through the broker fails.
    """

    def through(broker: Broker) -> Callable[[int], Iterator[Chunk]]:
        return lambda at: from_broker(piece, broker, at)

    def in_archive(archived: ArchivedObject) -> Callable[[int], Iterator[Chunk]]:
        return lambda at: from_archive(piece, archived, archive_url, at)

    if piece.archived is not None:
        yield in_archive(piece.archived)
        if broker is not None:
            yield through(broker)
        return
    assert broker is not None, "a segment that is not archived can be read only through a broker"
    yield through(broker)
    moved = _archived_since(piece, broker)
    if moved is not None:
        yield in_archive(moved)


def _archived_since(piece: Slice, broker: Broker) -> ArchivedObject | None:
    try:
        segments = broker.segments(piece.origin.name)["segments"]
    except QuireError:
        return None
    for segment in segments:
        if segment["ledger_id"] == piece.origin.ledger_id:
            return archived_object(segment)
    return None


def _neither(piece: Slice, at: int, refusals: list[QuireError]) -> QuireError:
    said = "; ".join(str(error) for error in refusals)
    kind: type[QuireError] = Unavailable
    if all(isinstance(error, NotFound) for error in refusals):
        kind = NotFound
    elif any(isinstance(error, CorruptionError) for error in refusals):
        kind = CorruptionError
    return kind(
        f"cannot read entries {at} to {piece.end_entry - 1} of ledger {piece.origin.ledger_id} of {piece.origin.name}: "
        f"{said}" + ("; it was trimmed after the query was planned" if kind is NotFound else "")
    )


# -- the broker ------------------------------------------------------------------------------------------


def from_broker(piece: Slice, broker: Broker, at: int) -> Iterator[Chunk]:
    """Yield a slice's blocks through the broker, from the block with entry `at` on. Raises the errors of `blocks`.

    A response has about 1 MiB; several are joined into a chunk. The next chunk is requested while the caller decodes
    one.
    """
    chunks = _gathered(_answers(piece, broker, at))
    pool = ThreadPoolExecutor(1, "quire-fetch")
    try:
        future = pool.submit(next, chunks, None)
        while (chunk := future.result()) is not None:
            future = pool.submit(next, chunks, None)
            yield chunk
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _gathered(answers: Iterable[Chunk]) -> Iterator[Chunk]:
    """Join consecutive responses into chunks of at most `CHUNK_BYTES`."""
    held: list[Chunk] = []
    size = 0
    for answer in answers:
        if held and size + len(answer.blocks) > CHUNK_BYTES:
            yield _joined(held)
            held, size = [], 0
        held.append(answer)
        size += len(answer.blocks)
    if held:
        yield _joined(held)


def _joined(chunks: Sequence[Chunk]) -> Chunk:
    if len(chunks) == 1:
        return chunks[0]
    return Chunk(b"".join(one.blocks for one in chunks), chunks[0].first_entry, chunks[-1].next_entry)


def _answers(piece: Slice, broker: Broker, at: int) -> Iterator[Chunk]:
    """Yield verified responses in entry order.

    The first response may start before `at`, because responses contain whole blocks. Each later response starts where
    the previous one ended.
    """
    origin, follows = piece.origin, False
    while at < piece.end_entry:
        body = broker.blocks(origin.name, origin.ledger_id, at, READ_BYTES_MAX)
        if not body:
            raise Unavailable(f"the broker at {broker.url} has no entry {origin.ledger_id}:{at}")
        headers = [block.verify(body, offset) for offset, _ in block.scan(body)]
        _check_ledgers(headers, origin.ledger_id, f"the broker at {broker.url}")
        first_entry = headers[0].first_entry
        if first_entry > at or (follows and first_entry < at):
            raise CorruptionError(f"received entry {first_entry} instead of entry {at}")
        for one, following in pairwise(headers):
            if one.last_entry + 1 != following.first_entry:
                raise block.BlockError(
                    f"the broker returned entry {following.first_entry} after entry {one.last_entry}"
                )
        at, follows = headers[-1].last_entry + 1, True
        yield Chunk(body, first_entry, at)


def _check_ledgers(found: Iterable[block.BlockHeader], wanted: int, source: str) -> None:
    for header in found:
        if header.ledger_id != wanted:
            raise block.BlockError(
                f"{source} returned a block of ledger {header.ledger_id}, expected ledger {wanted}"
            )


# -- the archive -----------------------------------------------------------------------------------------


def from_archive(piece: Slice, archived: ArchivedObject, archive_url: str | None, at: int) -> Iterator[Chunk]:
    """Yield a slice's blocks from an object of the archive, from the block with entry `at` on."""
    url = archive_url or archived.store
    store, index = open_store(url), _index(url, archived)
    if index.footer.ledger_id != piece.origin.ledger_id:
        raise SegmentError(
            f"the object belongs to ledger {index.footer.ledger_id}",
            archived.name,
            archived.bytes - FOOTER_BYTES,
        )
    first, last = index.find_entry(at), index.find_entry(piece.end_entry - 1)
    runs = list(_chunks([index.row(number) for number in range(first, last + 1)]))

    def get(rows: list[Row]) -> Buffer:
        return store.get_range(archived.name, rows[0].offset, rows[-1].end - rows[0].offset)

    for rows, content in _ahead(get, runs):
        view = memoryview(content)
        for row in rows:
            start = row.offset - rows[0].offset
            verify_run(view[start : start + row.length], row, archived.name)
        first += len(rows)
        content, first_entry = _from_entry(view, at)
        yield Chunk(content, first_entry, index.last_entry(first - 1) + 1)


def _from_entry(blocks: memoryview, entry: int) -> tuple[memoryview, int]:
    """Return the blocks from the block that contains `entry` on, and the first entry of these.

    A run contains several blocks, and the first ones may have been yielded already. If `entry` precedes all blocks, all
    are returned.
    """
    for offset, header in block.scan(blocks):
        if header.last_entry >= entry:
            return blocks[offset:], header.first_entry
    raise CorruptionError(f"entry {entry} is not in the run that contains it by the index")


def read_index(store: BlockingStore, archived: ArchivedObject) -> Index:
    """Read an object's index, and verify it against the pointer. Raises `SegmentError`, `NotFound`, `Unavailable`."""
    size = min(archived.bytes, TAIL_GUESS_BYTES)
    tail = store.get_range(archived.name, archived.bytes - size, size)
    footer = read_footer(tail, archived.bytes, archived.name)
    if footer_crc(tail) != archived.crc:
        raise SegmentError("the object's footer differs from its record", archived.name, archived.bytes)
    needed = footer.index_bytes + FOOTER_BYTES
    if needed > size:
        tail = store.get_range(archived.name, archived.bytes - needed, needed)
    return Index(footer, tail, archived.name)


@lru_cache(maxsize=4)
def _index(store_url: str, archived: ArchivedObject) -> Index:
    """Return the index of an object, cached, because a slice may be read in many ranges."""
    return read_index(open_store(store_url), archived)


def _chunks(rows: list[Row]) -> Iterator[list[Row]]:
    """Group adjacent runs, which are rows of the index, into chunks."""
    chunk: list[Row] = []
    for row in rows:
        if chunk and row.end - chunk[0].offset > CHUNK_BYTES:
            yield chunk
            chunk = []
        chunk.append(row)
    if chunk:
        yield chunk


def _ahead(
    get: Callable[[list[Row]], Buffer], runs: Iterable[list[Row]]
) -> Iterator[tuple[list[Row], Buffer]]:
    """Yield each element of `runs` with its bytes, in order. Up to `RANGES_AHEAD` are read ahead of the caller."""
    waiting: deque[tuple[list[Row], Future[Buffer]]] = deque()
    rest = iter(runs)
    pool = ThreadPoolExecutor(RANGES_AHEAD, "quire-fetch")
    try:
        waiting.extend((rows, pool.submit(get, rows)) for rows in islice(rest, RANGES_AHEAD))
        while waiting:
            rows, future = waiting.popleft()
            content = future.result()
            waiting.extend((more, pool.submit(get, more)) for more in islice(rest, 1))
            yield rows, content
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
