"""Audit of a topic: checks that entries are unchanged since their producers sent them, complete, in order and unique.

An archived segment is read from the archive even if bookies also have it: a query would silently read a damaged
object's entries from the bookies. Entries that cannot be read from the archive are then read through the broker, which
shows whether they are lost or can be repaired. `checks` lists the kinds of findings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from quire.runtime.errors import ConfigurationError, CorruptionError, NotFound, QuireError
from quire.spark_source import cutting, fetch
from quire.spark_source.broker import Broker
from quire.spark_source.fetch import Chunk
from quire.spark_source.jobs import checks
from quire.spark_source.jobs.checks import Account, Finding, SliceChecks
from quire.spark_source.jobs.slices import Progress, over, quietly, refuse
from quire.spark_source.options import Options, for_batch
from quire.spark_source.plan import Slice, archived_object, load_segments, slice_of, topics_of
from quire.spark_source.positions import Window

_KEPT: Final = (
    "start", "end", "starting_subscription", "columns", "value_schema", "on_bad_value", "on_undecodable", "on_lost",
    "chunks", "on_data_loss",
)  # fmt: skip
"""Options that an audit refuses, because it reads everything and reports all findings."""


@dataclass
class Segment:
    """Counts of one segment. `bytes` counts the bytes of its entries."""

    partition: str
    ledger: int
    state: str
    first_index: int
    entries: int = 0
    messages: int = 0
    bytes: int = 0
    findings: int = 0
    trimmed: bool = False
    """True if the segment was trimmed during the audit."""


@dataclass
class Audited:
    """Result of an audit."""

    topics: list[str]
    segments: list[Segment] = field(default_factory=list)
    slices: int = 0
    messages: int = 0
    entries: int = 0
    bytes: int = 0
    encrypted: int = 0
    """Number of encrypted entries, whose content is not verified."""
    producers: int = 0
    findings: list[Finding] = field(default_factory=list)
    more_findings: int = 0
    """Number of findings that are only counted, because their slices had more than `checks.FINDINGS_MAX`."""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"findings": [one._asdict() for one in self.findings]}


@dataclass
class _Partition:
    """Broker's list of a partition's segments, and the slices of each segment."""

    answer: Mapping[str, Any]
    slices: dict[int, list[Slice]]


def audit(
    options: Mapping[str, str], *, spark: Any = None, dry_run: bool = False, progress: Progress = quietly
) -> Audited:
    """Verify every entry of the topics. `options` are reading options: the topics, and the URL of the archive.

    The result lists the topics' faults. Raises an error only if the audit is impossible, because the broker does not
    answer or a topic does not exist.
    """
    refuse(options, _KEPT, "is not for audits, which read everything")
    parsed = for_batch(options)
    broker = parsed.broker
    partitions = [
        _planned(name, parsed, broker)
        for topic in topics_of(parsed, broker)
        for name in _names(topic, broker)
    ]
    report = Audited([one.answer["topic"] for one in partitions])
    every = [piece for one in partitions for pieces in one.slices.values() for piece in pieces]
    report.slices = len(every)
    if dry_run:
        return report
    done = over(partial(audit_slice, parsed), every, spark, progress)
    for one in partitions:
        accounts = {ledger: [next(done) for _ in pieces] for ledger, pieces in one.slices.items()}
        _sum_up(report, one, accounts, parsed)
        _find_repeated(report, one, accounts, parsed, spark)
    return report


def _names(topic: str, broker: Broker) -> list[str]:
    partitions = broker.segments(topic)["partitions"]
    return [f"{topic}-partition-{i}" for i in range(partitions)] or [topic]


def _planned(name: str, options: Options, broker: Broker) -> _Partition:
    try:
        answer = load_segments(name, broker)
    except CorruptionError:
        answer = broker.segments(name)  # a missing segment is a finding
    end = answer["end"]
    found: dict[int, list[Slice]] = {}
    for segment in answer["segments"]:
        is_last = segment["ledger_id"] == end["ledger"]
        last_entry = end["entry"] if is_last else segment["last_entry"]
        if last_entry >= 0:
            piece = slice_of(name, segment, last_entry, Window())
            found[segment["ledger_id"]] = cutting.slices([piece] if piece else [], options)
    return _Partition(answer, found)


# -- a slice, in a task ----------------------------------------------------------------------------------


def audit_slice(options: Options, piece: Slice) -> Account:
    """Check one slice, and return its counts and findings."""
    return _checked(options, piece).finish()


def numbers_of(options: Options, wanted: tuple[Slice, list[str]]) -> tuple[int, pa.Table | None]:
    """Return a slice's ledger, and the sequence ids of the entries that the given producers have in it.

    `wanted` is the slice and the producers' names.
    """
    piece, names = wanted
    tables = _checked(options, piece).numbers
    if not tables:
        return piece.origin.ledger_id, None
    table = pa.concat_tables(tables)
    is_wanted = pc.is_in(table["producer"], value_set=pa.array(names, pa.string()))
    return piece.origin.ledger_id, table.filter(is_wanted)


def _checked(options: Options, piece: Slice) -> SliceChecks:
    broker = options.broker
    checked = SliceChecks(piece.origin, piece.first_entry, piece.end_entry)
    refusals: list[QuireError] = []
    for place in _places(piece, broker, options.archive):
        try:
            for chunk in place(checked.account.next_entry):
                checked.check_blocks(chunk.blocks)
            if checked.account.next_entry >= piece.end_entry:
                break
            raise CorruptionError(f"no block follows entry {checked.account.next_entry - 1}")
        except QuireError as error:
            if options.archive and isinstance(error, ConfigurationError):
                raise  # the option archive is wrong
            refusals.append(error)
    if refusals:
        _add_unreadable(checked.account, piece, refusals, broker)
    return checked


def _places(
    piece: Slice, broker: Broker, archive_url: str | None
) -> Iterator[Callable[[int], Iterator[Chunk]]]:
    archived = piece.archived
    if archived is not None:
        yield lambda at: fetch.from_archive(piece, archived, archive_url, at)
    yield lambda at: fetch.from_broker(piece, broker, at)


def _add_unreadable(account: Account, piece: Slice, refusals: list[QuireError], broker: Broker) -> None:
    """Add the finding for entries that the archive, the broker or both could not return."""
    at = account.next_entry
    if at >= piece.end_entry:
        [error] = refusals
        account.found(
            "damaged",
            piece.first_entry,
            f"the archive cannot return entries {piece.first_entry} to {piece.end_entry - 1} ({error}), but the "
            "bookies can: `quire archive repair` uploads them again",
        )
        return
    account.is_whole = False
    if all(isinstance(error, NotFound) for error in refusals) and _is_trimmed(piece, broker):
        account.is_trimmed = True
        return
    said = "; ".join(map(str, refusals))
    account.found(
        "unreadable", at, f"entries {at} to {piece.end_entry - 1} cannot be read from any source: {said}"
    )


def _is_trimmed(piece: Slice, broker: Broker) -> bool:
    segments = broker.segments(piece.origin.name)["segments"]
    return piece.origin.ledger_id not in [segment["ledger_id"] for segment in segments]


# -- totals, on the driver ------------------------------------------------------------------------------


def _sum_up(
    report: Audited, partition: _Partition, accounts: Mapping[int, list[Account]], options: Options
) -> None:
    name, end = partition.answer["topic"], partition.answer["end"]
    report.findings += checks.of_partition(partition.answer)
    for record in partition.answer["segments"]:
        ledger = record["ledger_id"]
        some = accounts.get(ledger, [])
        found = [finding for account in some for finding in account.findings]
        found += checks.of_segment(name, record, some, is_open=ledger == end["ledger"])
        found += _of_footer(name, record, options)
        segment = Segment(
            partition=name,
            ledger=ledger,
            state=record["state"],
            first_index=record["first_index"],
            entries=sum(one.entries for one in some),
            messages=sum(one.messages for one in some),
            bytes=sum(one.bytes for one in some),
            findings=len(found) + sum(one.more_findings for one in some),
            trimmed=any(one.is_trimmed for one in some),
        )
        report.segments.append(segment)
        report.findings += found
        report.more_findings += sum(one.more_findings for one in some)
        report.entries += segment.entries
        report.messages += segment.messages
        report.bytes += segment.bytes
        report.encrypted += sum(one.encrypted for one in some)
    report.producers += len(
        {producer for some in accounts.values() for one in some for producer in one.spans}
    )


def _of_footer(name: str, record: Mapping[str, Any], options: Options) -> list[Finding]:
    """Compare an archived object's footer with the segment's record."""
    archived = archived_object(record)
    if archived is None:
        return []
    try:
        footer = fetch.read_index(fetch.open_store(options.archive or archived.store), archived).footer
    except QuireError:
        return []  # the audit of its slices reports the error
    said = {
        "ledger": (footer.ledger_id, record["ledger_id"]),
        "last entry": (footer.last_entry, record["last_entry"]),
        "messages": (footer.message_count, record["messages"]),
        "first message": (footer.first_index, record["first_index"]),
    }
    return [
        Finding(
            "metadata",
            name,
            record["ledger_id"],
            -1,
            f"its object has the {what} {in_object}, but its record has {in_record}",
        )
        for what, (in_object, in_record) in said.items()
        if in_object != in_record
    ]


def _find_repeated(
    report: Audited,
    partition: _Partition,
    accounts: Mapping[int, list[Account]],
    options: Options,
    spark: Any,
) -> None:
    """Find duplicate entries, by reading again the slices that may have some."""
    pieces = [piece for some in partition.slices.values() for piece in some]
    names: dict[int, list[str]] = {}
    in_order = [account for some in accounts.values() for account in some]
    for producer, where in checks.suspects(in_order).items():
        for number in where:
            names.setdefault(number, []).append(producer)
    wanted = [(pieces[number], sorted(producers)) for number, producers in sorted(names.items())]
    numbers = over(partial(numbers_of, options), wanted, spark)
    tables = [(ledger, table) for ledger, table in numbers if table is not None]
    found = list(checks.repeated(tables, partition.answer["topic"]))
    report.findings += found
    for one in report.segments:
        if one.partition == partition.answer["topic"]:
            one.findings += sum(finding.ledger == one.ledger for finding in found)
