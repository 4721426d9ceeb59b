"""The blocks of one slice, from wherever they are when the task runs.

Archived segments are read straight from the object store, a few ranges ahead of the decoder; the others, and the open
one, through the broker. Between the plan and the task a segment may have moved: then the other place is tried,
from the first block that has not been handed out, for both places hold the same blocks; and so it is when an object
is damaged, for the broker may still have the bookies' copy. Only when both say no is the task failed, with what each
of them said.

Every block that is handed out is proven: by the checksum of its run in the archive's index, or by its own. And a task
proves that it lacks nothing: its blocks follow one another, from the slice's first entry to its last.

Stores are opened here, once per process, and stay in it: a boto3 client cannot be pickled.
"""

from __future__ import annotations

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

CHUNK_BYTES: Final = 8 * MIB
"""Blocks that are decoded in one go: enough rows for the cost of a numpy call not to matter."""

RANGES_AHEAD: Final = 3
"""Chunks that are being read while one is decoded; with the decoded one they bound a task's memory."""

open_store = lru_cache(maxsize=8)(open_blocking)


class Chunk(NamedTuple):
    """Whole, proven blocks that follow one another: their first entry, and the one after their last."""

    blocks: Buffer
    first_entry: int
    next_entry: int


def blocks(piece: Slice, broker: Broker | None, archive_url: str | None) -> Iterator[Buffer]:
    """The slice's blocks in order, in chunks; the first and last may hold entries outside of it.

    Without a broker only the archive is asked, which must have the segment then.

    Raises `CorruptionError`, `Unavailable` or `NotFound` when neither archive nor broker has all of them.
    """
    at = piece.first_entry
    refusals: list[QuireError] = []
    for place in _places(piece, broker, archive_url):
        try:
            for chunk in place(at):
                if not chunk.first_entry <= at < chunk.next_entry:
                    raise CorruptionError(f"entry {chunk.first_entry} came where entry {at} was asked for")
                at = chunk.next_entry
                yield chunk.blocks
            if at >= piece.end_entry:
                return
            raise CorruptionError(f"there is nothing after entry {at - 1}")
        except QuireError as error:
            if archive_url and isinstance(error, ConfigurationError):
                raise  # the user's own word for where the archive is
            refusals.append(error)
    raise _neither(piece, at, refusals)


def _places(
    piece: Slice, broker: Broker | None, archive_url: str | None
) -> Iterator[Callable[[int], Iterator[Chunk]]]:
    """Where to look, best first; lazily, since where a segment moved is only asked when it has."""

    def through(broker: Broker) -> Callable[[int], Iterator[Chunk]]:
        return lambda at: from_broker(piece, broker, at)

    def in_archive(archived: ArchivedObject) -> Callable[[int], Iterator[Chunk]]:
        return lambda at: from_archive(piece, archived, archive_url, at)

    if piece.archived is not None:
        yield in_archive(piece.archived)
        if broker is not None:
            yield through(broker)
        return
    assert broker is not None, "a segment that is not archived has no other place"
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
        f"ledger {piece.origin.ledger_id} of {piece.origin.name} cannot be read from entry {at} to "
        f"{piece.end_entry - 1}: {said}"
        + ("; it was trimmed after the query was planned" if kind is NotFound else "")
    )


# -- the broker ------------------------------------------------------------------------------------------


def from_broker(piece: Slice, broker: Broker, at: int) -> Iterator[Chunk]:
    """The slice's blocks from the one with entry `at` on, through the broker. Raises as `blocks` does.

    An answer has 1 MiB or so: several are one chunk, and the next chunk is asked for while one is decoded.
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
    """Answers that follow one another, joined while they are no larger than a chunk."""
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
    """One after the other, each proven: the first may begin before `at`, and each other where the one before ended."""
    origin, follows = piece.origin, False
    while at < piece.end_entry:
        body = broker.blocks(origin.name, origin.ledger_id, at, READ_BYTES_MAX)
        if not body:
            raise Unavailable(f"the broker at {broker.url} has no entry {origin.ledger_id}:{at}")
        headers = [block.verify(body, offset) for offset, _ in block.scan(body)]
        _check_ledgers(headers, origin.ledger_id, f"the broker at {broker.url}")
        first_entry = headers[0].first_entry
        if first_entry > at or (follows and first_entry < at):
            raise CorruptionError(f"entry {first_entry} came where entry {at} was asked for")
        for one, following in pairwise(headers):
            if one.last_entry + 1 != following.first_entry:
                raise block.BlockError(
                    f"the broker answered with entry {following.first_entry} after entry {one.last_entry}"
                )
        at, follows = headers[-1].last_entry + 1, True
        yield Chunk(body, first_entry, at)


def _check_ledgers(found: Iterable[block.BlockHeader], wanted: int, source: str) -> None:
    for header in found:
        if header.ledger_id != wanted:
            raise block.BlockError(f"{source} answered with a block of ledger {header.ledger_id}")


# -- the archive -----------------------------------------------------------------------------------------


def from_archive(piece: Slice, archived: ArchivedObject, archive_url: str | None, at: int) -> Iterator[Chunk]:
    """The same, from an object of the archive alone."""
    url = archive_url or archived.store
    store, index = open_store(url), _index(url, archived)
    if index.footer.ledger_id != piece.origin.ledger_id:
        raise SegmentError(
            f"an object is of ledger {index.footer.ledger_id}", archived.name, archived.bytes - FOOTER_BYTES
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
    """Those from the one that holds `entry` on, or all if that comes before them; and their first entry.

    A run holds several blocks, and those at its beginning may have been handed out already.
    """
    for offset, header in block.scan(blocks):
        if header.last_entry >= entry:
            return blocks[offset:], header.first_entry
    raise CorruptionError(f"entry {entry} is not in the run that its index names")


def read_index(store: BlockingStore, archived: ArchivedObject) -> Index:
    """An object's index, proven against the pointer. Raises `SegmentError`, `NotFound`, `Unavailable`."""
    size = min(archived.bytes, TAIL_GUESS_BYTES)
    tail = store.get_range(archived.name, archived.bytes - size, size)
    footer = read_footer(tail, archived.bytes, archived.name)
    if footer_crc(tail) != archived.crc:
        raise SegmentError("an object is not the one that was recorded", archived.name, archived.bytes)
    needed = footer.index_bytes + FOOTER_BYTES
    if needed > size:
        tail = store.get_range(archived.name, archived.bytes - needed, needed)
    return Index(footer, tail, archived.name)


@lru_cache(maxsize=4)
def _index(store_url: str, archived: ArchivedObject) -> Index:
    """`read_index`, once for a slice that is read in many spans."""
    return read_index(open_store(store_url), archived)


def _chunks(rows: list[Row]) -> Iterator[list[Row]]:
    """Neighbouring runs, together as large as a chunk."""
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
    """Each of `runs` with its bytes, in order, `RANGES_AHEAD` of them being read while one is used."""
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
