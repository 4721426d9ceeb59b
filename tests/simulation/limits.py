"""Limits of serving that are constants in production take small values, so that short histories meet them.

Each is counted when it is met: a limit that no history meets is not checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

from quire.ledger import state_segment
from quire.ledger.writer_core import WriterCore
from quire.serving.session import connection
from quire.serving.session.connection import Connection, Stop
from quire.serving.session.lane import Lane
from quire.serving.subscription import block_source, key_shared, seek, subscription
from quire.serving.subscription.key_shared import KeyShared
from quire.serving.topic import deduplication, publish
from quire.serving.topic.deduplication import Deduplication

from .plan import Plan
from .world import World


@contextmanager
def serving_limits(world: World, plan: Plan) -> Iterator[None]:
    """See the top of the file. Some histories have the limits of production."""
    rng = world.rng("serving limits")
    small: list[tuple[Any, str, tuple[int, ...]]] = [
        (connection, "HELD_BYTES_PER_CONNECTION_MAX", (1_500, 20_000)),
        (publish, "TOPIC_SHARE_OF_BYTES_IN_FLIGHT", (4, 5_000, 20_000)),
        (publish, "BLOCKS_IN_FLIGHT_PER_LEDGER_MAX", (1, 2, 16)),
        (state_segment, "BLOCKS_IN_FLIGHT_PER_LEDGER_MAX", (1, 16)),
        (deduplication, "SNAPSHOT_ENTRIES", (3, 20, 10_000)),
        (key_shared, "LOOK_AHEAD_ENTRIES_MAX", (2, 20, 100_000)),
        (subscription, "DEAL_BYTES_PER_TURN", (1, 2_000, 1 << 20)),
        (block_source, "READ_CHUNK_BYTES", (1, 3_000, 1 << 20)),
        (seek, "READ_CHUNK_BYTES", (1, 3_000, 1 << 20)),
    ]
    with ExitStack() as stack:
        if plan.narrow:
            for where, name, values in small:
                stack.enter_context(mock.patch.object(where, name, rng.choice(values)))
            lag = rng.choice((1, 3_000, 64 << 20))
            stack.enter_context(mock.patch.object(WriterCore.__init__, "__defaults__", (lag,)))
        for patch in _counters(world):
            stack.enter_context(patch)
        yield


def _counters(world: World) -> Iterator[Any]:
    def stopped(_: Connection, reason: Stop) -> None:
        world.saw(f"socket not read: {reason.name}")

    def looks_no_further(core: KeyShared) -> None:
        if len(core.queue) >= vars(key_shared)["LOOK_AHEAD_ENTRIES_MAX"]:
            world.saw("key-shared looks no further ahead")

    yield _before(Lane, "put_off", lambda *_: world.saw("something waits in a lane"))
    yield _before(Lane, "put_back", lambda *_: world.saw("a SEND waits for its topic"))
    yield _before(Connection, "_stop_reading", stopped)
    yield _before(Deduplication, "snapshot", lambda *_: world.saw("deduplication snapshot"))
    yield _before(KeyShared, "wanted", looks_no_further)


def _before(owner: type, name: str, hear: Callable[..., None]) -> Any:
    method = getattr(owner, name)

    def heard(self: Any, *args: Any, **how: Any) -> Any:
        hear(self, *args)
        return method(self, *args, **how)

    return mock.patch.object(owner, name, heard)
