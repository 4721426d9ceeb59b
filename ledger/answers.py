"""What a bookie's answer to a range read is worth: nothing is believed before it is verified."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from quire.wire import block
from quire.wire.block import BlockError, BlockHeader, Buffer
from quire.wire.bookie import BookieId, ReadResponse, Status

LACKING: Final = frozenset({Status.NO_SUCH_ENTRY, Status.NO_SUCH_LEDGER, Status.LIMBO})
"""Answers by which a replica says that it does not have what a closed ledger's record says it has."""

FINAL: Final = LACKING | {Status.IO_ERROR}
"""What a replica that cannot give an entry answers tomorrow, too, unless somebody gives it another copy."""


def told(answers: Mapping[BookieId, ReadResponse]) -> str:
    """Who said what, for an error."""
    return ", ".join(
        f"{bookie} says {answer.status.name}" + (f" ({answer.detail})" if answer.detail else "")
        for bookie, answer in answers.items()
    )


class Run(NamedTuple):
    """Valid blocks in order, with their headers; `damage` says why there are no more, "" when all were valid."""

    blocks: list[tuple[Buffer, BlockHeader]]
    damage: str = ""


def valid_run(blocks: Sequence[Buffer], ledger_id: int, first_entry: int) -> Run:
    """The blocks as far as each is intact, the first contains `first_entry` and each follows the one before."""
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
                run, f"entry {header.first_entry} of ledger {header.ledger_id} came where {entry} belongs"
            )
        run.append((each, header))
        entry = header.last_entry + 1
    return Run(run, "" if run else "an answer without a block")
