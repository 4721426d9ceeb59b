"""Bundles: the state that the topics of a part of a namespace share.

A bundle is a range of the hash space of a namespace's topics, owned by one broker. What its topics must remember
beside their messages, cursors and deduplication, lies in one state log. A log that fails cannot be written to
again: the bundle is dropped with all its topics, and the next client that asks opens both anew, from what is durable.

One that cannot be read is damage, and the error says whose: without their cursors none of its topics can be loaded.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Container, Iterator, Sequence
from typing import Final
from zlib import crc32

from quire.ledger.ledgers import Ledgers
from quire.ledger.state_log import StateLog, StateLogOwner
from quire.metadata import paths
from quire.metadata.records import NamespaceRecord, StateLogRecord, encode
from quire.metadata.store import MetadataStore, Step
from quire.runtime.clock import Clock
from quire.runtime.errors import CorruptionError, InUse, OutcomeUnknown, QuireError
from quire.runtime.tasks import promise
from quire.serving.cluster.bundle_totals import BundleTotals
from quire.serving.model.rates import Totals
from quire.serving.model.request import Done
from quire.serving.names import TopicName
from quire.serving.subscription.cursor import cursor_record
from quire.serving.subscription.cursor.cursor_store import CursorStore
from quire.serving.topic import dedup
from quire.serving.topic.dedup import DedupStore, Snapshot

CLOSE_S: Final = 5.0
"""How long closing waits for a state log that takes no writes: until it ends, no other broker can have the bundle."""

HASH_MAX: Final = "ffffffff"
"""The last bundle has it, too."""

TOPICS_NAMED_MAX: Final = 20
"""Of the topics that a damaged state log concerns; an error is a sentence, not a list of ten thousand."""

_log = logging.getLogger(__name__)


class Bundle:
    """One bundle's cursors and deduplication snapshots (a `DedupLog` for topics)."""

    log: StateLog
    """From `open` on."""

    def __init__(
        self, name: str, clock: Clock, totals: Totals, on_failed: Callable[[Bundle, QuireError], None]
    ) -> None:
        self.name = name
        self._on_failed = on_failed
        self._take: Callable[[], None] | None = None
        """How its first snapshot takes its state from the bundle that it was a part of."""
        self.cursors = CursorStore(clock, totals)
        self._dedup = DedupStore()

    async def open(self, ledgers: Ledgers) -> None:
        """Replay the state log and begin to write it."""
        self.log = await StateLog.open(ledgers, _path(self.name), self._owner(), purpose=f"state:{self.name}")
        self.cursors.attach(self.log)

    def _owner(self) -> StateLogOwner:
        return StateLogOwner(
            self._apply, self._snapshot, self._prepare, lambda error: self._on_failed(self, error)
        )

    async def divide(
        self,
        low: str,
        high: Bundle,
        given: Callable[[], None],
        steps: Callable[[], Awaitable[Sequence[Step]]],
    ) -> None:
        """Become bundle `low`, and let `high` have the state of the other topics, in one transaction with `steps`.

        `given` is called in the step in which `high` has it. Raises as `StateLog.divide`.
        """

        def take() -> None:
            self.cursors.give(high.cursors, high.has)
            self._dedup.give(high._dedup, high.has)
            given()

        high._take = take
        high.log = StateLog.of_part(self.log, _path(high.name), high._owner(), purpose=f"state:{high.name}")
        high.cursors.attach(high.log)
        await self.log.divide(_path(low), f"state:{low}", high.log, steps)
        self.name = low

    def has(self, topic: str) -> bool:
        """Whether it is one of this bundle."""
        low, _, high = self.name.rpartition("/")[2].partition("_")
        return low <= hash_of(topic) < high or hash_of(topic) == high == HASH_MAX

    def _apply(self, record: bytes) -> None:
        kind = record[:1]
        if kind == cursor_record.TAG:
            self.cursors.apply(record)
        elif kind == dedup.KIND:
            self._dedup.apply(record)
        else:
            raise CorruptionError(
                f"the state log of bundle {self.name} has a record of unknown kind {kind!r}"
            )

    async def _prepare(self) -> None:
        """The log of a bundle that was split has the state of all topics until its next snapshot."""
        self.cursors.keep(self.has)
        self._dedup.keep(self.has)
        await self.cursors.prepare()
        for _ in self._dedup.prepare():
            await asyncio.sleep(0)

    def _snapshot(self) -> Iterator[bytes]:
        take, self._take = self._take, None
        if take is not None:
            take()
        yield from self.cursors.snapshot()
        yield from self._dedup.snapshot()

    # -- DedupLog --------------------------------------------------------------------------------------

    def find(self, topic: str, generation: int) -> Snapshot | None:
        return self._dedup.find(topic, generation)

    async def save(self, topic: str, snapshot: Snapshot) -> None:
        future, done = promise()
        self.put(topic, snapshot, done)
        await future

    def put(self, topic: str, snapshot: Snapshot, done: Done | None = None) -> None:
        *first, last = self._dedup.put(topic, snapshot)
        for record in first:
            self.log.append(record)
        self.log.append(last, done)

    async def remove(self, topic: str) -> None:
        record = self._dedup.remove(topic)
        if record is not None:
            future, done = promise()
            self.log.append(record, done)
            await future


class Bundles:
    """The bundles that this broker has open."""

    def __init__(self, ledgers: Ledgers, store: MetadataStore, totals: BundleTotals) -> None:
        self._ledgers = ledgers
        self._totals = totals
        self._store = store
        self.on_failed: Callable[[str], None] = lambda _: None
        """Is told of each whose state log takes no more writes."""
        self._open: dict[str, asyncio.Future[Bundle]] = {}
        self.damaged: dict[str, str] = {}
        """Those whose state log could not be read when it was last opened, and what is to be told of each."""

    async def of(self, namespace: NamespaceRecord, topic: TopicName) -> Bundle:
        """The open bundle of `topic`, which must be this broker's. Raises what opening its state log raised."""
        return await self._opened(bundle_of(namespace, topic), namespace)

    async def _opened(self, name: str, namespace: NamespaceRecord) -> Bundle:
        opening = self._open.get(name)
        if opening is None:
            opening = self._open[name] = asyncio.ensure_future(self._begin(name, namespace))
        try:
            return await asyncio.shield(opening)
        except QuireError:
            if self._open.get(name) is opening:
                del self._open[name]
            raise

    def is_open(self, name: str) -> bool:
        """Whether no load has to wait for its state log."""
        opening = self._open.get(name)
        return opening is not None and _has_succeeded(opening)

    def is_wanted(self, name: str) -> bool:
        """Whether it is open, or somebody waits for its state log."""
        return name in self._open

    async def _begin(self, name: str, namespace: NamespaceRecord) -> Bundle:
        bundle = self._make(name)
        try:
            await bundle.open(self._ledgers)
        except CorruptionError as error:
            raise _retold(error, await self._damage(name, namespace, error)) from error
        self.damaged.pop(name, None)
        return bundle

    def _make(self, name: str) -> Bundle:
        return Bundle(name, self._ledgers.clock, self._totals.of(name), self._failed)

    def _failed(self, bundle: Bundle, error: QuireError) -> None:
        _log.error("the state log of bundle %s failed, its topics are loaded again: %s", bundle.name, error)
        self._open.pop(bundle.name, None)
        self.on_failed(bundle.name)

    async def split(
        self,
        namespace: NamespaceRecord,
        names: tuple[str, str, str],
        given: Callable[[Bundle], None],
        steps: Callable[[], Awaitable[Sequence[Step]]],
    ) -> None:
        """The first of `names` becomes the other two; see `Bundle.divide`. `given` is told of the third.

        Raises `OutcomeUnknown` when the bundle was dropped meanwhile, as with the session: then none of them is open.
        """
        name, low, high = names
        bundle, part = await self._opened(name, namespace), self._make(high)
        await bundle.divide(low, part, lambda: given(part), steps)
        opening = self._open.pop(name, None)
        if opening is None:  # in this turn of the loop: its log will hear of it in the next one
            part.log.abandon()
            raise OutcomeUnknown(f"bundle {name} was dropped while it was split; look again what it is now")
        self._open[low] = opening
        self._open[high] = asyncio.get_running_loop().create_future()
        self._open[high].set_result(part)
        self._totals.rename(name, low)

    async def _damage(self, name: str, namespace: NamespaceRecord, error: CorruptionError) -> str:
        """What the error says, with the names of all topics that it concerns; told once in the log."""
        folder = paths.topics_of(namespace.tenant, namespace.name)
        locals_ = map(paths.decode, await self._store.children(folder))
        topics = [TopicName("persistent", namespace.tenant, namespace.name, one) for one in locals_]
        concerned = sorted(str(one) for one in topics if bundle_of(namespace, one) == name)
        shown = ", ".join(concerned[:TOPICS_NAMED_MAX])
        more = f" and {len(concerned) - TOPICS_NAMED_MAX} more" if len(concerned) > TOPICS_NAMED_MAX else ""
        text = (
            f"the state log of bundle {name} cannot be read, so these topics and their subscriptions cannot be "
            f"loaded: {shown}{more}: {error}"
        )
        if self.damaged.get(name) != text:
            _log.error("%s", text)
            self.damaged[name] = text
        return text

    async def forget(self, name: str) -> None:
        """Let a state log that could not be read begin anew, with nothing in it. Raises `InUse` for any other."""
        if name not in self.damaged:
            raise InUse(
                f"the state log of bundle {name} was not found damaged, so nothing of it is forgotten"
            )
        path = _path(name)
        version = (await self._store.get(path)).version
        await self._store.put(path, encode(StateLogRecord()), version)
        told = self.damaged.pop(name)
        _log.warning("as an operator asked, this begins anew with nothing in it: %s", told)

    def of_namespace(self, tenant: str, namespace: str) -> list[str]:
        """The names of those that are open."""
        return [name for name in self._open if name.startswith(f"{tenant}/{namespace}/")]

    def roll(self, ledger_ids: Container[int]) -> None:
        """Go on in another ledger where one of these is written to."""
        for opening in self._open.values():
            if _has_succeeded(opening):
                opening.result().log.roll_if_writing_to(ledger_ids)

    async def close(self) -> None:
        """Close all state logs."""
        for name in list(self._open):
            await self.close_one(name)

    async def close_one(self, name: str) -> None:
        """Close a bundle's state log, once its topics are closed."""
        opening = self._open.pop(name, None)
        if opening is None:
            return
        try:
            async with asyncio.timeout(CLOSE_S):
                await (await asyncio.shield(opening)).log.close()
        except TimeoutError:
            opening.add_done_callback(_abandon)
            _log.warning("the state log of bundle %s takes no writes now, it will be recovered", name)
        except QuireError as error:
            _log.warning(
                "the state log of bundle %s could not be closed, it will be recovered: %s", name, error
            )

    def drop(self, name: str) -> None:
        """Write nothing more to a bundle's state log: it may be another broker's."""
        opening = self._open.pop(name, None)
        if opening is not None:
            opening.add_done_callback(_abandon)


def _has_succeeded(opening: asyncio.Future[Bundle]) -> bool:
    return opening.done() and not opening.cancelled() and opening.exception() is None


def _retold(error: CorruptionError, text: str) -> CorruptionError:
    """An error of the same kind that says `text`. The first one is kept where it was met, and stays as it is."""
    told = type(error).__new__(type(error), text)
    told.__dict__.update(error.__dict__)
    return told


def _abandon(opened: asyncio.Future[Bundle]) -> None:
    if _has_succeeded(opened):
        opened.result().log.abandon()


def hash_of(topic: str) -> str:
    """Where a topic is in the hash space, by its full name: eight hex digits."""
    return f"{crc32(topic.encode()):08x}"


def bundle_of(namespace: NamespaceRecord, topic: TopicName) -> str:
    """The bundle that holds `topic`, `tenant/namespace/low_high`: a range of the 32-bit hash space."""
    bounds = namespace.boundaries
    at = bisect_right(bounds, hash_of(str(topic))) - 1
    at = min(max(at, 0), len(bounds) - 2)
    return f"{namespace.tenant}/{namespace.name}/{bounds[at]}_{bounds[at + 1]}"


def split_evenly(count: int) -> tuple[str, ...]:
    """The boundaries of `count` bundles of equal size."""
    return (*(f"{(at << 32) // count:08x}" for at in range(count)), HASH_MAX)


def _path(bundle: str) -> str:
    return paths.state_log(*bundle.split("/"))
