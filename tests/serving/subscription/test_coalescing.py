"""Coalesced blocks: which blocks are laid out as one, and that nobody who reads can tell."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from quire.serving.model.request import SubscribeRequest, SubscriptionKind
from quire.serving.subscription.delivery import coalescing
from quire.serving.subscription.delivery.consumer import Consumer
from quire.serving.subscription.delivery.delivery import BlockView, Delivery, frames
from quire.wire import block
from quire.wire.block import BlockHeader, Buffer
from tests.serving.subscription.fakes import FakePort

Blocks = list[tuple[Buffer, BlockHeader]]


def blocks_of(shapes: list[tuple[int, int]], ledger_id: int = 1, clock_ms: int = 1_000) -> Blocks:
    """Consecutive blocks with so many entries of so many bytes each, a millisecond apart."""
    made: Blocks = []
    first = 0
    for count, size in shapes:
        entries = [b"%d" % (first + at) * size for at in range(count)]
        clock = clock_ms + len(made) if clock_ms else 0
        raw = block.cut(ledger_id, first, first - 1, clock, first, entries)
        made.append((raw, block.peek(raw)))
        first += count
    return made


def extents(blocks: Blocks) -> list[tuple[int, int]]:
    return [(view.first_entry, view.stop_entry) for view in coalescing.views(blocks)]


def test_small_neighbours_are_one() -> None:
    assert extents(blocks_of([(1, 10), (20, 10), (1, 10)])) == [(0, 22)]


def test_a_large_block_stays_alone() -> None:
    many, wide = coalescing.SMALL_BLOCK_ENTRIES + 1, coalescing.SMALL_BLOCK_BYTES
    shapes = [(1, 10), (1, 10), (many, 1), (1, 10), (1, wide), (1, 10)]
    assert extents(blocks_of(shapes)) == [
        (0, 2),
        (2, 2 + many),
        (2 + many, 3 + many),
        (3 + many, 4 + many),
        (4 + many, 5 + many),
    ]


def test_a_coalesced_block_ends_with_its_ledger_at_a_gap_and_where_no_time_is_told() -> None:
    one, other = blocks_of([(1, 10), (1, 10)]), blocks_of([(1, 10)], ledger_id=3)
    assert extents([*one, *other]) == [(0, 2), (0, 1)]
    three = blocks_of([(1, 10), (1, 10), (1, 10)])
    assert extents([three[0], three[2]]) == [(0, 1), (2, 3)]
    assert extents(blocks_of([(1, 10), (1, 10)], clock_ms=0)) == [(0, 1), (1, 2)]


def test_a_coalesced_block_is_bounded() -> None:
    found = coalescing.views(blocks_of([(4, 2_000)] * 100))
    assert len(found) > 1
    assert all(view.header.length <= coalescing.COALESCED_BYTES_MAX for view in found)


def sent(views: list[BlockView], wants_index: bool) -> bytes:
    """What an exclusive consumer is sent of all."""
    port = FakePort()
    port.wants_index = wants_index
    consumer = Consumer(port, SubscribeRequest("s", SubscriptionKind.EXCLUSIVE, 1))
    whole = [Delivery(consumer, view, 0, view.count, view.count, 0, 0) for view in views]
    return b"".join(bytes(part) for one in whole for part in frames(one, -1))


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(1, 3_000)), min_size=1, max_size=12), st.booleans())
def test_consumers_get_the_same_bytes(shapes: list[tuple[int, int]], wants_index: bool) -> None:
    """The broker's own time of each entry among them."""
    blocks = blocks_of(shapes)
    assert sent(coalescing.views(blocks), wants_index) == sent(
        [BlockView(*one) for one in blocks], wants_index
    )
