"""Interface of the metadata store: a small tree of versioned nodes.

The model is [ZooKeeper's](https://zookeeper.apache.org/doc/current/zookeeperProgrammers.html). A node has a path
(`/a/b`), bytes and a version that grows by one with each put, from 0. Every change contains the expected version
(compare-and-set), so two writers never overwrite each other silently. An *ephemeral* node lives as long as the session
that created it. A *watch* reports that a node changed, but not the new value, which the watcher then reads.

A call has one of four outcomes:
- success;
- a refusal (`NotFound`, `AlreadyExists`, `VersionConflict`, `NotEmpty`, `EphemeralParent`), which proves that the node
  has this state;
- `Unavailable`: the call had no effect;
- `OutcomeUnknown`: the call may have had an effect, so the caller reads the node again.

`create` also creates missing parents, so a tree needs no set-up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple, Protocol

from quire.runtime.errors import QuireError

ANY_VERSION = -1

CHANGE_ATTEMPTS: Final = 10
"""Attempts of a change that conflicts with concurrent changes, before `Unavailable` is raised."""


class NotEmpty(QuireError):
    """Raised when a node with children would be deleted."""


class EphemeralParent(QuireError):
    """Raised when an ephemeral node would get a child."""


class Node(NamedTuple):
    """Node's bytes and version. An `ephemeral` node ends with its session."""

    value: bytes
    version: int
    ephemeral: bool = False


class SessionEvent(Enum):
    """Events of the store's session."""

    SUSPENDED = "the session is suspended"
    """The connection is lost, and the session may have ended. Change nothing that depends on the session."""
    RESUMED = "the session is resumed"
    """The same session continues; its ephemeral nodes exist."""
    LOST = "the session is over"
    """The session has ended, and its ephemeral nodes are deleted. A new session begins automatically, as soon as
    possible.

    Until then, calls raise `Unavailable`. After the new session has begun, all watchers are called.
    """


@dataclass(frozen=True, slots=True)
class Create:
    """Transaction step: create `path`. Refused with `AlreadyExists`."""

    path: str
    value: bytes
    ephemeral: bool = False


@dataclass(frozen=True, slots=True)
class Put:
    """Transaction step: replace the node's bytes if its version is `version`; `ANY_VERSION` matches any version."""

    path: str
    value: bytes
    version: int


@dataclass(frozen=True, slots=True)
class Delete:
    """Transaction step: delete the node if its version is `version`."""

    path: str
    version: int = ANY_VERSION


@dataclass(frozen=True, slots=True)
class Check:
    """Transaction step: refuse the transaction unless the node's version is `version`; change nothing."""

    path: str
    version: int


@dataclass(slots=True)
class OperationCounts:
    """Number of operations of a store since it was opened."""

    reads: int = 0
    """Number of reads, including those that arm a watch."""
    changes: int = 0
    """Number of changes; a transaction counts as one."""
    watch_events: int = 0
    sessions_lost: int = 0

    def metrics(self) -> dict[str, float]:
        """Return the counts by their full metric names."""
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
    """Metadata store. All methods must be called from the event loop's thread."""

    counts: OperationCounts

    async def get(self, path: str) -> Node:
        """Return the node at `path`. Raises `NotFound`."""
        ...

    async def create(
        self, path: str, value: bytes, *, ephemeral: bool = False, sequential: bool = False
    ) -> str:
        """Create a node and return its path. `sequential` appends an increasing number of ten digits.

        Raises `AlreadyExists`.
        """
        ...

    async def put(self, path: str, value: bytes, version: int) -> int:
        """Replace the node's bytes if its version is `version`; return the new version.

        Raises `NotFound`, `VersionConflict`.
        """
        ...

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        """Delete the node if its version is `version`. Raises `NotFound`, `VersionConflict`, `NotEmpty`."""
        ...

    async def children(self, path: str) -> list[str]:
        """Return the names (not paths) of the children, sorted; empty if the node does not exist."""
        ...

    async def transact(self, steps: Sequence[Step]) -> None:
        """Execute all steps or none. Raises the error of the first refused step."""
        ...

    async def sync(self) -> None:
        """Make later reads see all changes that any session completed before this call."""
        ...

    def watch(self, path: str, callback: WatchCallback) -> Callable[[], None]:
        """Call `callback(path)` on the event loop after each change to the node or its list of children.

        The watch is persistent until the returned function is called. Changes may be coalesced, but never lost.
        """
        ...

    def on_session(self, callback: SessionCallback) -> Callable[[], None]:
        """Call `callback(event)` on the event loop for each session event, until the returned function is called."""
        ...

    @property
    def session_timeout_ms(self) -> int:
        """Time for which a session outlives its connection, in ms."""
        ...

    async def close(self) -> None:
        """End the session, which deletes its ephemeral nodes."""
        ...
