"""The world around the cores: everything that can be the case, and everything that can happen next.

A `State` is a value. `World.moves` yields what can happen in it, each with the state after. Rules of the ledger that
are kept by the shells, the bookies and the metadata store are lines of this file, marked with their number; those that
are kept by the cores are kept by the cores themselves.

    the writer      adds a block | hears an answer | changes the ensemble | hears of its put | closes
    a bookie        gets a block | gets a recovery's read | gets a recovery's block | loses its disk
    the metadata    a put by version arrives
    a recovery      begins | hears an answer (with the bookie's step) | changes its ensemble | closes
    the network     a time-out: the sender gives a message up, which may arrive nevertheless
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, NamedTuple

from msgspec.structs import replace

from quire.ledger import states
from quire.ledger.recovery_core import BEYOND
from quire.ledger.writer_core import State as WriterState
from quire.metadata.records import LedgerRecord, LedgerState
from quire.wire.bookie import Status
from tests.model import machines
from tests.model.machines import BOOKIES, LEDGER, Machines, one_entry

WRITE_QUORUM = 3
ACK_QUORUM = 2
GONE = -1
"""In place of a core that will never do anything again."""


@dataclass(frozen=True)
class Bounds:
    """How much may happen. Everything within is searched."""

    bookies: int = 3
    entries: int = 1
    recoveries: int = 1
    timeouts: int = 0
    """Messages of writer or recoveries that are given up."""
    wipes: int = 0
    """Bookies that come back at their address with an empty disk; at most Qa - 1 keep what is confirmed."""
    restarts: int = 0
    """Bookies that stop and start again. Without an omission that changes nothing."""
    prompt: bool = False
    """The writer hears an ack in the step in which it is given. An ack that takes longer is then only one that is lost:
    a time-out, and the block arrives late."""

    def __str__(self) -> str:
        words = [f"{name}={value}" for name, value in vars(self).items() if value]
        return " ".join(words)


class Stage(Enum):
    """Where a writer's message is."""

    REQUEST = auto()
    LATE = auto()
    """On its way to the bookie, given up by the writer."""
    OK = auto()
    WRONG_BOOKIE = auto()

    def __hash__(self) -> int:  # the default goes through the name
        return id(self)


ANSWERS = {Stage.OK: Status.OK, Stage.WRONG_BOOKIE: Status.WRONG_BOOKIE}


class Message(NamedTuple):
    entry: int
    bookie: int
    bit: int
    stage: Stage


class Put(NamedTuple):
    """A record on its way to the metadata store, or the store's answer on its way back."""

    version: int
    record: LedgerRecord
    is_change: bool
    done: bool | None = None
    """None: not arrived yet; True: written; False: another version was there."""


class Writer(NamedTuple):
    core: int
    version: int
    armed: bool = False
    put: Put | None = None


class Phase(Enum):
    IDLE = auto()
    RUNNING = auto()
    CLOSING = auto()
    STOPPED = auto()
    DONE = auto()

    def __hash__(self) -> int:
        return id(self)


class Recovery(NamedTuple):
    phase: Phase = Phase.IDLE
    version: int = 0
    record: LedgerRecord | None = None
    core: int = GONE
    rewriter: int = GONE
    armed: bool = False
    reads: frozenset[tuple[int, int]] = frozenset()
    """(bookie, entry)"""
    writes: frozenset[tuple[int, int, int]] = frozenset()
    """(entry, bookie, bit)"""


DONE = Recovery(Phase.DONE)


class State(NamedTuple):
    version: int
    record: LedgerRecord
    writer: Writer
    confirmed: int
    """The last entry that anybody was told is confirmed."""
    lacs: tuple[int, ...]
    """Per block that was added: the writer's LAC when it was cut."""
    messages: frozenset[Message]
    stored: tuple[int, ...]
    """Per bookie: a bit for each entry that it has."""
    fenced: int
    """A bit for each bookie."""
    wiped: int
    touched: int
    """How many of the first three bookies anything has happened to: the others are alike."""
    recoveries: tuple[Recovery, ...]
    timeouts: int
    wipes: int
    restarts: int
    broken: str = ""
    """What a core found wrong by itself."""


Label = tuple[Any, ...]
Move = tuple[Label, State]


class World:
    """The moves under a set of rules; `omitted` names those that are left out (see `omissions`)."""

    def __init__(self, bounds: Bounds, omitted: frozenset[str] = frozenset()) -> None:
        self.bounds = bounds
        self.omitted = omitted
        self.machines = Machines()

    def first(self) -> State:
        bounds = self.bounds
        record = states.opened(LEDGER, WRITE_QUORUM, ACK_QUORUM, BOOKIES[:WRITE_QUORUM], "model", 0)
        return State(
            version=0,
            record=record,
            writer=Writer(self.machines.writer(record.fragments, ACK_QUORUM), 0),
            confirmed=-1,
            lacs=(),
            messages=frozenset(),
            stored=(0,) * bounds.bookies,
            fenced=0,
            wiped=0,
            touched=0,
            recoveries=(Recovery(),) * bounds.recoveries,
            timeouts=bounds.timeouts,
            wipes=bounds.wipes,
            restarts=bounds.restarts,
        )

    def moves(self, state: State) -> Iterator[Move]:
        """Everything that can happen next."""
        for label, after in self._moves(state):
            yield label, self._without_idle_parts(after)

    def _without_idle_parts(self, state: State) -> State:
        """`state` without what can have no effect any more; see the top of the package."""
        if state.record.state is LedgerState.CLOSED and "closing by version" not in self.omitted:
            done = tuple(each if each.phase is Phase.STOPPED else DONE for each in state.recoveries)
            state = state._replace(recoveries=done)
            if state.writer.core == GONE:
                return state._replace(messages=frozenset(), writer=Writer(GONE, 0))
        idle = [m for m in state.messages if m.stage is Stage.LATE and self._is_idle(state, m)]
        return state._replace(messages=state.messages.difference(idle)) if idle else state

    def _is_idle(self, state: State, late: Message) -> bool:
        """The bookie has the block, or will refuse it."""
        refuses = state.fenced >> late.bookie & 1 and not state.restarts
        return bool(refuses or state.stored[late.bookie] >> late.entry & 1)

    def _moves(self, state: State) -> Iterator[Move]:
        if state.broken:
            return
        if state.writer.put is not None:
            yield self._put_move(state, state.writer, state.writer.put)
        if state.writer.core != GONE:
            yield from self._writer_moves(state)
        for message in state.messages:
            yield from self._message_moves(state, message)
        for index, recovery in enumerate(state.recoveries):
            yield from self._recovery_moves(state, index, recovery)
        if state.wipes or state.restarts:
            yield from self._disk_moves(state)

    # -- the writer ------------------------------------------------------------------------------------
    def _writer_moves(self, state: State) -> Iterator[Move]:
        writer, core = state.writer, self.machines.specimen(state.writer.core)
        entry = len(state.lacs)
        if entry < self.bounds.entries:
            lac = core.last_confirmed
            added = state._replace(lacs=(*state.lacs, lac))
            yield (
                ("add", entry, lac),
                self._step_writer(added, machines.add, entry, one_entry(entry, lac)),
            )
        if writer.armed:
            unarmed = state._replace(writer=writer._replace(armed=False))
            replacements = self._replacements(core, WRITE_QUORUM)
            yield (
                ("change", replacements),
                self._step_writer(unarmed, machines.begin_change, replacements),
            )
        if entry and core.state is WriterState.STEADY and not core.blocks_pending:
            known = replace(self._as_writer_knows(state), fragments=core.fragments)
            end = states.closed(known, core.fragments, core.last_confirmed, 0, 0)
            closing = Writer(GONE, 0, put=Put(writer.version, end, is_change=False))
            yield ("writer closes", end.last_entry), self._leave(state, closing)

    def _replacements(self, core: Any, wanted: int) -> tuple[int, ...]:
        """Bookies outside of the ensemble; those that failed in it are not asked again. Too few: it narrows (4)."""
        taken = {machines.NUMBER[bookie] for bookie in (*core.live_bookies(), *core.failed_bookies())}
        spare = [number for number in range(self.bounds.bookies) if number not in taken]
        return tuple(spare[: wanted - len(core.live_bookies())])

    def _put_move(self, state: State, writer: Writer, put: Put) -> Move:
        """A put arrives at the metadata store, or its answer at the writer (rules 3 and 15: by version)."""
        if put.done is None:
            done = put.version == state.version
            told = put._replace(done=done) if put.is_change else None
            after = state._replace(writer=writer._replace(put=told))
            if done:
                after = after._replace(version=state.version + 1, record=put.record)
            return ("put", put.record, done), after
        if not put.done:  # somebody took over
            return ("writer ends",), self._leave(state, Writer(GONE, 0))
        known = writer._replace(version=put.version + 1, put=None)
        return ("writer hears", put.record), self._step_writer(
            state._replace(writer=known), machines.change_committed
        )

    def _step_writer(self, state: State, event: machines.Event, *arguments: Any) -> State:
        number, effects = self.machines.step(state.writer.core, event, *arguments)
        writer, sent = state.writer._replace(core=number), []
        confirmed = state.confirmed
        for effect in effects:
            match effect:
                case machines.Send(entry, bookie, bit):
                    sent.append(Message(entry, bookie, bit, Stage.REQUEST))
                case machines.Confirmed(last_entry):
                    confirmed = max(confirmed, last_entry)
                case machines.ArmChange():
                    writer = writer._replace(armed=True)
                case machines.Commit(fragments):
                    changed = replace(self._as_writer_knows(state), fragments=fragments)
                    writer = writer._replace(put=Put(writer.version, changed, is_change=True))
                case machines.Failed():
                    writer = Writer(GONE, 0)
                case machines.Broken(why):
                    return state._replace(broken=why)
        messages = state.messages.union(sent) if sent else state.messages
        after = state._replace(writer=writer, messages=messages, confirmed=confirmed)
        return after if writer.core != GONE else self._leave(after, writer)

    def _leave(self, state: State, writer: Writer) -> State:
        """The writer ends: its blocks may still arrive, and nobody waits for an answer."""
        messages = [
            Message(message.entry, message.bookie, 0, Stage.LATE)
            for message in state.messages
            if message.stage is Stage.REQUEST or message.stage is Stage.LATE
        ]
        return state._replace(writer=writer, messages=frozenset(messages))

    def _as_writer_knows(self, state: State) -> LedgerRecord:
        """The record that the writer changes: open, for it knows of nobody else."""
        return replace(state.record, state=LedgerState.OPEN, last_entry=-1)

    # -- messages of the writer ------------------------------------------------------------------------
    def _message_moves(self, state: State, message: Message) -> Iterator[Move]:
        if message.stage is Stage.REQUEST or message.stage is Stage.LATE:
            if self._may_touch(state, message.bookie):
                yield self._arrival(state, message)
        else:
            heard = state._replace(messages=state.messages - {message})
            yield ("ack", *message), self._hear(heard, message, ANSWERS[message.stage])
        if state.timeouts and message.stage is not Stage.LATE and self._may_touch(state, message.bookie):
            yield from self._time_out(state, message)

    def _arrival(self, state: State, message: Message) -> Move:
        """A bookie gets a block. It never takes one past its fence (9, 10), nor for another identity (18)."""
        entry, bookie, _, stage = message
        bit, is_late = 1 << bookie, stage is Stage.LATE
        after = state._replace(messages=state.messages - {message}, touched=self._touch(state, bookie))
        if state.wiped & bit and "identity" not in self.omitted:
            status, answer = Status.WRONG_BOOKIE, Stage.WRONG_BOOKIE
        elif state.fenced & bit:
            after = after if is_late else self._hear(after, message, Status.FENCED)
            return ("block", *message, Status.FENCED), after
        else:
            status, answer = Status.OK, Stage.OK
            after = after._replace(stored=self._with_entry(state, bookie, entry))
        if not is_late and self.bounds.prompt:
            after = self._hear(after, message, status)
        elif not is_late:
            after = after._replace(messages=after.messages | {message._replace(stage=answer)})
        return ("block", *message, status), after

    def _time_out(self, state: State, message: Message) -> Iterator[Move]:
        core = self.machines.specimen(state.writer.core)
        if any(replica.bit == message.bit and replica.is_live for replica in core._ensemble.replicas):
            messages = state.messages - {message}
            if message.stage is Stage.REQUEST:
                messages |= {Message(message.entry, message.bookie, 0, Stage.LATE)}
            given_up = state._replace(
                messages=messages,
                timeouts=state.timeouts - 1,
                touched=self._touch(state, message.bookie),
            )
            yield ("time-out", *message), self._hear(given_up, message, Status.UNREACHABLE)

    def _hear(self, state: State, message: Message, status: Status) -> State:
        return self._step_writer(state, machines.answered, message.entry, message.bookie, message.bit, status)

    # -- a recovery ------------------------------------------------------------------------------------
    def _recovery_moves(self, state: State, index: int, recovery: Recovery) -> Iterator[Move]:
        if recovery.phase is Phase.IDLE:
            if index == 0 or state.recoveries[index - 1].phase is not Phase.IDLE:
                yield self._begin(state, index)
        elif recovery.phase is Phase.CLOSING:
            yield self._close(state, index, recovery)
        elif recovery.phase is Phase.RUNNING:
            for read in recovery.reads:
                yield from self._read_moves(state, index, recovery, read)
            for write in recovery.writes:
                yield from self._rewrite_moves(state, index, recovery, write)
            if recovery.armed:
                core = self.machines.specimen(recovery.rewriter)
                replacements = self._replacements(core, WRITE_QUORUM)
                unarmed = recovery._replace(armed=False)
                yield (
                    ("recovery changes", index, replacements),
                    self._rewrite(state, index, unarmed, machines.begin_change, replacements),
                )

    def _begin(self, state: State, index: int) -> Move:
        """OPEN -> IN_RECOVERY by version, then look at the record (8)."""
        if state.record.state is LedgerState.CLOSED:
            return ("finds it closed", index), self._with(state, index, DONE)
        if state.record.state is LedgerState.OPEN:
            state = state._replace(version=state.version + 1, record=states.in_recovery(state.record))
        core = self.machines.recovery(state.record)
        recovery = Recovery(Phase.RUNNING, state.version, state.record, core)
        return ("takes over", index), self._recover(state, index, recovery, machines.start)

    def _read_moves(
        self, state: State, index: int, recovery: Recovery, read: tuple[int, int]
    ) -> Iterator[Move]:
        bookie, entry = read
        if not self._may_touch(state, bookie):
            return
        asked = recovery._replace(reads=recovery.reads - {read})
        touched = state._replace(touched=self._touch(state, bookie))
        after, status, lac, blocks = self._serve(touched, bookie, entry)
        yield (
            ("read", index, bookie, entry, status, lac),
            self._recover(after, index, asked, machines.read_answered, bookie, entry, status, lac, blocks),
        )
        if state.timeouts:
            error = Status.NO_SUCH_ENTRY if "errors" in self.omitted else Status.UNREACHABLE  # 12, 19
            given_up = touched._replace(timeouts=state.timeouts - 1)
            yield (
                ("no answer", index, bookie, entry),
                self._recover(given_up, index, asked, machines.read_answered, bookie, entry, error, -1, ()),
            )

    def _serve(self, state: State, bookie: int, entry: int) -> tuple[State, Status, int, tuple[bytes, ...]]:
        """A bookie answers a recovery's read, having fenced the ledger (9), from `entry` on, to the first gap (25)."""
        bit, stored = 1 << bookie, state.stored[bookie]
        if state.wiped & bit and "identity" not in self.omitted:
            return state, Status.WRONG_BOOKIE, -1, ()
        if "fences" not in self.omitted and (entry == BEYOND or "fencing reads" not in self.omitted):
            state = state._replace(fenced=state.fenced | bit)
        lac = max((lac for e, lac in enumerate(state.lacs) if stored >> e & 1), default=-1)
        blocks = []
        while entry != BEYOND and stored >> entry & 1:
            blocks.append(one_entry(entry, state.lacs[entry]))
            entry += 1
        return state, Status.OK if blocks else Status.NO_SUCH_ENTRY, lac, tuple(blocks)

    def _rewrite_moves(
        self, state: State, index: int, recovery: Recovery, write: tuple[int, int, int]
    ) -> Iterator[Move]:
        """A recovery's block passes the fence (13)."""
        entry, bookie, bit = write
        if not self._may_touch(state, bookie):
            return
        sent = recovery._replace(writes=recovery.writes - {write})
        touched = state._replace(touched=self._touch(state, bookie))
        if state.wiped >> bookie & 1 and "identity" not in self.omitted:
            after, status = touched, Status.WRONG_BOOKIE
        else:
            after, status = touched._replace(stored=self._with_entry(state, bookie, entry)), Status.OK
        yield (
            ("writes again", index, entry, bookie, status),
            self._rewrite(after, index, sent, machines.answered, entry, bookie, bit, status),
        )
        if state.timeouts:
            given_up = touched._replace(timeouts=state.timeouts - 1)
            yield (
                ("cannot write again", index, entry, bookie),
                self._rewrite(
                    given_up, index, sent, machines.answered, entry, bookie, bit, Status.UNREACHABLE
                ),
            )

    def _recover(
        self, state: State, index: int, recovery: Recovery, event: machines.Event, *arguments: Any
    ) -> State:
        """A step of the recovery's core, and its effects."""
        number, effects = self.machines.step(recovery.core, event, *arguments)
        recovery = recovery._replace(core=number)
        reads = {(e.bookie, e.entry) for e in effects if type(e) is machines.Read}
        if reads:
            recovery = recovery._replace(reads=frozenset(reads), writes=frozenset())
        found = [effect for effect in effects if type(effect) is machines.Write]
        if found:
            return self._write_again(state, index, recovery._replace(reads=frozenset()), found)
        for effect in effects:
            match effect:
                case machines.End(last_entry):
                    return self._end(state, index, recovery, last_entry)
                case machines.Stop(error):
                    broken = (
                        "a recovery sees damage where nothing was lost" if error == "CorruptionError" else ""
                    )
                    stopped = self._with(state, index, Recovery(Phase.STOPPED))
                    return stopped._replace(broken=broken)
                case machines.Broken(why):
                    return state._replace(broken=why)
        return self._with(state, index, recovery)

    def _write_again(
        self, state: State, index: int, recovery: Recovery, found: list[machines.Write]
    ) -> State:
        if "writing again" in self.omitted:  # 13
            return self._recover(state, index, recovery, machines.written, found[-1].entry)
        if recovery.rewriter == GONE:
            assert recovery.record is not None
            rewriter = self.machines.writer(recovery.record.fragments, ACK_QUORUM, found[0].entry)
            recovery = recovery._replace(rewriter=rewriter)
        state = self._with(state, index, recovery)
        for each in found:
            recovery = state.recoveries[index]
            state = self._rewrite(state, index, recovery, machines.add, each.entry, each.found)
        return state

    def _rewrite(
        self, state: State, index: int, recovery: Recovery, event: machines.Event, *arguments: Any
    ) -> State:
        """A step of the recovery's writer, whose ensemble changes stay in memory until the close (14)."""
        number, effects = self.machines.step(recovery.rewriter, event, *arguments)
        recovery = recovery._replace(rewriter=number)
        for effect in effects:
            match effect:
                case machines.Send(entry, bookie, bit):
                    recovery = recovery._replace(writes=recovery.writes | {(entry, bookie, bit)})
                case machines.ArmChange():
                    recovery = recovery._replace(armed=True)
                case machines.Confirmed(last_entry):
                    waiting = frozenset(write for write in recovery.writes if write[0] > last_entry)
                    recovery = recovery._replace(writes=waiting)
                    return self._recover(state, index, recovery, machines.written, last_entry)
                case machines.Commit(fragments):
                    return self._commit(state, index, recovery, fragments)
                case machines.Failed():
                    return self._recover(state, index, recovery, machines.write_failed)
                case machines.Broken(why):
                    return state._replace(broken=why)
        return self._with(state, index, recovery)

    def _commit(self, state: State, index: int, recovery: Recovery, fragments: Any) -> State:
        if "unpublished ensembles" in self.omitted and recovery.version == state.version:
            state = state._replace(
                version=state.version + 1, record=replace(state.record, fragments=fragments)
            )
            recovery = recovery._replace(version=state.version, record=state.record)
        return self._rewrite(state, index, recovery, machines.change_committed)

    def _end(self, state: State, index: int, recovery: Recovery, last_entry: int) -> State:
        assert recovery.record is not None
        fragments = recovery.record.fragments
        if recovery.rewriter != GONE:
            fragments = self.machines.specimen(recovery.rewriter).fragments
        try:
            end = states.closed(recovery.record, fragments, last_entry, 0, 0)
        except AssertionError as error:
            return state._replace(broken=str(error))
        return self._with(state, index, Recovery(Phase.CLOSING, recovery.version, end))

    def _close(self, state: State, index: int, recovery: Recovery) -> Move:
        """IN_RECOVERY -> CLOSED by version; a conflict means: look again (15)."""
        assert recovery.record is not None
        if recovery.version == state.version or "closing by version" in self.omitted:
            written = state._replace(version=state.version + 1, record=recovery.record)
            label = ("closes", index, recovery.record.last_entry)
            return label, self._with(written, index, DONE)
        return ("close conflicts", index), self._with(state, index, Recovery())

    # -- disks -----------------------------------------------------------------------------------------
    def _disk_moves(self, state: State) -> Iterator[Move]:
        for bookie in range(self.bounds.bookies):
            bit = 1 << bookie
            if not self._may_touch(state, bookie) or state.wiped & bit:
                continue
            touched = state._replace(touched=self._touch(state, bookie))
            empty = self._without_entries(state, bookie)
            if state.wipes:
                yield (
                    ("wiped", bookie),
                    touched._replace(
                        stored=empty,
                        fenced=state.fenced & ~bit,
                        wiped=state.wiped | bit,
                        wipes=state.wipes - 1,
                    ),
                )
            if state.restarts:
                after = touched._replace(restarts=state.restarts - 1)
                if "durable fences" in self.omitted:  # 10
                    after = after._replace(fenced=state.fenced & ~bit)
                if "durable blocks" in self.omitted:  # 17
                    after = after._replace(stored=empty)
                yield ("restarts", bookie), after

    # -- small parts -----------------------------------------------------------------------------------
    def _with(self, state: State, index: int, recovery: Recovery) -> State:
        recoveries = state.recoveries
        return state._replace(recoveries=(*recoveries[:index], recovery, *recoveries[index + 1 :]))

    def _with_entry(self, state: State, bookie: int, entry: int) -> tuple[int, ...]:
        stored = state.stored
        return (*stored[:bookie], stored[bookie] | 1 << entry, *stored[bookie + 1 :])

    def _without_entries(self, state: State, bookie: int) -> tuple[int, ...]:
        return (*state.stored[:bookie], 0, *state.stored[bookie + 1 :])

    def _may_touch(self, state: State, bookie: int) -> bool:
        return bookie <= state.touched or bookie >= WRITE_QUORUM

    def _touch(self, state: State, bookie: int) -> int:
        return state.touched + (bookie == state.touched < WRITE_QUORUM)
