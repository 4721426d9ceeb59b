"""The metadata store: a small tree of versioned nodes, as ZooKeeper has it.

A node has a path (`/a/b`), bytes and a version that grows by one with each put, from 0. Every change names the
version it expects, so two writers never overwrite each other silently. An *ephemeral* node lives as long as
the session that made it. A *watch* tells that something changed, not what: read again.

The outcome of a call is one of: done; refused (`NotFound`, `AlreadyExists`, `VersionConflict`, `NotEmpty`,
`EphemeralParent`), which proves the state it names; `Unavailable`: it did not happen; `OutcomeUnknown`: it may
have happened, read again.

Parents are made as needed by `create`, so a tree needs no set-up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple, Protocol

from quire.runtime.errors import QuireError

ANY_VERSION = -1

CHANGE_ATTEMPTS: Final = 10
"""How often a change is tried that others are making at the same time, before it is `Unavailable`."""


class NotEmpty(QuireError):
    """A node with children cannot be deleted."""


class EphemeralParent(QuireError):
    """An ephemeral node cannot have children."""


class Node(NamedTuple):
    """A node's bytes and version. `ephemeral`: it dies with its session."""

    value: bytes
    version: int
    ephemeral: bool = False


class SessionEvent(Enum):
    """What happened to the store's session."""

    SUSPENDED = "the session is suspended"
    """The connection is lost; the session may be over, or not. Change nothing that rests on it."""
    RESUMED = "the session is resumed"
    """The same session goes on; its ephemeral nodes are there."""
    LOST = "the session is over"
    """The session is over; its ephemeral nodes are gone. A new session begins by itself, as soon as it can.

    Until then calls are `Unavailable`; once it has begun, all watchers are told.
    """


@dataclass(frozen=True, slots=True)
class Create:
    """Transaction step: create `path`; refused with `AlreadyExists`."""

    path: str
    value: bytes
    ephemeral: bool = False


@dataclass(frozen=True, slots=True)
class Put:
    """Transaction step: replace the bytes if the version is `version` (`ANY_VERSION`: whatever it is)."""

    path: str
    value: bytes
    version: int


@dataclass(frozen=True, slots=True)
class Delete:
    """Transaction step: delete if the version is `version`."""

    path: str
    version: int = ANY_VERSION


@dataclass(frozen=True, slots=True)
class Check:
    """Transaction step: change nothing, but refuse the whole unless the version is `version`."""

    path: str
    version: int


@dataclass(slots=True)
class OperationCounts:
    """What a store was asked to do since it was opened."""

    reads: int = 0
    """Also those that arm a watch."""
    changes: int = 0
    """A transaction is one."""
    watch_events: int = 0
    sessions_lost: int = 0

    def metrics(self) -> dict[str, float]:
        """By their full names."""
        return {
            "quire_metadata_reads_total": self.reads,
            "quire_metadata_changes_total": self.changes,
            "quire_metadata_watch_events_total": self.watch_events,
            "quire_metadata_sessions_lost_total": self.sessions_lost,
        }


Step = Create | Put | Delete | Check
WatchCallback = Callable[[str], None]
SessionCallback = Callable[[SessionEvent], None]


class MetadataStore(Protocol):
    """All methods may be called from the event loop's thread only."""

    counts: OperationCounts

    async def get(self, path: str) -> Node:
        """The node at `path`. Raises `NotFound`."""
        ...

    async def create(
        self, path: str, value: bytes, *, ephemeral: bool = False, sequential: bool = False
    ) -> str:
        """Make a node and return its path; `sequential` appends a number of ten digits that only grows.

        Raises `AlreadyExists`.
        """
        ...

    async def put(self, path: str, value: bytes, version: int) -> int:
        """Replace the bytes if the version is `version`; return the new version. `NotFound`, `VersionConflict`."""
        ...

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        """Raises `NotFound`, `VersionConflict`, `NotEmpty`."""
        ...

    async def children(self, path: str) -> list[str]:
        """Names (not paths) of the children, sorted; empty when there is no such node."""
        ...

    async def transact(self, steps: Sequence[Step]) -> None:
        """All steps or none. Raises what the first refused step would raise."""
        ...

    async def sync(self) -> None:
        """What any session was told is done before this call is seen by reads after it."""
        ...

    def watch(self, path: str, callback: WatchCallback) -> Callable[[], None]:
        """Call `callback(path)` on the loop after each change to the node or its list of children.

        Persistent until the returned function is called. Changes may be merged, never lost.
        """
        ...

    def on_session(self, callback: SessionCallback) -> Callable[[], None]:
        """Call `callback(event)` on the loop for each session event, until the returned function is called."""
        ...

    @property
    def session_timeout_ms(self) -> int:
        """How long a session outlives its connection, in ms."""
        ...

    async def close(self) -> None:
        """End the session; its ephemeral nodes go."""
        ...
