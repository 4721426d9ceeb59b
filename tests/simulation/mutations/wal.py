"""Mutations of write-ahead logs (WALs) on object storage: the writer, closing, flushing and deletion."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch
from uuid import UUID

from msgspec.structs import replace

from quire.identity.place import Place
from quire.metadata.records import ClusterRecord, WalState, encode
from quire.metadata.store import ANY_VERSION
from quire.runtime.errors import CorruptionError, NotFound, QuireError
from quire.wal import foreign, own_record, scrub, view, wal_object
from quire.wal.closing import _Closing
from quire.wal.closing_core import ClosingCore
from quire.wal.collector import Collector
from quire.wal.keeper import Keeper
from quire.wal.object_journal import ObjectJournal
from quire.wal.own_record import OwnRecord
from quire.wal.patience import UNANSWERED
from quire.wal.run_index import RunIndex, RunTable
from quire.wal.set_objects import Change, SetObjects
from quire.wal.wal_core import Group, WalCore
from quire.wal.wal_object import HEADER_BYTES, Header, SetEntry, data_name

from .registry import mutation


# -- the writer --------------------------------------------------------------------------------------------
@mutation("W2", "wal")
def data_objects_are_put_whatever_lies_there() -> Iterator[None]:
    """Upload data objects without a condition, so that an upload replaces a fence."""

    def attempt(self: Any, name: str, parts: Any) -> asyncio.Task[QuireError | None]:
        async def put() -> QuireError | None:
            try:
                await self._objects.put_over(name, parts)
            except QuireError as error:
                return error
            return None

        return self._tasks.start(put(), f"put {name}")  # type: ignore[no-any-return]

    with patch.object(ObjectJournal, "_attempt", attempt):
        yield


@mutation("W4", "wal")
def an_object_is_durable_before_those_before_it() -> Iterator[None]:
    """Acknowledge an object's blocks when it is stored, although earlier uploads are still in flight."""
    uploaded = WalCore.uploaded

    def tell_at_once(self: WalCore, seq: int) -> None:
        if self.failure is None:
            group = self._under_way[seq - self.durable_seq - 1]
            waiters, group.waiters = group.waiters, []
            self._effects.durable([Group(waiters=waiters)])
        uploaded(self, seq)

    with patch.object(WalCore, "uploaded", tell_at_once):
        yield


@mutation("W12", "wal")
def a_name_that_is_taken_counts_as_an_answer_that_was_lost() -> Iterator[None]:
    """Treat an existing object as the writer's own upload, without reading it."""

    def taken(self: WalCore, seq: int, ours: Header, found: Header) -> None:
        self.uploaded(seq)

    with patch.object(WalCore, "taken", taken):
        yield


@mutation("W3", "wal")
def numbers_are_taken_when_uploads_begin() -> Iterator[None]:
    """Assign object numbers when uploads begin, counted from the uploads in flight."""

    def close(self: WalCore) -> None:
        assert self._open is not None
        self._line.append(self._open)
        self._open = None

    def begin_uploads(self: WalCore) -> None:
        while len(self._under_way) < self._uploads_max:
            if not self._line and self._open is not None and self._is_due:
                self._close()
            if not self._line:
                return
            group = self._line.popleft()
            group.seq = self.durable_seq + 1 + sum(not each.is_durable for each in self._under_way)
            self._next_seq = group.seq + 1
            self._under_way.append(group)
            self._effects.upload(group, self.durable_seq)

    with patch.object(WalCore, "_close", close), patch.object(WalCore, "_begin_uploads", begin_uploads):
        yield


@mutation("W4, W13", "wal")
def a_hedged_upload_counts_as_done() -> Iterator[None]:
    """Treat an unanswered upload as successful if a second, hedged attempt was made."""
    put = ObjectJournal._put

    async def put_surely(self: Any, name: str, parts: Any) -> None:
        before = self.uploads_hedged
        try:
            await put(self, name, parts)
        except UNANSWERED:
            if self.uploads_hedged == before:
                raise

    with patch.object(ObjectJournal, "_put", put_surely):
        yield


@mutation("W1", "wal")
def a_broker_that_is_started_again_goes_on_with_its_former_log() -> Iterator[None]:
    """Name a WAL after its broker, so that a restarted broker continues its former WAL."""
    begin = OwnRecord.begin.__func__  # type: ignore[attr-defined]

    async def begin_again(cls: Any, context: Any) -> OwnRecord:
        name = UUID(bytes=context.broker.encode().ljust(16)[:16])
        try:
            return await OwnRecord.read(context.metadata, str(name))
        except NotFound:
            with patch.object(own_record, "uuid4", lambda: name):
                return await begin(cls, context)  # type: ignore[no-any-return]

    with patch.object(OwnRecord, "begin", classmethod(begin_again)):
        yield


# -- closing -----------------------------------------------------------------------------------------------
async def believe_the_end(self: Any, record: Any) -> bool:
    """Replace `_is_end`, which would otherwise make closes with the mutations below fail and be retried."""
    return True


@mutation("W2, W7", "wal")
def a_fence_is_put_whatever_lies_there() -> Iterator[None]:
    """Put a fence without a condition, so that it replaces an object that was uploaded meanwhile."""

    def put_fence(self: Any, seq: int) -> None:
        fence = wal_object.encode_fence(self._wal, seq, self._clock.now_ms(), self._closer)

        async def put() -> None:
            while True:
                try:
                    await self._objects.put_over(data_name(self._wal, seq), (fence,))
                except UNANSWERED:
                    continue
                self.core.fenced()
                return

        self._start(put(), "put a fence")

    with patch.object(_Closing, "put_fence", put_fence):
        yield


@mutation("W9", "wal")
def a_fence_goes_when_the_log_is_closed() -> Iterator[None]:
    """Delete a WAL's fence with its other objects when the WAL is closed."""
    closed = _Closing.closed

    def closed_and_tidy(self: Any, record: Any) -> None:
        closed(self, record)
        name = data_name(record.uuid, record.end_seq)
        self.unfenced = asyncio.ensure_future(self._objects.delete(name))

    with patch.object(_Closing, "closed", closed_and_tidy):
        yield


@mutation("W7", "wal")
def a_hole_is_the_end_without_a_fence() -> Iterator[None]:
    """Close a WAL at a hole without putting a fence, so that an upload in flight may still fill the hole."""

    def put_fence(self: Any, seq: int) -> None:
        asyncio.get_running_loop().call_soon(self.core.fenced)

    with patch.object(_Closing, "put_fence", put_fence), patch.object(_Closing, "_is_end", believe_the_end):
        yield


@mutation("W7", "wal")
def a_fence_is_put_one_beyond_the_hole() -> Iterator[None]:
    """Put the fence one number after the hole, so that an upload in flight may still fill the hole."""
    put_fence = _Closing.put_fence

    def put_beyond(self: Any, seq: int) -> None:
        put_fence(self, seq + 1)

    with patch.object(_Closing, "put_fence", put_beyond), patch.object(_Closing, "_is_end", believe_the_end):
        yield


@mutation("W6", "wal")
def a_log_is_probed_before_it_is_claimed() -> Iterator[None]:
    """Probe a WAL's objects before claiming it, so that its writer may still trim objects."""
    with patch.object(ClosingCore, "_claim", ClosingCore._probe):
        yield


@mutation("W13", "wal")
def silence_of_the_store_counts_as_an_answer() -> Iterator[None]:
    """Treat an object that cannot be read in time as a hole, and a fence as stored unless the store denies it."""

    async def header(self: Any, seq: int) -> Header:
        name = data_name(self._wal, seq)
        try:
            content = await self._objects.get_range(name, 0, HEADER_BYTES)
        except UNANSWERED:
            raise NotFound(name) from None
        return wal_object.read_header(content, name)

    def put_fence(self: Any, seq: int) -> None:
        name = data_name(self._wal, seq)
        fence = wal_object.encode_fence(self._wal, seq, self._clock.now_ms(), self._closer)

        async def put() -> None:
            try:
                await self._objects.put_whole(name, (fence,))
            except UNANSWERED:
                pass
            except QuireError:
                self.core.fence_refused()
                return
            self.core.fenced()

        self._start(put(), "put a fence")

    with patch.object(_Closing, "_header", header), patch.object(_Closing, "put_fence", put_fence):
        yield


@mutation("W8", "wal")
def a_rotten_header_is_the_end() -> Iterator[None]:
    """Treat an object with a damaged header as the end of the WAL."""
    judge = ClosingCore._judge

    def judge_leniently(self: Any) -> None:
        while isinstance(self._found.get(self._next_seq), Header):
            if self._found[self._next_seq].kind is wal_object.Kind.FENCE:
                break
            self._pass()
        if isinstance(self._found.get(self._next_seq), CorruptionError):
            self.fenced()
        else:
            judge(self)

    with (
        patch.object(ClosingCore, "_judge", judge_leniently),
        patch.object(_Closing, "_is_end", believe_the_end),
    ):
        yield


@mutation("W8", "wal")
def a_hole_is_judged_by_a_window_alone() -> Iterator[None]:
    """Judge a hole without listing the objects after it."""
    listed = ClosingCore.listed

    with patch.object(ClosingCore, "listed", lambda self, *_: listed(self, -1)):
        yield


# -- flushing and deletion -----------------------------------------------------------------------------------
@mutation("W10", "wal")
def objects_go_before_the_record_says_that_they_may() -> Iterator[None]:
    """Delete data objects in a flush before the record with the new trim point is written."""
    change = Keeper.change

    async def delete_first(self: Any, sets: Any, trim_seq: int, *rest: Any) -> None:
        uuid = self._record.record.uuid
        self._trash.add(data_name(uuid, seq) for seq in range(self.trim_seq, trim_seq))
        await change(self, sets, trim_seq, *rest)

    with patch.object(Keeper, "change", delete_first):
        yield


@mutation("W6, W10", "wal")
def a_keeper_writes_the_record_whatever_its_version() -> Iterator[None]:
    """Write the WAL's record unconditionally, even if another broker closes the WAL."""

    async def change(self: Any, **changes: Any) -> None:
        wanted = replace(self.record, **changes)
        while True:
            try:
                self._version = await self._store.put(self._path, encode(wanted), ANY_VERSION)
            except NotFound:
                return
            except QuireError:
                await asyncio.sleep(0.1)
                continue
            self.record = wanted
            return

    with patch.object(OwnRecord, "change", change):
        yield


@mutation("W10", "wal")
def a_set_counts_before_it_is_read_back() -> Iterator[None]:
    """Record a set before its upload is complete and verified."""

    async def write_set(
        self: Any, runs: Sequence[Any], first_seq: int, last_seq: int, clock_ms: int
    ) -> SetEntry:
        name = wal_object.set_name(self._wal, self._next_number(), self._unique())
        parts = wal_object.encode_set(self._wal, first_seq, last_seq, clock_ms, runs)
        self.upload = asyncio.ensure_future(self._store.put_whole(name, parts))
        content = b"".join(parts)
        crc = wal_object.footer_crc(content)
        rows = wal_object.read_set_tail(
            content[-wal_object.set_tail_bytes(content, name) :], len(content), crc, name
        )
        self._index.add(RunTable(name, rows, wal_object.SET_ROW))
        return SetEntry(name, len(content), crc, first_seq, last_seq)

    with patch.object(SetObjects, "write_set", write_set):
        yield


@mutation("W16", "wal")
def a_catalogue_has_the_newest_tombstones_only() -> Iterator[None]:
    """Write a catalogue with only the newest tombstones, without those of the previous catalogue."""
    write = SetObjects.write_catalogue

    async def write_newest(self: Any, more: Any, deleted: Mapping[int, int], elsewhere: Any) -> Change:
        before = self.catalogue
        self.catalogue = wal_object.Catalogue(before.sets, {})
        try:
            return await write(self, more, deleted, elsewhere)
        finally:
            self.catalogue = before

    with patch.object(SetObjects, "write_catalogue", write_newest):
        yield


@mutation("W16", "wal")
def a_set_is_garbage_when_nobody_writes_its_ledgers() -> Iterator[None]:
    """Delete a set if none of its ledgers is in memory, even without tombstones for them."""
    write = SetObjects.write_catalogue

    async def write_living(
        self: Any, more: Any, deleted: Mapping[int, int], elsewhere: Collection[int]
    ) -> Change:
        without_life: Callable[..., set[str]] = self._index.without_life

        def guess(dead: Any) -> set[str]:
            return without_life({*dead, *(each for each in self._index.ledgers() if each not in elsewhere)})

        with patch.object(self._index, "without_life", guess):
            return await write(self, more, deleted, elsewhere)

    with patch.object(SetObjects, "write_catalogue", write_living):
        yield


# -- identity of stores, exceptions, closing -----------------------------------------------------------------
@mutation("W19", "wal")
def stores_are_trusted_without_a_proof() -> Iterator[None]:
    """Use an empty directory under a missing mount as the WAL's store, without verifying its marker."""

    async def trust(self: Any) -> ClusterRecord:
        return ClusterRecord(uuid=self.cluster)

    with patch.object(Place, "confirm", trust):
        yield


@mutation("W20", "wal")
def a_missing_object_is_damage_by_an_old_view_of_its_record() -> Iterator[None]:
    """Report damage if an object of an outdated record is missing, although a set contains its blocks by now."""

    async def believe(_place: Any, error: QuireError, _uuid: str, _version: int) -> QuireError:
        return CorruptionError(f"missing: {error}") if isinstance(error, NotFound) else error

    with patch.object(view, "prove_missing", believe), patch.object(foreign, "prove_missing", believe):
        yield


@mutation("W21", "wal")
def an_unexpected_exception_in_an_upload_is_ignored() -> Iterator[None]:
    """Ignore an unexpected exception of an upload's task."""

    @contextmanager
    def ignore(self: Any) -> Iterator[None]:
        try:
            yield
        except QuireError as error:
            self._core.end(error)
        except Exception:
            pass

    with patch.object(ObjectJournal, "_ending_by_exceptions", ignore):
        yield


@mutation("W22", "wal")
def a_collector_closes_each_log_but_its_own() -> Iterator[None]:
    """Collect all other brokers' WALs, without checking whether their writers are registered."""

    async def nobody(_self: Any, _records: Any) -> Callable[[Any], bool]:
        return lambda record: False

    with patch.object(Collector, "_living", nobody):
        yield


@mutation("W8", "wal")
def a_header_says_that_all_before_it_is_durable() -> Iterator[None]:
    """Record in an object's header that all earlier objects are durable, although some are in flight."""
    upload = ObjectJournal.upload

    with patch.object(ObjectJournal, "upload", lambda self, group, _: upload(self, group, group.seq - 1)):
        yield


@mutation("W16", "wal")
def a_scrub_deletes_sets_of_an_open_log() -> Iterator[None]:
    """Delete the sets of an open WAL that its record does not name yet."""
    with_record = scrub._with_record

    async def of_all(context: Any, own: Any, old: Any, *, is_dry: bool) -> Any:
        names, why = await with_record(context, own, old, is_dry=is_dry)
        if own.record.state is not WalState.CLOSED:
            sets = SetObjects(context.objects, own.record.uuid, RunIndex())
            await sets.load(own.record.catalogue, own.record.catalogue_crc)
            unnamed = {each.name for each in old if wal_object.seq_of(each.name) is None} - sets.names
            names = {*names, *unnamed}
        return names, why

    with patch.object(scrub, "_with_record", of_all):
        yield


@mutation("W7", "wal")
def an_end_is_recorded_without_another_look_at_its_fence() -> Iterator[None]:
    """Record the end of a WAL without reading its fence again, which may have been written under a missing mount."""
    with patch.object(_Closing, "_is_end", believe_the_end):
        yield


@mutation("W8", "wal")
def an_end_is_recorded_without_another_look_for_witnesses() -> Iterator[None]:
    """Record the end of a WAL without looking for later objects again, which a missing mount may have hidden."""

    async def has_none(self: Any, record: Any) -> bool:
        return False

    with patch.object(_Closing, "_has_witness", has_none):
        yield


@mutation("outdated", "wal")
def an_outdated_record_is_believed() -> Iterator[None]:
    """Close a WAL by an outdated record, ignoring newer sets and catalogues, so that trimmed objects count as lost."""
    listed = ClosingCore.listed

    async def believe(self: Any, record: Any, names: Any) -> None:
        pass

    with (
        patch.object(_Closing, "_check_catalogue", believe),
        patch.object(ClosingCore, "listed", lambda self, last_seq, _covered: listed(self, last_seq)),
    ):
        yield
