"""The demo's proof: five countings of the same messages, equal in number and in content."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Multiset:
    """How many messages, and the sum of CRC32(key + NUL + line) over them."""

    messages: int = 0
    checksum: int = 0


@dataclass
class Proof:
    """What each party counted. `spark` and `streamed` stay None when Spark cannot run here."""

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
        """Whether all that were asked counted the same, and nothing is left to consume."""
        return len(set(self.parties.values())) == 1 and self.published.messages > 0 and self.backlog == 0
