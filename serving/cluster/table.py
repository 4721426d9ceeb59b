"""The bundles of one broker and their states: a core.

| state | served here | leaves it when |
|---|---|---|
| absent | no | our node was made: *held* |
| held | yes | `leave`: *leaving*; the node is another's, or the session is over: *absent* |
| leaving | what is loaded, nothing more is loaded | topics are closed and the node is gone: *absent* |

All nodes belong to one session. When that ends, every bundle is absent at once and the *epoch* grows; a node whose
making was begun in a former epoch is not counted as held, whatever the store says of it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Held:
    """A bundle of ours: since when (wall clock) and why."""

    since_ms: int
    why: str
    is_leaving: bool = False


class BundleTable:
    """See the top of the file."""

    def __init__(self) -> None:
        self.epoch = 0
        self._held: dict[str, Held] = {}

    def __len__(self) -> int:
        return len(self._held)

    def names(self) -> list[str]:
        """Held and leaving."""
        return list(self._held)

    def get(self, bundle: str) -> Held | None:
        return self._held.get(bundle)

    def holds(self, bundle: str) -> bool:
        held = self._held.get(bundle)
        return held is not None and not held.is_leaving

    def taken(self, bundle: str, epoch: int, now_ms: int, why: str) -> bool:
        """Our node was made by what was begun in `epoch`. False when that is over."""
        if epoch != self.epoch:
            return False
        assert bundle not in self._held
        self._held[bundle] = Held(now_ms, why)
        return True

    def leave(self, bundle: str) -> bool:
        """False when there is nothing to leave."""
        held = self._held.get(bundle)
        if held is None or held.is_leaving:
            return False
        held.is_leaving = True
        return True

    def gone(self, bundle: str) -> bool:
        """It is not ours any more; False when it was not before."""
        return self._held.pop(bundle, None) is not None

    def over(self) -> list[str]:
        """The session is over: the bundles that were ours."""
        lost = self.names()
        self._held.clear()
        self.epoch += 1
        return lost
