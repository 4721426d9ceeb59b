"""What the programs in `quire/`, `python/`, `go/`, `java/` and `node/` must observe: one table for all languages.

A program knows a scenario by name and prints what it saw; the table here says what that has to be, so that a
difference between two clients cannot hide in two copies of an expectation. `LACKS` says what a client has no
interface for, and why the scenario is not played with it.
"""

from __future__ import annotations

from typing import Any


class Says:
    """A text that contains these words, however a client wraps them."""

    def __init__(self, *words: str) -> None:
        self._words = words

    def __eq__(self, other: object) -> bool:
        return isinstance(other, str) and any(word in other for word in self._words)

    def __repr__(self) -> str:
        return f"a text with {' or '.join(self._words)}"


def numbers(*bounds: int) -> list[str]:
    return [str(number) for number in range(*bounds)]


BY_KEY = {"count": 50, "orders": ["01234"], "apart": True, "consumers": 2}

EXPECTED: dict[str, dict[str, Any]] = {
    "exclusive": {"received": numbers(20), "second": Says("ConsumerBusy")},
    "failover": {"first": numbers(10), "idle": [], "second": numbers(10, 20)},
    "priority": {"before": numbers(5), "first": numbers(5, 15), "idle": [], "second": numbers(15, 20)},
    "shared": {"received": list(range(40)), "consumers": 2},
    "key_shared": BY_KEY,
    "sticky": {**BY_KEY, "overlap": Says("ConsumerAssign")},
    "batching": {"received": numbers(20), "entries": 1},
    "key_batching": {"received": [f"{key}{number}" for key in "ab" for number in range(5)], "entries": 2},
    "compression": {"lz4": True, "zlib": True, "zstd": True, "snappy": True},
    "chunking": {"size": 11 << 20, "same": True, "then": "small"},
    "encryption": {"received": ["secret"], "sealed": True},
    "deduplication": {"received": numbers(4)},
    "last_sequence": {"last": 2},
    "access_modes": {
        "exclusive": Says("ProducerFenced"),
        "shared": Says("ProducerBusy"),
        "received": ["first", "second"],
    },
    "fencing": {"fenced": True, "received": ["old", "new"]},
    "non_persistent": {"received": numbers(20)},
    "http_lookup": {"received": ["looked up"]},
    "cumulative": {"left": numbers(7, 10)},
    "batch_index": {"left": numbers(1, 10, 2)},
    "ack_receipts": {"left": numbers(5, 10)},
    "negative": {"again": "2", "count": 1},
    "ack_timeout": {"again": "2", "count": 1, "more": []},
    "dead_letter": {"counts": [0, 1, 2], "dead": ["poison"]},
    "retry_letter": {"deliveries": 3, "dead": ["poison"]},
    "delayed": {"order": ["now", "later"], "early": False},
    "seek": {
        "all": numbers(10),
        "from_id": numbers(3, 10),
        "from_time": numbers(5, 10),
        "from_start": numbers(10),
    },
    "reader": {"after": ["2", "3", "4"], "more": False, "head": "0", "late": "5", "all": numbers(6)},
    "pattern": {"received": ["a", "b"]},
    "discovery": {"received": ["a"]},
    "partitions": {"received": list(range(30)), "partitions": 3},
    "growth": {"before": 2, "after": 4, "exact": True},
    "compaction": {"view": ["b1", "a2"]},
    "terminated": {"refused": Says("TopicTerminated"), "received": numbers(3)},
    "end_of_topic": {"received": numbers(3), "end": True},
    "schemas": {"received": ["paper", "ink"], "refused": Says("IncompatibleSchema")},
    "auto_consume": {"received": ["0 paper", "1 ink"]},
    "keys_and_values": {"received": ["a paper", "b ink"], "refused": Says("IncompatibleSchema")},
    "transactions": {"refused": Says("NotAllowed", "this broker has no transactions")},
}

KILL = {"exact": [True] * 4, "enough": True}
"""`kill`, which only a cluster can play: on each of four topics every number once, in order."""

LACKS: dict[str, dict[str, str]] = {
    "quire": {
        "http_lookup": "the client looks topics up by the binary protocol only",
        "transactions": "the client has no transactions",
    },
    "python": {
        "priority": "the client has no levels",
        "ack_receipts": "the client does not ask for receipts",
        "discovery": "the client takes a period for it, and then looks once a minute",
        "retry_letter": "the client has no retry letters",
        "growth": "the client looks once a minute, and that is not a setting",
        "end_of_topic": "the client does not know the command",
        "auto_consume": "the client has no such schema",
        "keys_and_values": "the client has no such schema",
        "transactions": "the client has no transactions",
    },
    "go": {
        "auto_consume": "the client has no such schema",
        "keys_and_values": "the client has no such schema",
        "priority": "the client has no levels",
        "ack_timeout": "the client has no time-out of acknowledgements",
        "fencing": "the client has no such access mode",
        "last_sequence": "the client tells only what it published itself",
        "end_of_topic": "the client does not know the command",
    },
    "java": {},
    "node": {
        "priority": "the client has no levels",
        "ack_receipts": "the client does not ask for receipts",
        "retry_letter": "the client has no retry letters",
        "growth": "the client looks once a minute, and that is not a setting",
        "discovery": "the client looks once a minute, and that is not a setting",
        "end_of_topic": "the client does not know the command",
        "transactions": "the client has no transactions",
        "last_sequence": "the client does not tell the last sequence id",
        "auto_consume": "the client has no such schema",
        "keys_and_values": "the client has no such schema",
    },
}


def played(language: str) -> list[str]:
    return [name for name in EXPECTED if name not in LACKS[language]]
