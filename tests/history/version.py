"""What lies where: the order of one topic's messages, from everything that anybody was told about it.

A send that was answered and a poll tell (position, value) pairs. All positions known, in order, are the topic's log;
a message's *index* in it is its rank, so two messages with neighbouring indexes have nothing known between them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from tests.history.operations import F, Operation, Outcome, Position


class Version:
    """One topic's log."""

    def __init__(self, operations: Iterable[Operation]) -> None:
        values: defaultdict[Position, set[int]] = defaultdict(set)
        for operation in operations:
            if operation.f is F.POLL or (operation.f is F.SEND and operation.outcome is Outcome.OK):
                for message in operation.messages:
                    if message.position is not None:
                        values[message.position].add(message.value)
        self.values = dict(sorted(values.items()))
        """Per position the values that were told for it: one, or something is wrong."""
        self.order = list(self.values)
        self.index = {position: index for index, position in enumerate(self.order)}

    def between(self, first: Position, last: Position) -> list[Position]:
        """The positions known to lie between two."""
        return self.order[self.index[first] + 1 : self.index[last]]
