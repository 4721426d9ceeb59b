"""Repair with one of its rules taken away must be caught by the check that the rule is for."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from quire.ledger import repair_copy, repair_core, states
from quire.ledger.repair_core import Copy, View
from quire.metadata.records import BookieIntent, LedgerState
from quire.testing.cluster import Listener, write
from quire.wire.bookie import Status
from tests.ledger.repair_cluster import Cluster, one_more

Check = Callable[[Cluster], Awaitable[None]]


async def names_only_holders(cluster: Cluster) -> None:
    """A copy that cannot be made is not named."""
    record = await cluster.closed()
    await one_more(cluster)
    cluster.bookies[3].refuses = Status.IO_ERROR
    cluster.lose(0)
    await cluster.look_long_after()
    after = await cluster.info(record.ledger_id)
    assert all(
        name.startswith("bookie-0") or name in cluster.holders(record) for name in after.fragments[0].bookies
    )


async def waits(cluster: Cluster) -> None:
    """A bookie that is away for a moment costs nothing."""
    record = await cluster.closed()
    await one_more(cluster)
    cluster.lose(0)
    await cluster.repair.look()
    cluster.clock.advance_ms(1_000)
    cluster.repair._auditor.is_wanted = True
    await cluster.repair.look()
    assert await cluster.info(record.ledger_id) == record


async def leaves_open_ledgers(cluster: Cluster) -> None:
    """The record of an open ledger is its writer's alone, and so it can go on."""
    writer = await cluster.ledgers.create("test", listener := Listener())
    await listener.until(write(writer, 5))
    await one_more(cluster)
    cluster.lose(0)
    await cluster.look_long_after()
    cluster.bookies[1].refuses = Status.READ_ONLY
    await listener.until(write(writer, 5))
    assert listener.error is None


async def copies_all(cluster: Cluster) -> None:
    """Every entry up to the last one is there."""
    record = await cluster.closed(blocks=40)
    await one_more(cluster)
    cluster.lose(0)
    await cluster.look_long_after()
    assert "bookie-3:1" in cluster.holders(record)


async def copies_are_fenced(cluster: Cluster) -> None:
    record = await cluster.closed()
    await one_more(cluster)
    cluster.lose(0)
    await cluster.look_long_after()
    assert cluster.bookies[3].ledgers[record.ledger_id].is_fenced


async def believes_no_damage(cluster: Cluster) -> None:
    """A source whose disk lies does not spread its damage."""
    record = await cluster.closed()
    for number in (0, 1):
        cluster.bookies[number].serves_damage = True
        cluster.bookies[number].flip(record.ledger_id, 7)
    await one_more(cluster)
    await cluster.report_damage(0, record.ledger_id, 7, flip=False)
    await cluster.look_long_after()
    good, copied = (cluster.bookies[n].ledgers[record.ledger_id].blocks for n in (2, 3))
    assert copied == good


async def drains_only_what_is_left(cluster: Cluster) -> None:
    """Two good copies stay when a third one goes without replacement, never fewer."""
    record = await cluster.closed()
    cluster.bookies[2].unreachable = True
    cluster.directory._records.pop("bookie-2")
    await cluster.want(0, BookieIntent.DRAIN)
    for _ in range(3):
        await cluster.repair.look()
    assert (await cluster.info(record.ledger_id)).fragments == record.fragments


async def fills_before_it_leaves(cluster: Cluster) -> None:
    """A block that only two have is on two others before one of them goes."""
    record = await cluster.closed()
    lacking = cluster.bookies[1].ledgers[record.ledger_id]
    lacking.blocks.pop(lacking.firsts.pop(3))
    cluster.bookies[1].refuses = Status.READ_ONLY
    await cluster.want(0, BookieIntent.DRAIN)
    await cluster.look_long_after()
    assert (await cluster.info(record.ledger_id)).fragments == record.fragments


async def _no_write(self: object, *_: object) -> None:
    return None


async def _no_copy_behind_the_first(self, ledger_id, entry, last_entry, sources):
    blocks, _ = await _read(self, ledger_id, entry, last_entry, sources)
    return blocks[:1], last_entry + 1


def _believing(blocks, ledger_id, first_entry):
    from quire.ledger.answers import Run
    from quire.wire.block import read_header

    return Run([(each, read_header(each)) for each in blocks])


def _impatient(self: View, ledger_id: int, bookie) -> Copy:
    judged = _judge(self, ledger_id, bookie)
    return Copy.LOST if judged is Copy.ABSENT else judged


def _open_too(record, view, loads, random):
    closed = states.closed(record, record.fragments, 14, 0, 0) if record.state is LedgerState.OPEN else record
    return _plan(closed, view, loads, random)


def _absent_is_good(record, copies, stay, targets, go):
    return _must_stay(
        record, {b: Copy.GOOD if c is Copy.ABSENT else c for b, c in copies.items()}, stay, targets, go
    )


_read, _judge, _plan = repair_copy.Copier._read, View.judge, repair_core.plan
_must_stay = repair_core._must_stay
_repaired = states.repaired


def _repaired_open(record, index, bookies):
    """Without the assertion that the record is closed."""
    if record.state is LedgerState.OPEN:
        from msgspec.structs import replace

        return replace(
            _repaired(replace(record, state=LedgerState.CLOSED), index, bookies), state=record.state
        )
    return _repaired(record, index, bookies)


MUTATIONS: dict[str, tuple[Check, list[tuple[object, str, object]]]] = {
    "the record changes though nothing was copied": (
        names_only_holders,
        [(repair_copy.Copier, "_write", _no_write)],
    ),
    "a time-out is a loss": (waits, [(View, "judge", _impatient)]),
    "open ledgers are repaired, too": (
        leaves_open_ledgers,
        [(repair_core, "plan", _open_too), (states, "repaired", _repaired_open)],
    ),
    "only the first block is copied": (
        copies_all,
        [(repair_copy.Copier, "_read", _no_copy_behind_the_first)],
    ),
    "targets are not fenced": (copies_are_fenced, [(repair_copy.Copier, "_fence", _no_write)]),
    "blocks are copied unverified": (believes_no_damage, [(repair_copy, "valid_run", _believing)]),
    "absent copies count as good, and nobody looks what they have": (
        drains_only_what_is_left,
        [
            (repair_core, "_must_stay", _absent_is_good),
            (repair_copy.Copier, "_check_what_stays", _no_write),
        ],
    ),
    "who goes leaves holes behind": (
        fills_before_it_leaves,
        [(repair_copy.Copier, "_check_what_stays", _no_write)],
    ),
}


@pytest.mark.parametrize(
    "check", dict.fromkeys(check for check, _ in MUTATIONS.values()), ids=lambda check: check.__name__
)
async def test_the_checks_hold(check: Check) -> None:
    cluster = Cluster(3)
    await cluster.know()
    await check(cluster)


@pytest.mark.parametrize("mutation", MUTATIONS)
async def test_a_mutation_is_caught(mutation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check, patches = MUTATIONS[mutation]
    for owner, name, replacement in patches:
        monkeypatch.setattr(owner, name, replacement)
    cluster = Cluster(3)
    await cluster.know()
    with pytest.raises(Exception):  # noqa: B017
        await check(cluster)
