"""Entry logs: what was synced is found again, what was not is never mistaken for damage, and damage is never silent."""

from pathlib import Path
from random import Random

import pytest

from quire.bookie.entry_log import EntryLogs, LogFreed
from quire.bookie.entry_log_scanner import EntryLogScanner, TornRecord
from quire.bookie.entry_record import find_records
from quire.bookie.index import IndexRow
from quire.runtime.disk import Disk, RealDisk
from quire.runtime.errors import CorruptionError, DiskError, DiskFull
from quire.runtime.limits import INDEX_RUN_BYTES_MAX, KIB, MIB
from quire.testing.disk import SimulatedDisk
from quire.wire import block

from .blocks import make_blocks

SMALL = {"file_bytes": 256 * KIB, "step_bytes": 64 * KIB, "record_bytes": 32 * KIB}


@pytest.fixture(params=["real", "simulated"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Disk:
    return RealDisk(tmp_path) if request.param == "real" else SimulatedDisk()


def opened(disk: Disk, **settings: int) -> EntryLogs:
    logs = EntryLogs(disk, "entries", **(SMALL | settings))
    logs.open()
    return logs


def nothing_is_damaged(error: CorruptionError) -> None:
    raise error


def random_runs(rng: Random, flush: int, ledgers: int) -> list[tuple[int, list[bytes]]]:
    """A memtable's worth: for each ledger one to eight blocks, after those of earlier flushes."""
    return [
        (
            ledger_id,
            make_blocks(ledger_id, flush * 50, [rng.randrange(1, 9000) for _ in range(rng.randrange(1, 9))]),
        )
        for ledger_id in range(1, ledgers + 1)
    ]


def blocks_of(logs: EntryLogs, row: IndexRow) -> list[bytes]:
    run = logs.read(row.log_id, row.offset, row.length)
    found = [(at, block.verify(run, at)) for at, _ in block.scan(run)]
    assert found[0][1].first_entry == row.first_entry
    assert found[-1][1].last_entry == row.last_entry
    assert {header.ledger_id for _, header in found} == {row.ledger_id}
    return [bytes(run[at : at + header.length]) for at, header in found]


def test_blocks_come_back_byte_for_byte(disk: Disk) -> None:
    logs = opened(disk)
    runs = [(n, make_blocks(n, 10 * n, [10 * n, 2000, 70_000 if n == 3 else 1])) for n in range(1, 6)]
    rows = logs.append(runs)
    logs.sync()
    for row in rows:
        assert row.lac == row.last_entry - 1
        assert (row.first_clock_ms, row.last_clock_ms) == (1000 + row.first_entry, 1000 + row.last_entry)
    for ledger_id, blocks in runs:
        found = [got for row in rows if row.ledger_id == ledger_id for got in blocks_of(logs, row)]
        assert found == blocks
    logs.close()


def test_a_run_ends_at_a_gap_at_its_limits_and_with_its_ledger(disk: Disk) -> None:
    logs = opened(disk, record_bytes=2 * MIB, file_bytes=8 * MIB)
    gap = make_blocks(1, 0, [10, 10]) + make_blocks(1, 5, [10])
    many = make_blocks(2, 0, [100] * 3, entry_count=400)
    large = make_blocks(3, 0, [100 * KIB] * 3)
    rows = logs.append([(1, gap), (2, many), (3, large)])
    assert [row[:3] for row in rows] == [
        (1, 0, 1),
        (1, 5, 5),
        (2, 0, 799),
        (2, 800, 1199),
        (3, 0, 1),
        (3, 2, 2),
    ]
    assert all(row.length <= INDEX_RUN_BYTES_MAX for row in rows)
    logs.close()


def test_a_scan_finds_the_very_rows_that_the_append_gave(disk: Disk) -> None:
    logs = opened(disk)
    rng = Random(4)
    rows = []
    for flush in range(12):
        runs = random_runs(rng, flush, 5)
        rows += logs.append(runs)
        logs.sync()
    assert len({row.log_id for row in rows}) > 2, "the test should fill several logs"
    assert list(EntryLogScanner(logs, nothing_is_damaged).scan_all()) == rows
    logs.close()
    again = opened(disk)
    assert list(EntryLogScanner(again, nothing_is_damaged).scan_all()) == rows
    assert [row.log_id > rows[-1].log_id for row in again.append([(9, make_blocks(9, 0, [1]))])] == [True]
    again.close()


def test_an_empty_append_writes_nothing(disk: Disk) -> None:
    logs = opened(disk)
    assert logs.append([]) == []
    logs.sync()
    assert logs.sizes() == {}
    logs.close()


def test_a_young_log_takes_little_room(tmp_path: Path) -> None:
    logs = EntryLogs(RealDisk(tmp_path), "entries")
    logs.open()
    logs.append([(1, make_blocks(1, 0, [100]))])
    logs.sync()
    (file,) = (tmp_path / "entries").iterdir()
    assert file.stat().st_blocks * 512 <= 65 * MIB
    logs.close()


def test_what_a_former_life_left_in_a_file_is_not_read(disk: Disk) -> None:
    logs = opened(disk)
    old = logs.append([(1, make_blocks(1, 0, [9000] * 20))])
    logs.sync()
    logs.close()
    logs = opened(disk)
    assert set(logs.sizes()) == {row.log_id for row in old} == {1}
    logs.free(1)
    new = logs.append([(2, make_blocks(2, 0, [9000]))])
    logs.sync()
    assert disk.names("entries") == ["00000002.log"], "the freed file was used again"
    assert list(EntryLogScanner(logs, nothing_is_damaged).scan_all()) == new
    with pytest.raises(LogFreed):
        logs.read(1, old[0].offset, old[0].length)
    logs.close()


def test_spares_beyond_the_limit_are_removed_one_at_a_time(disk: Disk) -> None:
    logs = opened(disk)
    logs.append([(1, make_blocks(1, 0, [9000] * 100))])
    logs.sync()
    for log_id in sorted(logs.sizes())[:3]:
        logs.free(log_id)
    assert [logs.trim_spares(keep=1) for _ in range(3)] == [True, True, False]
    assert len([name for name in disk.names("entries") if name.endswith(".free")]) == 1
    logs.close()


@pytest.mark.parametrize("seed", range(60))
def test_after_a_crash_all_that_was_synced_is_found_and_nothing_is_called_damage(seed: int) -> None:
    rng = Random(seed)
    disk = SimulatedDisk(seed)
    logs = opened(disk)
    synced: list[IndexRow] = []
    contents: dict[IndexRow, list[bytes]] = {}
    disk.crash_after(rng.randrange(3, 120))
    try:
        for flush in range(30):
            runs = random_runs(rng, flush, 2)
            rows = logs.append(runs)
            logs.sync()
            synced += rows
            contents |= {row: blocks_of(logs, row) for row in rows}
            if rng.random() < 0.1:
                logs.close()
                logs = opened(disk)
    except DiskError:
        pass
    disk.crash()
    logs = opened(disk)
    reported: list[CorruptionError] = []
    found = list(EntryLogScanner(logs, reported.append).scan_all())
    assert [row for row in synced if row not in set(found)] == []
    assert [error for error in reported if not isinstance(error, TornRecord)] == []
    for row in found:
        assert blocks_of(logs, row), "what is found can be read, synced or not"
    for row, blocks in contents.items():
        assert blocks_of(logs, row) == blocks


def flushed(disk: SimulatedDisk) -> tuple[EntryLogs, list[IndexRow]]:
    logs = opened(disk)
    rows = []
    for flush in range(3):
        rows += logs.append([(n, make_blocks(n, flush * 3, [3000, 3000, 3000])) for n in (1, 2, 3, 4)])
        logs.sync()
    return logs, rows


@pytest.mark.parametrize("into", [0, 30, 48, 60, 110, 2000, 9000])
def test_a_flipped_bit_is_reported_with_its_file(into: int) -> None:
    """In the header of a record, of a block, in a table, in an entry: always told, with file and offset."""
    disk = SimulatedDisk()
    logs, rows = flushed(disk)
    disk.flip("entries/00000001.log", into)
    reported: list[CorruptionError] = []
    found = list(EntryLogScanner(logs, reported.append).scan_all())
    assert reported and not isinstance(reported[0], TornRecord)
    assert (reported[0].file, reported[0].offset) == ("simulated/entries/00000001.log", 0)
    assert set(rows[-4:]) <= set(found), "records after the damage are found"


def test_the_end_of_a_full_log_is_proven_by_the_next_one() -> None:
    disk = SimulatedDisk()
    logs = opened(disk)
    rows = logs.append([(1, make_blocks(1, 0, [9000] * 40))])
    logs.sync()
    last = [row for row in rows if row.log_id == 1][-1]
    disk.flip("entries/00000001.log", last.offset + 200)
    reported: list[CorruptionError] = []
    list(EntryLogScanner(logs, reported.append).scan_all())
    assert [type(error) for error in reported] == [CorruptionError]


def test_a_block_whose_entries_rotted_is_still_told_of() -> None:
    disk = SimulatedDisk()
    logs, rows = flushed(disk)
    disk.flip("entries/00000001.log", rows[0].offset + 200)
    found = list(EntryLogScanner(logs, lambda error: None).scan_all())
    assert found == rows
    with pytest.raises(block.BlockError):
        blocks_of(logs, rows[0])


def test_a_rotten_last_record_is_reported_though_nothing_proves_that_it_was_durable() -> None:
    disk = SimulatedDisk()
    logs, rows = flushed(disk)
    disk.flip("entries/00000001.log", rows[-1].offset + 200)
    reported: list[CorruptionError] = []
    list(EntryLogScanner(logs, reported.append).scan_all())
    assert [type(error) for error in reported] == [TornRecord]


def test_a_file_cut_short_is_an_error(tmp_path: Path) -> None:
    logs = opened(RealDisk(tmp_path))
    (row,) = logs.append([(1, make_blocks(1, 0, [9000]))])
    logs.sync()
    file = tmp_path / "entries" / "00000001.log"
    with file.open("r+b") as opened_file:
        opened_file.truncate(4096)
    with pytest.raises(CorruptionError, match="truncated") as error:
        logs.read(row.log_id, row.offset, row.length)
    assert (error.value.file, error.value.offset) == (str(file), 4096)
    logs.close()


def test_a_full_disk_is_filled_to_its_last_record_and_keeps_what_it_has() -> None:
    disk = SimulatedDisk(capacity_bytes=512 * KIB)
    logs = opened(disk)
    blocks = make_blocks(1, 0, [9000] * 10)
    rows: list[IndexRow] = []
    with pytest.raises(DiskFull):
        while True:
            rows += logs.append([(1, blocks)])
            logs.sync()
    assert len(disk.names("entries")) <= 3, "a refused append leaves no files behind"
    with pytest.raises(DiskFull):
        logs.append([(1, blocks)])
    assert logs.room_bytes() < 128 * KIB, "where a step finds no room it grows by less"
    for row in rows:
        assert blocks_of(logs, row)
    assert set(rows) <= set(EntryLogScanner(logs, nothing_is_damaged).scan_all())


def test_after_a_failed_write_or_sync_the_next_append_goes_elsewhere() -> None:
    disk = SimulatedDisk()
    logs = opened(disk)
    for operation in ("write", "sync"):
        disk.fail(operation, 5, "0000000")
        with pytest.raises(DiskError):
            logs.append([(1, make_blocks(1, 0, [9000]))])
            logs.sync()
    (row,) = logs.append([(1, make_blocks(1, 0, [9000]))])
    logs.sync()
    assert row.log_id == 3
    assert blocks_of(logs, row) == make_blocks(1, 0, [9000])


def test_reads_name_the_file_when_the_disk_fails() -> None:
    disk = SimulatedDisk()
    logs, rows = flushed(disk)
    disk.spoil("entries/00000001.log", rows[0].offset)
    with pytest.raises(DiskError, match=r"00000001\.log"):
        logs.read(rows[0].log_id, rows[0].offset, rows[0].length)
    disk.restore("entries/00000001.log", rows[0].offset)
    assert blocks_of(logs, rows[0])


def test_a_header_that_cannot_be_read_is_reported_and_the_scan_goes_on() -> None:
    disk = SimulatedDisk()
    logs, rows = flushed(disk)
    headers = [span.offset for span in find_records(logs._logs[1], 1)]
    disk.spoil("entries/00000001.log", headers[1])
    reported: list[CorruptionError] = []
    found = list(EntryLogScanner(logs, reported.append).scan_all())
    assert len(reported) == 1 and not isinstance(reported[0], TornRecord)
    assert 0 < len(found) < len(rows)
    assert set(found) < set(rows)


def test_bad_pages_are_counted_once_however_often_they_are_met() -> None:
    disk = SimulatedDisk()
    logs = opened(disk, file_bytes=MIB)
    for number in range(40):
        logs.append([(1, make_blocks(1, number, [5000]))])
        logs.sync()
    for span in find_records(logs._logs[1], 1)[0:24:2]:
        disk.spoil("entries/00000001.log", span.offset)
    reported: list[CorruptionError] = []
    assert [row.first_entry for row in EntryLogScanner(logs, reported.append).scan_all()] == [
        *range(1, 24, 2),
        *range(24, 40),
    ]
    assert reported


def test_a_last_header_that_cannot_be_read_is_reported() -> None:
    disk = SimulatedDisk()
    logs = opened(disk)
    logs.append([(1, make_blocks(1, 0, [100]))])
    logs.sync()
    disk.spoil("entries/00000001.log", 0)
    reported: list[CorruptionError] = []
    assert list(EntryLogScanner(logs, reported.append).scan_all()) == []
    assert len(reported) == 1


def test_a_disk_that_is_broken_stops_the_scan() -> None:
    disk = SimulatedDisk()
    logs = opened(disk, step_bytes=MIB, file_bytes=MIB)
    logs.append([(1, make_blocks(1, 0, [100]))])
    logs.sync()
    disk.fail("read", 5, times=1000)
    with pytest.raises(DiskError):
        list(EntryLogScanner(logs, nothing_is_damaged).scan_all())


def test_many_small_appends_keep_to_the_size_of_a_log(disk: Disk) -> None:
    logs = opened(disk)
    for flush in range(100):
        logs.append([(1, make_blocks(1, flush, [5000]))])
    logs.sync()
    assert all(size_bytes <= SMALL["file_bytes"] for size_bytes in logs.sizes().values())
    assert len(logs.sizes()) >= 2
    logs.close()


def test_a_record_that_claims_more_than_its_log_has_takes_no_memory(disk: Disk) -> None:
    logs = opened(disk)
    row = logs.append([(1, make_blocks(1, 0, [100]))])[0]
    logs.sync()
    with pytest.raises(CorruptionError, match="truncated"):
        logs.read(row.log_id, row.offset, 1 << 62)  # no machine has the room: it fails before it asks for it
    logs.close()
