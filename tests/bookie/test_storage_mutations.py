"""The random histories notice when a rule is broken: each mutation here puts one known mistake back in."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from quire.bookie import flusher, storage
from quire.bookie.checkpoint import Checkpoint, perform
from quire.bookie.journal import Journal
from quire.bookie.journal_core import GroupQueue
from quire.bookie.ledgers import LedgerState
from quire.bookie.requests import Requests
from quire.bookie.segment_pool import Segment, SegmentPool
from quire.wire.bookie import Status

from .test_storage_crash import History

Patch = pytest.MonkeyPatch


def ack_before_it_is_durable(patch: Patch) -> None:
    patch.setattr(storage, "Journal", lambda *parts, **rest: Journal(*parts, **rest | {"durable": False}))


def mark_ahead_of_the_flush(patch: Patch) -> None:
    def hasty(checkpoint: Checkpoint, *rest: Any) -> None:
        perform(replace(checkpoint, mark=checkpoint.mark + 2), *rest)

    patch.setattr(flusher, "perform", hasty)


def mark_past_a_group_that_two_memtables_share(patch: Patch) -> None:
    patch.setattr(GroupQueue, "seal", lambda queue: queue._next_number - 1)


def fence_not_journalled(patch: Patch) -> None:
    async def forgetful(self: Requests, state: LedgerState) -> Status:
        state.fence()
        return Status.OK

    patch.setattr(Requests, "_fence", forgetful)


def fence_lost_at_a_checkpoint(patch: Patch) -> None:
    def forgetful(checkpoint: Checkpoint, *rest: Any) -> None:
        changed = [state for state in checkpoint.changed if state.ledger_id in checkpoint.table.ledgers]
        perform(replace(checkpoint, changed=changed), *rest)

    patch.setattr(flusher, "perform", forgetful)


def stale_groups_of_a_recycled_segment_replayed(patch: Patch) -> None:
    """Neither salt nor epoch are looked at: what an earlier use of the file left behind passes for a group."""
    begin_epoch = SegmentPool._begin_epoch

    def begin_the_same_epoch(pool: SegmentPool, segment: Segment, first_number: int) -> None:
        begin_epoch(pool, segment, first_number)
        assert segment.header is not None
        segment.header = segment.header._replace(epoch=1, salt=0)

    patch.setattr(SegmentPool, "_begin_epoch", begin_the_same_epoch)


MUTATIONS = [
    ack_before_it_is_durable,
    mark_ahead_of_the_flush,
    mark_past_a_group_that_two_memtables_share,
    fence_not_journalled,
    fence_lost_at_a_checkpoint,
    stale_groups_of_a_recycled_segment_replayed,
]


@pytest.mark.parametrize("mutate", MUTATIONS)
def test_a_mutation_is_caught(mutate: Callable[[Patch], None], monkeypatch: Patch) -> None:
    mutate(monkeypatch)
    for seed in range(300):
        try:
            asyncio.run(History(seed).run(lives=6, steps=25))
        except AssertionError:
            return
    pytest.fail("300 histories did not notice")
