"""Bundles: the state logs and counters that the topics of a bundle share.

A bundle is a range of the hash space of a namespace's topics, owned by one broker. One state log contains the cursors
and deduplication snapshots of its topics. After a failed write, a state log accepts no more writes: the broker drops
the bundle with all its topics, and later requests of clients load them again from the durable state.

If the log cannot be read, its topics cannot be loaded, because their cursors are missing. The error lists these topics.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Container, Iterator, Mapping, Sequence
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
from quire.serving.model.rates import Rate, Totals
from quire.serving.model.request import Done
from quire.serving.names import TopicName
from quire.serving.ownership.balance import load_of
from quire.serving.ownership.port import BundleLoad
from quire.serving.subscription.cursor import cursor_record
from quire.serving.subscription.cursor.cursor_store import CursorStore
from quire.serving.topic import dedup
from quire.serving.topic.dedup import DedupStore, Snapshot

CLOSE_S: Final = 5.0
"""Time limit, in seconds, for closing a state log. Until it is closed, no other broker can own the bundle."""

HASH_MAX: Final = "ffffffff"
"""Largest hash; it belongs to the last bundle."""

TOPICS_NAMED_MAX: Final = 20
"""Maximum number of topics listed in the error of a damaged state log; a bundle may have ten thousand."""

_log = logging.getLogger(__name__)


class BundleTotals:
    """Counters by bundle, including formerly owned bundles, because counters of metrics must not decrease."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._totals: dict[str, Totals] = {}
        self._rates: dict[str, Rate] = {}

    def of(self, bundle: str) -> Totals:
        """Return the counters of a bundle's topics."""
        return self._totals.setdefault(bundle, Totals())

    def rename(self, bundle: str, new: str) -> None:
        """Keep the counters of a split bundle under the name of its lower part; see `Splits`."""
        if bundle in self._totals:
            self._totals[new] = self._totals.pop(bundle)
        self._rates.pop(bundle, None)

    def sum(self) -> Totals:
        """Return the sum of the counters of all topics since the broker's start."""
        total = Totals()
        for one in self._totals.values():
            total.add(one)
        return total

    def incoming(self) -> tuple[int, int]:
        """Return the numbers of messages and bytes published since the broker's start; cheaper than `sum`."""
        every = self._totals.values()
        return sum(one.messages_in for one in every), sum(one.bytes_in for one in every)

    def traffic(self) -> tuple[int, int, int, int]:
        """Return messages and bytes published, and those dispatched, since the broker's start; cheaper than `sum`."""
        every = self._totals.values()
        return (*self.incoming(), sum(one.messages_out for one in every), sum(one.bytes_out for one in every))

    def by_namespace(self) -> dict[str, Totals]:
        """Return the sum of the counters of each namespace (`tenant/namespace`) that had topics on this broker."""
        found: dict[str, Totals] = {}
        for bundle, one in self._totals.items():
            found.setdefault(bundle.rpartition("/")[0], Totals()).add(one)
        return found

    def loads(self, topics: Mapping[str, int]) -> dict[str, BundleLoad]:
        """Return the load of each bundle; `topics` contains the number of loaded topics of each."""
        now = self._clock.monotonic()
        return {bundle: BundleLoad(self._load(bundle, count, now), count) for bundle, count in topics.items()}

    def _load(self, bundle: str, topic_count: int, now: float) -> float:
        totals = self._totals.get(bundle, Totals())
        rate = self._rates.setdefault(bundle, Rate())
        messages_per_s, bytes_per_s = rate.per_second(now, totals.messages_in, totals.bytes_in)
        return load_of(topic_count, messages_per_s, bytes_per_s)


class Bundle:
    """Cursors and deduplication snapshots of one bundle (a `DedupLog` for topics)."""

    log: StateLog
    """State log; set by `open`."""

    def __init__(
        self, name: str, clock: Clock, totals: Totals, on_failed: Callable[[Bundle, QuireError], None]
    ) -> None:
        self.name = name
        self._on_failed = on_failed
        self._take_over: Callable[[], None] | None = None
        """Function that moves state from the divided bundle into this one; the first snapshot calls it."""
        self.cursors = CursorStore(clock, totals)
        self._dedup = DedupStore()

    async def open(self, ledgers: Ledgers) -> None:
        """Replay the state log and start writing to it."""
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
        """Rename this bundle to `low`, and move the state of the topics that `high` contains to `high`.

        Both happen in one transaction, together with the metadata operations that `steps` returns. `given` is called
        immediately after the state was moved in memory. Raises the errors of `StateLog.divide`.
        """

        def take() -> None:
            self.cursors.give(high.cursors, high.contains)
            self._dedup.give(high._dedup, high.contains)
            given()

        high._take_over = take
        high.log = StateLog.of_part(self.log, _path(high.name), high._owner(), purpose=f"state:{high.name}")
        high.cursors.attach(high.log)
        await self.log.divide(_path(low), f"state:{low}", high.log, steps)
        self.name = low

    def contains(self, topic: str) -> bool:
        """Return whether the topic's hash is in this bundle."""
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
                f"the state log of bundle {self.name} contains a record of unknown kind {kind!r}"
            )

    async def _prepare(self) -> None:
        """Drop the state of topics that a split moved away, and prepare the next snapshot."""
        self.cursors.keep(self.contains)
        self._dedup.keep(self.contains)
        await self.cursors.prepare()
        for _ in self._dedup.prepare():
            await asyncio.sleep(0)

    def _snapshot(self) -> Iterator[bytes]:
        take, self._take_over = self._take_over, None
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
    """Bundles whose state logs are open on this broker."""

    def __init__(self, ledgers: Ledgers, store: MetadataStore, totals: BundleTotals) -> None:
        self._ledgers = ledgers
        self._totals = totals
        self._store = store
        self.on_failed: Callable[[str], None] = lambda _: None
        """Callback with the name of a bundle whose state log failed."""
        self._open: dict[str, asyncio.Future[Bundle]] = {}
        self.damaged: dict[str, str] = {}
        """Error of each bundle whose state log was unreadable when it was last opened."""

    async def of(self, namespace: NamespaceRecord, topic: TopicName) -> Bundle:
        """Return the open bundle of `topic`, which this broker must own. Raises the error of opening its state log."""
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
        """Return whether the bundle's state log is open, so that no load has to wait for it."""
        opening = self._open.get(name)
        return opening is not None and _has_succeeded(opening)

    def is_open_or_opening(self, name: str) -> bool:
        """Return whether the bundle is open or being opened."""
        return name in self._open

    async def _begin(self, name: str, namespace: NamespaceRecord) -> Bundle:
        bundle = self._make(name)
        try:
            await bundle.open(self._ledgers)
        except CorruptionError as error:
            raise _with_text(error, await self._damage(name, namespace, error)) from error
        self.damaged.pop(name, None)
        return bundle

    def _make(self, name: str) -> Bundle:
        return Bundle(name, self._ledgers.clock, self._totals.of(name), self._failed)

    def _failed(self, bundle: Bundle, error: QuireError) -> None:
        _log.error("state log failed, reloading its topics: bundle=%s error=%s", bundle.name, error)
        self._open.pop(bundle.name, None)
        self.on_failed(bundle.name)

    async def split(
        self,
        namespace: NamespaceRecord,
        names: tuple[str, str, str],
        given: Callable[[Bundle], None],
        steps: Callable[[], Awaitable[Sequence[Step]]],
    ) -> None:
        """Divide the first bundle of `names` into the other two; see `Bundle.divide`. `given` gets the third bundle.

        Raises `OutcomeUnknown` if the bundle was dropped meanwhile, for example with the session; then no part is open.
        """
        name, low, high = names
        bundle, part = await self._opened(name, namespace), self._make(high)
        await bundle.divide(low, part, lambda: given(part), steps)
        opening = self._open.pop(name, None)
        if opening is None:  # dropped just now; the state log notices that in the next iteration
            part.log.abandon()
            raise OutcomeUnknown(
                f"bundle {name} was dropped while it was being split; check its state with `quire brokers show`"
            )
        self._open[low] = opening
        self._open[high] = asyncio.get_running_loop().create_future()
        self._open[high].set_result(part)
        self._totals.rename(name, low)

    async def _damage(self, name: str, namespace: NamespaceRecord, error: CorruptionError) -> str:
        """Return the text of `error` with the names of the affected topics, and log it once."""
        folder = paths.topics_of(namespace.tenant, namespace.name)
        locals_ = map(paths.decode, await self._store.children(folder))
        topics = [TopicName("persistent", namespace.tenant, namespace.name, one) for one in locals_]
        concerned = sorted(str(one) for one in topics if bundle_of(namespace, one) == name)
        shown = ", ".join(concerned[:TOPICS_NAMED_MAX])
        more = f" and {len(concerned) - TOPICS_NAMED_MAX} more" if len(concerned) > TOPICS_NAMED_MAX else ""
        text = (
            f"the state log of bundle {name} cannot be read, so these topics and their subscriptions cannot be "
            f"loaded: {shown}{more}: {error}; restore the newest copy of the metadata, or delete their "
            f"subscriptions: `quire brokers forget {name} --accept-loss`"
        )
        if self.damaged.get(name) != text:
            _log.error("%s", text)
            self.damaged[name] = text
        return text

    async def forget(self, name: str) -> None:
        """Replace a bundle's unreadable state log by an empty one.

        Raises `InUse` if the log was not found unreadable, and `WrongCluster` if the metadata are older than the newest
        backup copy of them.
        """
        if name not in self.damaged:
            raise InUse(f"the state log of bundle {name} was not found damaged, so it is not replaced")
        await self._ledgers.confirm_absence("")
        path = _path(name)
        version = (await self._store.get(path)).version
        await self._store.put(path, encode(StateLogRecord()), version)
        told = self.damaged.pop(name)
        _log.warning("state log replaced by an empty one on an operator's request: error=%s", told)

    def of_namespace(self, tenant: str, namespace: str) -> list[str]:
        """Return the names of the namespace's open bundles."""
        return [name for name in self._open if name.startswith(f"{tenant}/{namespace}/")]

    def roll(self, ledger_ids: Container[int]) -> None:
        """Start a new ledger in each state log that writes to one of `ledger_ids`."""
        for opening in self._open.values():
            if _has_succeeded(opening):
                opening.result().log.roll_if_writing_to(ledger_ids)

    async def close(self) -> None:
        """Close all state logs."""
        for name in list(self._open):
            await self.close_one(name)

    async def close_one(self, name: str) -> None:
        """Close a bundle's state log, after its topics were closed."""
        opening = self._open.pop(name, None)
        if opening is None:
            return
        try:
            async with asyncio.timeout(CLOSE_S):
                await (await asyncio.shield(opening)).log.close()
        except TimeoutError:
            opening.add_done_callback(_abandon)
            _log.warning("state log did not close in time, its next owner recovers it: bundle=%s", name)
        except QuireError as error:
            _log.warning(
                "cannot close a state log, its next owner recovers it: bundle=%s error=%s", name, error
            )

    def drop(self, name: str) -> None:
        """Stop writing to a bundle's state log without closing it: another broker may already own the bundle."""
        opening = self._open.pop(name, None)
        if opening is not None:
            opening.add_done_callback(_abandon)


def _has_succeeded(opening: asyncio.Future[Bundle]) -> bool:
    return opening.done() and not opening.cancelled() and opening.exception() is None


def _with_text(error: CorruptionError, text: str) -> CorruptionError:
    """Return a copy of an error with another text. The original is shared with other callers and must not change."""
    told = type(error).__new__(type(error), text)
    told.__dict__.update(error.__dict__)
    return told


def _abandon(opened: asyncio.Future[Bundle]) -> None:
    if _has_succeeded(opened):
        opened.result().log.abandon()


def hash_of(topic: str) -> str:
    """Return the hash of a topic's full name, as eight hex digits."""
    return f"{crc32(topic.encode()):08x}"


def bundle_of(namespace: NamespaceRecord, topic: TopicName) -> str:
    """Return the bundle of `topic` as `tenant/namespace/low_high`: low and high bound its range of 32-bit hashes."""
    bounds = namespace.boundaries
    at = bisect_right(bounds, hash_of(str(topic))) - 1
    at = min(max(at, 0), len(bounds) - 2)
    return f"{namespace.tenant}/{namespace.name}/{bounds[at]}_{bounds[at + 1]}"


def split_evenly(count: int) -> tuple[str, ...]:
    """Return the boundaries of `count` bundles of equal size."""
    return (*(f"{(at << 32) // count:08x}" for at in range(count)), HASH_MAX)


def _path(bundle: str) -> str:
    return paths.state_log(*bundle.split("/"))
