"""Iceberg table with a topic's copy: catalog, columns, and commits that never duplicate a slice.

| property of the table | is |
|---|---|
| quire.topic | the only topic that the table contains |
| quire.end.PARTITION | `LEDGER:ENTRY`: the first entry of the partition that is not in the table |
| quire.index.PARTITION | `LEDGER:ENTRY:INDEX`: the same, with the index of its first message, if that is known |
| commit.retry.num-retries | 0, see below |

A commit adds one slice's file and moves its partition's end, in one transaction; the snapshot contains `quire.place`
(the slice) and `quire.file`. It is an [optimistic] compare-and-set. The writer commits only if the slice begins at the
partition's end, and the catalog accepts the commit only if the table has not changed since the writer read it. After a
refusal the writer reads the table again. If the slice still begins at the end, the writer retries. Otherwise, another
writer has copied the slice, and the file is deleted. So:

- A kill before the commit leaves a file that no snapshot contains. Any tool that removes orphan files removes it.
- A kill after the commit leaves nothing to do.
- Concurrent writers copy each slice once.

pyiceberg's own retries would add a refused file even if another writer has added the same rows, so they are disabled.

[optimistic]: https://iceberg.apache.org/spec/#optimistic-concurrency

| column | is |
|---|---|
| topic … sequence | as in `quire.spark_source.schema`; `value` is always the bytes |
| typed | the value by the topic's schema, if it has one that columns can represent |
| error | why the entry could not be decoded, or the value could not be typed; null for all good rows |

The fields of `typed` are the union of all schema versions seen: they are added and widened, and never removed.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NoSuchTableError,
    TableAlreadyExistsError,
    ValidationError,
)
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.table import Table
from pyiceberg.table.update import AddSnapshotUpdate
from sqlalchemy.exc import DatabaseError

from quire.runtime.errors import ConfigurationError, NotFound, QuireError, Unavailable
from quire.spark_source import schema
from quire.spark_source.jobs.since import End, Ends

TOPIC: Final = "quire.topic"
END: Final = "quire.end."
INDEX: Final = "quire.index."
PLACE: Final = "quire.place"
FILE: Final = "quire.file"
_NO_RETRIES: Final = {"commit.retry.num-retries": "0"}

TYPED: Final = "typed"
ERROR: Final = "error"
ENVELOPE: Final = pa.schema([*schema.arrow(schema.COLUMNS), (ERROR, pa.string())])

NAME: Final = "quire"
"""Default name of the catalog."""

ATTEMPTS: Final = 12
PAUSE_S: Final = 0.05


class Place(NamedTuple):
    """Location and file IO properties with which tasks write files. It is pickled to the tasks."""

    location: str
    io: Mapping[str, str]


def open_catalog(url: str, options: Mapping[str, str] | None = None) -> Catalog:
    """Open a catalog: REST for an HTTP URL, a database for other URLs, else a directory with SQLite and the tables.

    `options` are pyiceberg's, such as tokens, keys and the warehouse. Its option `name` is the catalog's name; in a
    database, each name has its own tables.
    """
    given = dict(options or {})
    name = given.pop("name", NAME)
    with mapped(f"catalog {url}"):
        if url.startswith(("http://", "https://")):
            return load_catalog(name, **{"type": "rest", "uri": url, **given})
        if "://" in url and not url.startswith("file://"):
            return _sql_catalog(name, {"uri": url, **given})
        root = Path(url.removeprefix("file://")).absolute()
        root.mkdir(parents=True, exist_ok=True)
        place = {"uri": f"sqlite:///{root}/catalog.db", "warehouse": f"file://{root}"}
        return _sql_catalog(name, {**place, **given})


def _sql_catalog(name: str, given: Mapping[str, str]) -> Catalog:
    """Load a SQL catalog. If a concurrent caller creates the tables of a new database first, load it again."""
    try:
        return load_catalog(name, **{"type": "sql", **given})
    except DatabaseError:
        return load_catalog(name, **{"type": "sql", **given})


@contextmanager
def mapped(what: str) -> Iterator[None]:
    """Map errors of pyiceberg and its libraries to `QuireError`; a refused commit is raised unchanged."""
    try:
        yield
    except (QuireError, CommitFailedException):
        raise
    except Exception as error:
        reason = str(error).strip().partition("\n")[0]
        kind = ConfigurationError if isinstance(error, (ValueError, ValidationError)) else Unavailable
        raise kind(f"{what}: {type(error).__name__}: {reason}") from error


def is_copy_of(catalog: Catalog, name: str, topic: str) -> bool:
    """Return whether the table `name` exists and contains the topic's copy."""
    with mapped(f"table {name}"):
        try:
            return bool(catalog.load_table(name).properties.get(TOPIC) == topic)
        except NoSuchTableError:
            return False


class CopyTable:
    """Iceberg table with the copy of one topic, in the state that was read last."""

    def __init__(self, table: Table, name: str) -> None:
        self._table = table
        self.name = name
        _accept_repeated_commits(table)

    @classmethod
    def open(cls, catalog: Catalog, name: str, topic: str, *, create: bool) -> CopyTable:
        """Open or create the table. Raises `NotFound`, and `ConfigurationError` for another topic's table."""
        if name.count(".") < 1 or not all(name.split(".")):
            raise ConfigurationError(f"{name!r} is not the name of a table; write NAMESPACE.TABLE")
        with mapped(f"table {name}"):
            try:
                table = catalog.load_table(name)
            except NoSuchTableError:
                if not create:
                    raise NotFound(f"table {name} does not exist: copy a topic into it first") from None
                table = _create(catalog, name, topic)
            found = cls(table, name)
            holds = table.properties.get(TOPIC)
            if holds != topic:
                what = f"is the copy of {holds}" if holds else "is not the copy of a topic"
                raise ConfigurationError(f"table {name} {what}; set another table for {topic}")
            if table.properties.get(next(iter(_NO_RETRIES))) != "0":
                found._retry(
                    lambda: found._table.transaction().set_properties(_NO_RETRIES).commit_transaction()
                )
            return found

    @property
    def place(self) -> Place:
        return Place(f"{self._table.location()}/data", dict(self._table.io.properties))

    @property
    def ends(self) -> Ends:
        """End of each partition's copy."""
        properties = self._table.properties
        found = {}
        for key, text in properties.items():
            if key.startswith(END):
                name = key.removeprefix(END)
                known = properties.get(INDEX + name, "")
                # Older versions of Quire update the end, but not the index.
                found[name] = End(*map(int, (known if known.startswith(f"{text}:") else text).split(":")))
        return found

    @property
    def rows(self) -> int:
        snapshot = self._table.current_snapshot()
        if snapshot is None or snapshot.summary is None:
            return 0
        return int(snapshot.summary["total-records"] or 0)

    @property
    def committed_ms(self) -> int | None:
        """Time of the last snapshot."""
        snapshot = self._table.current_snapshot()
        return None if snapshot is None else snapshot.timestamp_ms

    def reload(self) -> None:
        self._table = self._table.refresh()

    def drop_file(self, path: str) -> None:
        """Delete a file that no snapshot contains."""
        with mapped(f"file {path}"):
            self._table.io.delete(path)

    # -- changes ---------------------------------------------------------------------------------------

    def unite(self, typed: pa.DataType) -> str:
        """Extend the column `typed` to values of this type. Return the reason if that is impossible, else ""."""

        def unite() -> None:
            with self._table.update_schema() as update:
                update.union_by_name(pa.schema([pa.field(TYPED, typed)]))

        try:
            with mapped(f"table {self.name}"):
                self._retry(unite)
        except ConfigurationError as error:
            return f"the topic's schema does not fit the columns of the table: {error}"
        return ""

    def commit(self, partition: str, start: End | None, end: End, path: str) -> bool:
        """Add a slice's file, unless another writer has copied from `start` on. Return whether it was added.

        Raises `Unavailable` if the outcome is unknown.
        """
        place = f"{partition} {'' if start is None else _text(start)}..{_text(end)}"
        for attempt in range(ATTEMPTS):
            if self.ends.get(partition) != start:
                return False
            try:
                with mapped(f"table {self.name}"):
                    change = self._table.transaction()
                    said = {PLACE: place, FILE: path}
                    change.add_files([path], snapshot_properties=said, check_duplicate_files=False)
                    moved = {END + partition: _text(end)}
                    if end.message_index >= 0:
                        moved[INDEX + partition] = f"{_text(end)}:{end.message_index}"
                    change.set_properties(moved)
                    change.commit_transaction()
                    return True
            except CommitFailedException:
                self._wait(attempt)
            except Unavailable:
                self.reload()
                if self._has(path):
                    return True
                raise
        raise Unavailable(
            f"table {self.name}: {place} could not be added because of concurrent commits; try again"
        )

    def restart(self) -> None:
        """Remove all rows, and reset all ends."""

        def restart() -> None:
            change = self._table.transaction()
            change.delete(AlwaysTrue())
            change.remove_properties(*(key for key in self._table.properties if key.startswith((END, INDEX))))
            change.commit_transaction()

        with mapped(f"table {self.name}"):
            self._retry(restart)

    def _has(self, path: str) -> bool:
        summaries = (one.summary for one in self._table.snapshots())
        return any(one is not None and one.additional_properties.get(FILE) == path for one in summaries)

    def _retry(self, change: Any) -> None:
        """Make a change that is correct whatever concurrent writers commit, and retry it when it is refused."""
        for attempt in range(ATTEMPTS):
            try:
                change()
                return
            except CommitFailedException:
                self._wait(attempt)
        raise Unavailable(f"table {self.name} could not be changed because of concurrent commits; try again")

    def _wait(self, attempt: int) -> None:
        time.sleep(PAUSE_S * min(2**attempt, 32) * random.random())
        self.reload()


def _accept_repeated_commits(table: Table) -> None:
    """Patch `table` to treat a refused commit as successful if the table has the commit's snapshots.

    A proxy that lost the response to a commit may send it again, and the catalog refuses the second one. pyiceberg
    would then delete the manifests, although the table uses them.
    """
    commit = table._do_commit

    def commit_or_confirm(updates: Any, requirements: Any) -> None:
        try:
            commit(updates=updates, requirements=requirements)
        except CommitFailedException:
            made = [one.snapshot.snapshot_id for one in updates if isinstance(one, AddSnapshotUpdate)]
            table.refresh()
            if not made or any(table.snapshot_by_id(number) is None for number in made):
                raise

    table._do_commit = commit_or_confirm  # type: ignore[method-assign]


def _create(catalog: Catalog, name: str, topic: str) -> Table:
    namespace = name.rpartition(".")[0]
    try:
        catalog.create_namespace_if_not_exists(namespace)
    except Exception:  # each catalog has its own error for a namespace that was created concurrently
        if not catalog.namespace_exists(namespace):
            raise
    try:
        return catalog.create_table(name, schema=ENVELOPE, properties={TOPIC: topic, **_NO_RETRIES})
    except TableAlreadyExistsError:
        return catalog.load_table(name)


def _text(end: End) -> str:
    return f"{end.ledger_id}:{end.entry_id}"
