"""Patches of the brokers' constant limits with small values, so that short histories reach them.

Each reached limit is counted (`LIMITS`). A limit that histories hardly ever reach would not be tested, so the tests
require that one in ten of the histories that can reach a limit does (`shares_met`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final
from unittest import mock

from quire.ledger import state_segment
from quire.ledger.state_segment import Segment
from quire.ledger.writer_core import Lag, WriterCore
from quire.serving.session import requests
from quire.serving.session.inbound import Inbound, Stop
from quire.serving.session.lane import Lane
from quire.serving.subscription import pump
from quire.serving.subscription.delivery import block_source
from quire.serving.subscription.delivery.block_source import BlockSource
from quire.serving.subscription.delivery.delivery import BlockView
from quire.serving.subscription.dispatch import key_shared
from quire.serving.subscription.dispatch.key_shared import KeyShared
from quire.serving.subscription.pump import Pump
from quire.serving.topic import deduplication, publish, publish_times, tenant_shares, time_search
from quire.serving.topic.deduplication import Deduplication
from quire.serving.topic.publish import Publisher
from quire.serving.topic.time_search import TimeSearch

from .plan import Plan
from .world import World

SMALL: Final = "limits of serving are small"
DEDUPLICATED: Final = "topics are deduplicated"
KEYED: Final = "messages have keys"

LIMITS: Final = {
    "socket not read: HELD": SMALL,
    "a SEND waits for its topic": SMALL,
    "what is published waits for blocks in flight": SMALL,
    "a state log waits for blocks in flight": SMALL,
    "a bookie that lags is left behind": SMALL,
    "deduplication snapshot is due": DEDUPLICATED,
    "key-shared looks no further ahead": KEYED,
    "dispatching goes on in another turn": SMALL,
    "a chunk is enough to read ahead": SMALL,
    "a seek by time looks into another chunk": "seek by time",
}
"""Event that is counted when a limit is reached -> event of the histories that may reach it."""


def shares_met(histories: Iterable[Counter[str]]) -> dict[str, float]:
    """Return for each limit the share of the histories that reached it, among the histories that may reach it.

    `histories` contains the counted events of each history.
    """
    may: Counter[str] = Counter()
    do: Counter[str] = Counter()
    for seen in histories:
        for met, needs in LIMITS.items():
            if seen[SMALL] and seen[needs]:
                may[met] += 1
                do[met] += seen[met] > 0
    return {met: do[met] / max(may[met], 1) for met in LIMITS}


@contextmanager
def serving_limits(world: World, plan: Plan) -> Iterator[None]:
    """Patch the limits of serving while a history runs. Some histories keep the limits of production."""
    rng = world.rng("serving limits")
    small: list[tuple[Any, str, tuple[int, ...]]] = [
        (requests, "HELD_BYTES_PER_CONNECTION_MAX", (600, 1_500)),
        (tenant_shares, "TOPIC_SHARE_OF_BYTES_IN_FLIGHT", (4, 5_000, 20_000)),
        (publish, "BLOCKS_IN_FLIGHT_PER_LEDGER_MAX", (1, 2, 16)),
        (state_segment, "BLOCKS_IN_FLIGHT_PER_LEDGER_MAX", (1, 16)),
        (deduplication, "SNAPSHOT_ENTRIES", (3, 20, 10_000)),
        (key_shared, "LOOK_AHEAD_ENTRIES_MAX", (2, 20, 100_000)),
        (pump, "DEAL_BYTES_PER_TURN", (1, 2_000, 1 << 20)),
        (block_source, "READ_CHUNK_BYTES", (1, 3_000, 1 << 20)),
        (time_search, "READ_CHUNK_BYTES", (1, 3_000, 1 << 20)),
        (time_search, "LEDGERS_MAX", (1, 4)),
        (publish_times, "CHECKPOINT_BYTES", (1, 3_000, 1 << 20)),
    ]
    with ExitStack() as stack:
        if plan.narrow:
            for where, name, values in small:
                stack.enter_context(mock.patch.object(where, name, rng.choice(values)))
            lag = rng.choice((1, 3_000, 64 << 20))
            stack.enter_context(mock.patch.object(Lag.__init__, "__defaults__", (lag,)))
            world.saw(SMALL)
        if plan.keyed:
            world.saw(KEYED)
        for patch in _counters(world):
            stack.enter_context(patch)
        yield


def _counters(world: World) -> Iterator[Any]:
    def counted(owner: type, name: str, what: str, is_met: Callable[..., bool] = lambda *_: True) -> Any:
        def hear(*args: Any) -> None:
            if is_met(*args):
                world.saw(what)

        return _before(owner, name, hear)

    def stopped(_: Inbound, reason: Stop) -> None:
        world.saw(f"socket not read: {reason.name}")

    yield _before(Inbound, "stop", stopped)
    yield counted(Lane, "put_off", "something waits in a lane")
    yield counted(Lane, "put_back", "a SEND waits for its topic")
    yield counted(Publisher, "publish", "what is published waits for blocks in flight", _is_in_flight)
    yield counted(Segment, "has_room", "a state log waits for blocks in flight", _is_written)
    yield counted(WriterCore, "_leave_behind", "a bookie that lags is left behind", _lags)
    yield counted(Deduplication, "snapshot", "deduplication snapshot")
    yield counted(Deduplication, "written", "deduplication snapshot is due", _is_snapshot_due)
    yield counted(KeyShared, "wanted", "key-shared looks no further ahead", _looks_no_further)
    yield counted(Pump, "_dispatch", "dispatching goes on in another turn", _is_much_to_dispatch)
    yield counted(BlockSource, "_read_ahead", "a chunk is enough to read ahead", _has_read_enough)
    yield counted(TimeSearch, "_read", "a seek by time looks into another chunk", _is_another_chunk)


def _is_another_chunk(_: TimeSearch, __: int, entry_id: int) -> bool:
    return entry_id > 0


def _is_in_flight(topic: Publisher, *_: object) -> bool:
    return bool(len(topic._flights) >= vars(publish)["BLOCKS_IN_FLIGHT_PER_LEDGER_MAX"])


def _is_written(segment: Segment) -> bool:
    return bool(segment.writer.core.blocks_pending >= vars(state_segment)["BLOCKS_IN_FLIGHT_PER_LEDGER_MAX"])


def _lags(core: WriterCore) -> bool:
    return bool(core._lagging.blocks)


def _is_snapshot_due(topic: Deduplication, entries: int) -> bool:
    return bool(topic._entries_since + entries >= vars(deduplication)["SNAPSHOT_ENTRIES"])


def _looks_no_further(core: KeyShared) -> bool:
    return bool(len(core.queue.entries) >= vars(key_shared)["LOOK_AHEAD_ENTRIES_MAX"])


def _is_much_to_dispatch(_: Pump, view: BlockView) -> bool:
    return bool(view.header.length >= vars(pump)["DEAL_BYTES_PER_TURN"])


def _has_read_enough(source: BlockSource) -> bool:
    return bool(source._ready_bytes > vars(block_source)["READ_CHUNK_BYTES"])


def _before(owner: type, name: str, hear: Callable[..., None]) -> Any:
    method = getattr(owner, name)

    def heard(self: Any, *args: Any, **how: Any) -> Any:
        hear(self, *args)
        return method(self, *args, **how)

    return mock.patch.object(owner, name, heard)
