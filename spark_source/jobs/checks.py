"""Checks of an audit on a topic's bytes. Performs no I/O.

| kind of finding | meaning |
|---|---|
| damaged | bytes do not match the block's checksum or the producer's |
| unreadable | neither the archive nor the bookies return the entries |
| order | entries, message indexes or the broker's clocks do not continue those before them |
| count | there are more or fewer messages or entries than the block or the metadata contain |
| duplicate | an entry is stored twice: the same producer, sequence id and bytes |
| undecodable | an entry cannot be decoded, though it is what its producer sent |
| lost | an entry was lost and given up by an operator |
| metadata | the list of segments is inconsistent, or an archived object's footer contradicts it |

`SliceChecks` checks a slice by itself, in a task. `of_segment` and `of_partition` then compare the slices' counts with
each other and with the metadata.

A producer that sends an entry again, because it had no receipt, sends the same bytes. So a duplicate is an entry with
the same sequence id *and* the same bytes. An entry with the same id and other bytes is not a duplicate: the chunks of a
message share an id, and a producer that reconnects under its old name may count from 0 again.

Duplicates in a whole history are found without holding all sequence ids in memory. Each slice returns the range of each
producer's sequence ids. If a producer's ranges overlap between slices, or its ids do not grow within a slice, these
slices are read again (`suspects`, `repeated`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from quire.spark_source.columns import Origin
from quire.spark_source.decode import Decoder
from quire.spark_source.positions import Window
from quire.spark_source.protobuf import Ints
from quire.spark_source.rows import entries_of
from quire.wire import block, message
from quire.wire.block import BlockHeader, Buffer

FINDINGS_MAX: Final = 100
"""Maximum number of findings per slice; further ones are only counted."""

BATCH_ROWS: Final = 65_536
_COLUMNS: Final = ("entry", "producer", "sequence", "undecoded")
_ENCRYPTED: Final = "encrypted"
_NUMBERS: Final = pa.schema(
    [("producer", pa.string()), ("sequence", pa.int64()), ("crc", pa.int64()), ("entry", pa.int64())]
)


class Finding(NamedTuple):
    """Fault that an audit found. `entry` -1 means the whole segment, `ledger` -1 the whole partition."""

    kind: str
    partition: str
    ledger: int
    entry: int
    what: str

    def __str__(self) -> str:
        place = "" if self.ledger < 0 else f" {self.ledger}" + ("" if self.entry < 0 else f":{self.entry}")
        return f"{self.kind}: {self.partition}{place}: {self.what}"


class Span(NamedTuple):
    """Range of a producer's sequence ids in a slice."""

    lowest: int
    highest: int
    grows: bool
    """True if the sequence ids increase from entry to entry."""


@dataclass
class Account:
    """Counts and findings of the slice's entries before `next_entry`.

    `is_trimmed` is true if the segment was trimmed during the audit.
    """

    origin: Origin
    next_entry: int
    entries: int = 0
    messages: int = 0
    bytes: int = 0
    encrypted: int = 0
    first_index: int = -1
    next_index: int = -1
    first_clock_ms: int = -1
    last_clock_ms: int = -1
    is_whole: bool = True
    is_trimmed: bool = False
    findings: list[Finding] = field(default_factory=list)
    more_findings: int = 0
    spans: dict[str, Span] = field(default_factory=dict)

    def found(self, kind: str, entry: int, what: str) -> None:
        if len(self.findings) < FINDINGS_MAX:
            self.findings.append(Finding(kind, self.origin.name, self.origin.ledger_id, entry, what))
        else:
            self.more_findings += 1


class SliceChecks:
    """Checks of the entries `[first_entry, end_entry)` of a segment; the caller passes their blocks in order."""

    def __init__(self, origin: Origin, first_entry: int, end_entry: int) -> None:
        self.account = Account(origin, first_entry)
        self._end_entry = end_entry
        window = Window().narrowed(first_entry, end_entry)
        self._decoder = Decoder(
            _COLUMNS, origin, window, batch_rows=BATCH_ROWS, keep_raw=True, skip_lost=True
        )
        self._last: tuple[BlockHeader, int] | None = None
        """Header of the last block, and the index of the message after that block."""
        self.numbers: list[pa.Table] = []
        """Tables of entries with known producers, of schema `_NUMBERS`."""

    def check_blocks(self, blocks: Buffer) -> None:
        """Check the next whole blocks. Raises `BlockError` before any of them is counted."""
        headers = [(offset, block.verify(blocks, offset)) for offset, _ in block.scan(blocks)]
        if not headers:
            return
        for offset, header in headers:
            self._follow(header, sum(block.message_counts(blocks, header, offset)))
        counts = np.concatenate([block.message_counts(blocks, header, at) for at, header in headers])
        entries = entries_of(blocks, self.account.origin.ledger_id)
        first, last = np.searchsorted(entries.id, (self.account.next_entry, self._end_entry)).tolist()
        if first == last:
            return
        account, part = self.account, entries.part(first, last)
        counts = counts[first:last].astype(np.int64)
        if account.first_index < 0:
            account.first_index = int(part.first_index[0])
        account.next_index = int(part.first_index[-1] + counts[-1])
        account.entries += last - first
        account.messages += int(counts.sum())
        account.bytes += int((part.end - part.start).sum())
        crcs = self._prove(memoryview(blocks), part.id, part.start, part.end)
        self._decode(blocks, part.id, counts, crcs)
        account.next_entry = int(part.id[-1]) + 1

    def finish(self) -> Account:
        for table in self.numbers:
            _widen(self.account.spans, table)
        return self.account

    def _follow(self, header: BlockHeader, messages: int) -> None:
        """Check that a block continues the previous one."""
        account, last = self.account, self._last
        self._last = header, header.first_index + messages
        if account.first_clock_ms < 0:
            account.first_clock_ms = header.clock_ms
        account.last_clock_ms = header.clock_ms
        if last is None:
            return
        before, index = last
        if header.first_entry != before.last_entry + 1:
            account.found("order", header.first_entry, f"it follows entry {before.last_entry}")
        if header.first_index != index:
            account.found(
                "order",
                header.first_entry,
                f"its first message has the index {header.first_index}, expected {index}",
            )
        if header.clock_ms < before.clock_ms:
            account.found(
                "order",
                header.first_entry,
                f"the broker's clock went back from {before.clock_ms} ms to {header.clock_ms}",
            )

    def _prove(self, blocks: memoryview, ids: Ints, starts: Ints, ends: Ints) -> Ints:
        """Verify each entry by its producer's checksum, and return the checksums."""
        found = np.zeros(len(ids), np.int64)
        places = zip(ids.tolist(), starts.tolist(), ends.tolist(), strict=True)
        for number, (entry_id, start, end) in enumerate(places):
            entry = blocks[start:end]
            if start == end:
                self.account.found("lost", entry_id, "it was lost, and an operator gave it up")
            elif not message.checksum_ok(entry):
                self.account.found("damaged", entry_id, "it does not match its producer's checksum")
            else:
                found[number] = int.from_bytes(entry[2:6], "big")
        return found

    def _decode(self, blocks: Buffer, ids: Ints, counts: Ints, crcs: Ints) -> None:
        """Decode the entries as readers do, and compare their numbers of messages with the blocks' counts."""
        batches = list(self._decoder.decode(blocks))
        if not batches:
            return
        rows = pa.Table.from_batches(batches)
        entry = rows["entry"].to_numpy()
        found, first, messages = np.unique(entry, return_index=True, return_counts=True)
        place = np.searchsorted(ids, found)
        firsts = rows.take(pa.array(first))
        odd = firsts["undecoded"].is_valid().to_numpy(zero_copy_only=False)
        for number in np.flatnonzero(odd).tolist():
            reason = firsts["undecoded"][number].as_py()
            if _ENCRYPTED in reason:
                self.account.encrypted += 1
            else:
                self.account.found("undecodable", int(found[number]), reason)
        for number in np.flatnonzero((messages != counts[place]) & ~odd).tolist():
            self.account.found(
                "count",
                int(found[number]),
                f"it has {messages[number]} messages, but its block counts {counts[place[number]]}",
            )
        known = pa.array(~odd)
        whole = (firsts["producer"], firsts["sequence"], pa.array(crcs[place]), firsts["entry"])
        self.numbers.append(pa.table(whole, schema=_NUMBERS).filter(known))


def _widen(spans: dict[str, Span], numbers: pa.Table) -> None:
    """Extend the producers' spans by the sequence ids of the next entries."""
    for name in pc.unique(numbers["producer"]).to_pylist():
        ids = numbers.filter(pc.equal(numbers["producer"], name))["sequence"].to_numpy()
        here = Span(int(ids.min()), int(ids.max()), bool((ids[1:] > ids[:-1]).all()))
        before = spans.get(name)
        spans[name] = here if before is None else _joined(before, here)


def _joined(a: Span, b: Span) -> Span:
    grows = a.grows and b.grows and a.highest < b.lowest
    return Span(min(a.lowest, b.lowest), max(a.highest, b.highest), grows)


# -- duplicates ------------------------------------------------------------------------------------------


def suspects(accounts: Iterable[Account]) -> dict[str, list[int]]:
    """Return the producers with possible duplicates in a partition, and the numbers of the slices to read again."""
    where: dict[str, list[int]] = {}
    spans: dict[str, Span] = {}
    for number, account in enumerate(accounts):
        for name, span in account.spans.items():
            where.setdefault(name, []).append(number)
            spans[name] = _joined(spans[name], span) if name in spans else span
    return {name: where[name] for name, span in spans.items() if not span.grows}


def repeated(numbers: Sequence[tuple[int, pa.Table]], partition: str) -> Iterator[Finding]:
    """Find the duplicates among the entries of some slices.

    `numbers` contains for each slice its ledger and the rows of `SliceChecks.numbers`.
    """
    tables = [
        table.append_column("ledger", pa.repeat(pa.scalar(ledger, pa.int64()), len(table)))
        for ledger, table in numbers
    ]
    if not tables:
        return
    keys = ["producer", "sequence", "crc"]
    groups = pa.concat_tables(tables).group_by(keys).aggregate([("entry", "list"), ("ledger", "list")])
    twice = groups.filter(pc.greater(pc.list_value_length(groups["entry_list"]), 1))
    for row in twice.to_pylist():
        places = sorted(zip(row["ledger_list"], row["entry_list"], strict=True))
        for place, before in zip(places[1:], places, strict=False):
            what = f"it repeats {before[0]}:{before[1]}, sequence id {row['sequence']} of producer {row['producer']}"
            yield Finding("duplicate", partition, *place, what)


# -- comparison with each other and with the metadata -----------------------------------------------------


def of_segment(
    partition: str, segment: Mapping[str, Any], accounts: Sequence[Account], *, is_open: bool
) -> Iterator[Finding]:
    """Compare the counts of a segment's slices, in order, with its record. An open segment still grows."""

    def found(kind: str, entry: int, what: str) -> Finding:
        return Finding(kind, partition, segment["ledger_id"], entry, what)

    if not accounts or any(one.is_trimmed or not one.is_whole for one in accounts):
        return
    if accounts[0].first_index != segment["first_index"]:
        yield found(
            "count",
            -1,
            f"it begins with message {accounts[0].first_index}, but its record has {segment['first_index']}",
        )
    for before, after in pairwise(accounts):
        if after.first_index != before.next_index:
            entry = after.next_entry - after.entries
            yield found(
                "order",
                entry,
                f"its first message has the index {after.first_index}, expected {before.next_index}",
            )
        if after.first_clock_ms < before.first_clock_ms:
            yield found("order", after.next_entry - after.entries, "the broker's clock went back")
    if is_open:
        return
    entries, messages = sum(one.entries for one in accounts), sum(one.messages for one in accounts)
    if entries != segment["last_entry"] + 1:
        yield found("count", -1, f"it has {entries} entries, but its record has {segment['last_entry'] + 1}")
    if messages != segment["messages"]:
        yield found("count", -1, f"it has {messages} messages, but its record has {segment['messages']}")


def of_partition(answer: Mapping[str, Any]) -> Iterator[Finding]:
    """Check that the list of a partition's segments is consistent."""
    name, segments, end = answer["topic"], answer["segments"], answer["end"]
    for one, after in pairwise(segments):
        index = one["first_index"] + one["messages"]
        if after["first_index"] != index:
            what = f"it begins with message {after['first_index']}, but segment {one['ledger_id']} ends before {index}"
            yield Finding("metadata", name, after["ledger_id"], -1, what)
    last = {one["ledger_id"]: one["last_entry"] for one in segments}
    if end["entry"] >= 0 and last.get(end["ledger"], -1) < end["entry"]:
        what = f"the last confirmed entry is {end['ledger']}:{end['entry']}, but no segment has it"
        yield Finding("metadata", name, -1, -1, what)
