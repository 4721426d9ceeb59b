"""Verification of bookies' read responses: a block is used only after its checksum and position were verified."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from quire.wire import block
from quire.wire.block import BlockError, BlockHeader, Buffer
from quire.wire.bookie import BookieId, ReadResponse, Status

LACKING: Final = frozenset({Status.NO_SUCH_ENTRY, Status.NO_SUCH_LEDGER, Status.LIMBO})
"""Statuses of a replica that lacks a block although the closed ledger's record names it as a holder."""

FINAL: Final = LACKING | {Status.IO_ERROR}
"""Statuses of a replica that cannot return the entry now or later, unless repair copies the entry to it again."""


def describe_answers(answers: Mapping[BookieId, ReadResponse]) -> str:
    """Format each bookie's status for an error text."""
    return ", ".join(
        f"{bookie} returned {answer.status.name}" + (f" ({answer.detail})" if answer.detail else "")
        for bookie, answer in answers.items()
    )


class Run(NamedTuple):
    """Valid blocks in order, with their headers.

    `damage` is the reason why the run ends early, or "".
    """

    blocks: list[tuple[Buffer, BlockHeader]]
    damage: str = ""


def valid_run(blocks: Sequence[Buffer], ledger_id: int, first_entry: int) -> Run:
    """Return the leading blocks that are intact and contiguous; the first one contains `first_entry`."""
    run: list[tuple[Buffer, BlockHeader]] = []
    entry = first_entry
    for each in blocks:
        try:
            header = block.verify(each)
        except BlockError as error:
            return Run(run, str(error))
        follows = header.first_entry == entry or (not run and header.first_entry < entry <= header.last_entry)
        if header.ledger_id != ledger_id or not follows:
            return Run(
                run, f"found entry {header.first_entry} of ledger {header.ledger_id}, expected entry {entry}"
            )
        run.append((each, header))
        entry = header.last_entry + 1
    return Run(run, "" if run else "the response contains no block")
