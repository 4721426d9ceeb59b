"""Rules of the tree, for every store that implements the tree itself: a core over plain rows.

`Tree` defines the effects of puts, deletes and transactions; `Rows` only finds and stores rows: a dict in `testing`, a
table in `sqlite`. (A ZooKeeper store does not need it: ZooKeeper has the same rules.)

The rules:
- A new node has version 0; each put adds one. A step contains the expected version, or `ANY_VERSION`.
- `create` also creates missing parents, persistent and empty. An ephemeral node has no children.
- A sequential node's name ends in its parent's counter, as ten digits. The counter grows with each sequential child,
  and is never reset while the parent exists.
- A node with children cannot be deleted; the checks are in this order: existence, version, children.
- A transaction is atomic: if a step is refused, the former contents of all changed rows are restored.
- The session's end deletes its ephemeral nodes.

Each change returns the paths whose watchers must be called: the node itself, and its parent if the list of children
changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, Protocol

from quire.metadata.store import (
    ANY_VERSION,
    Check,
    Create,
    Delete,
    EphemeralParent,
    Node,
    NotEmpty,
    Put,
    Step,
)
from quire.runtime.errors import AlreadyExists, NotFound, VersionConflict

ROOT: Final = "/"
PERSISTENT: Final = 0
"""Session id of a node that belongs to no session."""


class Row(NamedTuple):
    """Stored form of a node. `next_child` is the number of its next sequential child."""

    value: bytes
    version: int
    session: int = PERSISTENT
    next_child: int = 0


class Rows(Protocol):
    """Storage of rows, without rules."""

    def find(self, path: str) -> Row | None: ...

    def keep(self, path: str, row: Row) -> None: ...

    def drop(self, path: str) -> None: ...

    def child_names(self, path: str) -> Iterable[str]: ...

    def has_children(self, path: str) -> bool: ...

    def paths_of_session(self, session: int) -> list[str]: ...


def parent_of(path: str) -> str:
    """Return the parent's path: `/a` for `/a/b`, `/` for `/a`."""
    return path.rpartition("/")[0] or ROOT


def name_of(path: str) -> str:
    return path.rpartition("/")[2]


def assert_path(path: str) -> None:
    """Assert that a path is well formed. Only `paths` builds paths, so an invalid one is an internal error."""
    well_formed = path.startswith("/") and "//" not in path and not path.endswith("/")
    assert path == ROOT or well_formed, f"invalid path: {path!r}"


class Tree:
    """Tree over `rows`. Not thread-safe: one caller at a time."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._undo: list[tuple[str, Row | None]] = []
        if rows.find(ROOT) is None:
            rows.keep(ROOT, Row(b"", 0))

    def get(self, path: str) -> Node:
        row = self._row(path)
        return Node(row.value, row.version, row.session != PERSISTENT)

    def children(self, path: str) -> list[str]:
        assert_path(path)
        return sorted(self._rows.child_names(path))

    def create(
        self, path: str, value: bytes, session: int = PERSISTENT, *, sequential: bool = False
    ) -> tuple[str, set[str]]:
        """Create a node; return its path and the changed paths.

        `session` is the id of an ephemeral node's session, or `PERSISTENT`.
        """
        changed: set[str] = set()
        self._undo = []
        try:
            path = self._create(path, value, session, sequential, changed)
        except BaseException:
            self._roll_back()
            raise
        return path, changed

    def transact(self, steps: Sequence[Step], session: int) -> tuple[list[int], set[str]]:
        """Execute steps; return the version after each, and the changed paths.

        Raises the first refused step's error.
        """
        changed: set[str] = set()
        self._undo = []
        try:
            versions = [self._step(step, session, changed) for step in steps]
        except BaseException:
            self._roll_back()
            raise
        return versions, changed

    def end_session(self, session: int) -> set[str]:
        """Delete the session's ephemeral nodes; return the changed paths."""
        changed: set[str] = set()
        for path in self._rows.paths_of_session(session):
            self._rows.drop(path)
            changed |= {path, parent_of(path)}
        return changed

    # -- steps -----------------------------------------------------------------------------------------
    def _step(self, step: Step, session: int, changed: set[str]) -> int:
        match step:
            case Create(path, value, ephemeral):
                self._create(path, value, session if ephemeral else PERSISTENT, False, changed)
                return 0
            case Put(path, value, version):
                row = self._row_at_version(path, version)
                self._keep(path, row._replace(value=value, version=row.version + 1))
                changed.add(path)
                return row.version + 1
            case Delete(path, version):
                self._delete(path, version, changed)
                return ANY_VERSION
            case Check(path, version):
                return self._row_at_version(path, version).version

    def _create(self, path: str, value: bytes, session: int, sequential: bool, changed: set[str]) -> str:
        parent = parent_of(path)
        row = self._make_parent(parent, changed)
        if sequential:
            path = f"{path}{row.next_child:010d}"
            self._keep(parent, row._replace(next_child=row.next_child + 1))
        else:
            assert_path(path)
        if self._rows.find(path) is not None:
            raise AlreadyExists(f"metadata node {path} exists already")
        self._keep(path, Row(value, 0, session))
        changed |= {path, parent}
        return path

    def _make_parent(self, path: str, changed: set[str]) -> Row:
        row = self._rows.find(path)
        if row is None:
            self._create(path, b"", PERSISTENT, False, changed)
            return Row(b"", 0)
        if row.session != PERSISTENT:
            raise EphemeralParent(f"metadata node {path} is ephemeral and cannot have children")
        return row

    def _delete(self, path: str, version: int, changed: set[str]) -> None:
        assert path != ROOT
        self._row_at_version(path, version)
        if self._rows.has_children(path):
            raise NotEmpty(f"metadata node {path} has children")
        self._keep(path, None)
        changed |= {path, parent_of(path)}

    # -- rows ------------------------------------------------------------------------------------------
    def _row(self, path: str) -> Row:
        assert_path(path)
        row = self._rows.find(path)
        if row is None:
            raise NotFound(f"there is no metadata node {path}")
        return row

    def _row_at_version(self, path: str, version: int) -> Row:
        row = self._row(path)
        if version not in (ANY_VERSION, row.version):
            raise VersionConflict(f"metadata node {path} is at version {row.version}, not {version}")
        return row

    def _keep(self, path: str, row: Row | None) -> None:
        self._undo.append((path, self._rows.find(path)))
        self._place(path, row)

    def _roll_back(self) -> None:
        for path, row in reversed(self._undo):
            self._place(path, row)

    def _place(self, path: str, row: Row | None) -> None:
        if row is None:
            self._rows.drop(path)
        else:
            self._rows.keep(path, row)
