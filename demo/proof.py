"""Result of the demo: counts of the same messages by up to five parties, which must be equal in number and checksum."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Multiset:
    """Number of messages, and the sum of CRC32(key + NUL + line) over them."""

    messages: int = 0
    checksum: int = 0


@dataclass
class Proof:
    """Counts of all parties. `spark` and `streamed` are None where Spark cannot run."""

    published: Multiset = field(default_factory=Multiset)
    acknowledged: Multiset = field(default_factory=Multiset)
    consumed: Multiset = field(default_factory=Multiset)
    spark: Multiset | None = None
    streamed: Multiset | None = None
    backlog: int = -1
    redelivered: int = 0

    @property
    def parties(self) -> dict[str, Multiset]:
        counted = {
            "published": self.published,
            "acknowledged": self.acknowledged,
            "consumed": self.consumed,
            "read by Spark": self.spark,
            "streamed by Spark": self.streamed,
        }
        return {name: one for name, one in counted.items() if one is not None}

    @property
    def agrees(self) -> bool:
        """True if all parties counted the same messages, at least one, and the backlog is empty."""
        return len(set(self.parties.values())) == 1 and self.published.messages > 0 and self.backlog == 0
