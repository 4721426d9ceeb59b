"""The cookies: who moves in where, and who is refused."""

from __future__ import annotations

from random import Random

import pytest

from quire.bookie.identity import COOKIE, Identity, open_identity
from quire.runtime.errors import ConfigurationError, DiskError
from quire.testing.disk import Power, SimulatedDisk
from quire.wire.bookie import BookieId


class Machine:
    def __init__(self) -> None:
        self.power = Power()
        self.journal = SimulatedDisk(1, "the-journal", power=self.power)
        self.entries = SimulatedDisk(2, "the-entries", power=self.power)

    def open(self) -> Identity:
        return open_identity(self.journal, self.entries, Random(3))

    def format(self) -> BookieId:
        identity = self.open()
        assert identity.is_new
        identity.finish()
        return identity.bookie_id


@pytest.fixture
def machine() -> Machine:
    return Machine()


def test_a_new_bookie_stays_who_it_is(machine: Machine) -> None:
    bookie = machine.format()
    assert bookie.incarnation == 1
    identity = machine.open()
    assert identity.bookie_id == bookie
    assert not identity.is_new and not identity.is_suspect


@pytest.mark.parametrize(("gone", "stays"), [("journal", "entries"), ("entries", "journal")])
def test_a_missing_cookie_on_one_side_is_refused_by_name(machine: Machine, gone: str, stays: str) -> None:
    bookie = machine.format()
    before = getattr(machine, stays).read_bytes(COOKIE)
    getattr(machine, gone).remove(COOKIE)
    with pytest.raises(
        ConfigurationError, match=f"the-{gone} has no {COOKIE}, but the-{stays} .*{bookie.uuid}"
    ):
        machine.open()
    assert getattr(machine, stays).read_bytes(COOKIE) == before
    assert not getattr(machine, gone).exists(COOKIE)


def test_two_bookies_disks_do_not_mix(machine: Machine) -> None:
    machine.format()
    other = Machine()
    other_identity = open_identity(other.journal, other.entries, Random(99))
    other_identity.finish()
    machine.journal = other.journal
    with pytest.raises(ConfigurationError, match=r"belongs to bookie .* but the-entries to bookie"):
        machine.open()


def test_swapped_directories_are_refused(machine: Machine) -> None:
    machine.format()
    machine.journal, machine.entries = machine.entries, machine.journal
    with pytest.raises(ConfigurationError, match="swap the two"):
        machine.open()


def test_a_strangers_directory_is_not_moved_into(machine: Machine) -> None:
    machine.journal.open("holiday.jpg", create=True)
    with pytest.raises(ConfigurationError, match=r"holiday\.jpg"):
        machine.open()
    assert not machine.entries.exists(COOKIE)


def test_a_cookie_that_cannot_be_read_is_refused(machine: Machine) -> None:
    machine.format()
    machine.entries.write_bytes(COOKIE, b"{}")
    with pytest.raises(ConfigurationError, match=f"the-entries/{COOKIE} is not a bookie's cookie"):
        machine.open()


@pytest.mark.parametrize("cut_after", range(12))
def test_a_kill_during_the_first_start_does_no_harm(machine: Machine, cut_after: int) -> None:
    machine.power.fail_after(cut_after)
    try:
        machine.format()
    except DiskError:
        pass
    machine.journal.crash()
    machine.entries.crash()
    identity = machine.open()
    identity.finish()
    again = machine.open()
    assert again.bookie_id == identity.bookie_id
    assert again.bookie_id.incarnation == 1 and not again.is_suspect


def test_the_incarnation_is_raised_on_both_sides(machine: Machine) -> None:
    bookie = machine.format()
    machine.open().raise_incarnation(blocks_lost=False)
    machine.open().raise_incarnation(blocks_lost=True)
    identity = machine.open()
    assert identity.bookie_id == BookieId(bookie.uuid, 3)
    assert identity.lossy_before == 3


def test_lost_fences_are_no_lost_blocks(machine: Machine) -> None:
    machine.format()
    machine.open().raise_incarnation(blocks_lost=False)
    identity = machine.open()
    assert identity.lossy_before == 0 and not identity.is_suspect


def test_an_older_copy_of_one_side_is_a_loss(machine: Machine) -> None:
    machine.format()
    older = machine.journal.read_bytes(COOKIE)
    machine.open().raise_incarnation(blocks_lost=True)
    machine.journal.write_bytes(COOKIE, older)
    identity = machine.open()
    assert identity.is_suspect and identity.bookie_id.incarnation == 2


@pytest.mark.parametrize("older", ["journal", "entries"])
def test_a_copy_of_one_side_from_before_the_first_run_is_a_loss(machine: Machine, older: str) -> None:
    machine.format()
    before = getattr(machine, older).read_bytes(COOKIE)
    machine.open().begin_run(Random(1))
    getattr(machine, older).write_bytes(COOKIE, before)
    assert machine.open().is_suspect


@pytest.mark.parametrize("older", ["journal", "entries"])
def test_a_copy_of_one_side_from_before_the_last_start_is_a_loss(machine: Machine, older: str) -> None:
    machine.format()
    machine.open().begin_run(Random(1))
    before = getattr(machine, older).read_bytes(COOKIE)
    machine.open().begin_run(Random(2))
    assert not machine.open().is_suspect
    getattr(machine, older).write_bytes(COOKIE, before)
    identity = machine.open()
    assert identity.is_suspect
    identity.raise_incarnation(blocks_lost=True)
    identity.trust(True)
    identity.begin_run(Random(3))
    assert not machine.open().is_suspect


def test_what_is_suspect_stays_so_until_the_ledgers_know_of_it(machine: Machine) -> None:
    identity = machine.open()
    unfinished = machine.journal.read_bytes(COOKIE)
    identity.finish()
    machine.open().begin_run(Random(1))
    machine.journal.write_bytes(COOKIE, unfinished)
    assert machine.open().is_suspect
    identity = machine.open()
    assert identity.is_suspect
    identity.raise_incarnation(blocks_lost=True)
    identity = machine.open()
    assert identity.is_suspect
    identity.trust(True)
    identity.begin_run(Random(2))
    assert not machine.open().is_suspect


@pytest.mark.parametrize("cut_after", range(20))
def test_a_start_that_is_interrupted_anywhere_is_no_loss(machine: Machine, cut_after: int) -> None:
    machine.format()
    machine.open().begin_run(Random(1))
    machine.power.fail_after(cut_after)
    try:
        machine.open().begin_run(Random(2))
    except DiskError:
        pass
    machine.journal.crash()
    machine.entries.crash()
    machine.power.restore()
    identity = machine.open()
    assert not identity.is_suspect
    identity.begin_run(Random(3))
    assert not machine.open().is_suspect
