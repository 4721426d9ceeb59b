"""The Iceberg table that a topic is copied into: its catalog, its columns, and commits that never double a slice.

| property of the table | is |
|---|---|
| quire.topic | the topic; a table has one |
| quire.end.PARTITION | `LEDGER:ENTRY`: the first entry of the partition that is not in the table |
| commit.retry.num-retries | 0, see below |

A commit adds one slice's file and moves its partition's end, in one transaction; the snapshot says `quire.place` (the
slice) and `quire.file`. It is made only if the end is where the slice begins, and a catalog takes it only if nobody has
committed since that was read. Who is refused reads the table again: is the end still where the slice begins, it tries
anew; else somebody has copied the slice, and the file is dropped. So a kill before the commit leaves a file that no
snapshot names (any tool that removes orphan files removes it), one after it leaves nothing to do, and two writers copy
each slice once. The library's own retries would put a refused file on top of what the other one wrote, so they are off.

| column | is |
|---|---|
| topic … sequence | as in `quire.spark_source.schema`; `value` is always the bytes |
| typed | the value by the topic's schema, where it has one that columns can hold |
| error | why there are no messages, or no typed value, in what is there; null for all good rows |

The fields of `typed` are the union over all versions seen: they are added and widened, and never taken away.
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
from sqlalchemy.exc import DatabaseError

from quire.runtime.errors import ConfigurationError, NotFound, QuireError, Unavailable
from quire.spark_source import schema
from quire.spark_source.jobs.since import Ends
from quire.spark_source.positions import Position

TOPIC: Final = "quire.topic"
END: Final = "quire.end."
PLACE: Final = "quire.place"
FILE: Final = "quire.file"
_NO_RETRIES: Final = {"commit.retry.num-retries": "0"}

TYPED: Final = "typed"
ERROR: Final = "error"
ENVELOPE: Final = pa.schema([*schema.arrow(schema.COLUMNS), (ERROR, pa.string())])

ATTEMPTS: Final = 12
PAUSE_S: Final = 0.05


class Place(NamedTuple):
    """Where tasks write files; a plain thing."""

    location: str
    io: Mapping[str, str]


def open_catalog(url: str, options: Mapping[str, str] | None = None) -> Catalog:
    """A REST catalog for an HTTP URL, one in a database for that of another kind; else a directory, in which the
    catalog is SQLite and the tables lie beside it. `options` are pyiceberg's: tokens, keys, the warehouse."""
    given = dict(options or {})
    with mapped(f"catalog {url}"):
        if url.startswith(("http://", "https://")):
            return load_catalog("quire", **{"type": "rest", "uri": url, **given})
        if "://" in url and not url.startswith("file://"):
            return _sql_catalog({"uri": url, **given})
        root = Path(url.removeprefix("file://")).absolute()
        root.mkdir(parents=True, exist_ok=True)
        place = {"uri": f"sqlite:///{root}/catalog.db", "warehouse": f"file://{root}"}
        return _sql_catalog({**place, **given})


def _sql_catalog(given: Mapping[str, str]) -> Catalog:
    """Two that open a new database at once both make its tables, and one is refused: then they are there."""
    try:
        return load_catalog("quire", **{"type": "sql", **given})
    except DatabaseError:
        return load_catalog("quire", **{"type": "sql", **given})


@contextmanager
def mapped(what: str) -> Iterator[None]:
    """Errors of pyiceberg and what is below it as ours; a refused commit stays what it is."""
    try:
        yield
    except (QuireError, CommitFailedException):
        raise
    except Exception as error:
        reason = str(error).strip().partition("\n")[0]
        kind = ConfigurationError if isinstance(error, (ValueError, ValidationError)) else Unavailable
        raise kind(f"{what}: {type(error).__name__}: {reason}") from error


class CopyTable:
    """The table of one topic, as it was read last."""

    def __init__(self, table: Table, name: str) -> None:
        self._table = table
        self.name = name

    @classmethod
    def open(cls, catalog: Catalog, name: str, topic: str, *, create: bool) -> CopyTable:
        """Raises `NotFound` where there is none and none is made, `ConfigurationError` for another topic's."""
        if name.count(".") < 1 or not all(name.split(".")):
            raise ConfigurationError(f"{name!r} is not the name of a table; write NAMESPACE.TABLE")
        with mapped(f"table {name}"):
            try:
                table = catalog.load_table(name)
            except NoSuchTableError:
                if not create:
                    raise NotFound(f"there is no table {name}: copy a topic into it first") from None
                table = _create(catalog, name, topic)
            found = cls(table, name)
            holds = table.properties.get(TOPIC)
            if holds != topic:
                what = f"is the copy of {holds}" if holds else "is not the copy of a topic"
                raise ConfigurationError(f"table {name} {what}: give another table for {topic}")
            if table.properties.get(next(iter(_NO_RETRIES))) != "0":
                found._again(
                    lambda: found._table.transaction().set_properties(_NO_RETRIES).commit_transaction()
                )
            return found

    @property
    def place(self) -> Place:
        return Place(f"{self._table.location()}/data", dict(self._table.io.properties))

    @property
    def ends(self) -> Ends:
        """How far each partition is copied."""
        return {
            key.removeprefix(END): _position(text)
            for key, text in self._table.properties.items()
            if key.startswith(END)
        }

    @property
    def rows(self) -> int:
        snapshot = self._table.current_snapshot()
        if snapshot is None or snapshot.summary is None:
            return 0
        return int(snapshot.summary["total-records"] or 0)

    @property
    def committed_ms(self) -> int | None:
        """When the last snapshot was made."""
        snapshot = self._table.current_snapshot()
        return None if snapshot is None else snapshot.timestamp_ms

    def reload(self) -> None:
        self._table = self._table.refresh()

    def drop_file(self, path: str) -> None:
        """A file that no snapshot names."""
        with mapped(f"file {path}"):
            self._table.io.delete(path)

    # -- changes ---------------------------------------------------------------------------------------

    def unite(self, typed: pa.DataType) -> str:
        """See that the column `typed` can hold values of this type; returns why not, if it cannot."""

        def unite() -> None:
            with self._table.update_schema() as update:
                update.union_by_name(pa.schema([pa.field(TYPED, typed)]))

        try:
            with mapped(f"table {self.name}"):
                self._again(unite)
        except ConfigurationError as error:
            return f"the topic's schema does not go with the columns of the table: {error}"
        return ""

    def commit(self, partition: str, start: Position | None, end: Position, path: str) -> bool:
        """Add a slice's file, unless somebody else has copied from `start` on; returns whether it was added.

        Raises `Unavailable` when the catalog does not say.
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
                    change.set_properties({END + partition: _text(end)})
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
            f"table {self.name}: others commit so often that {place} could not be added; try again"
        )

    def restart(self) -> None:
        """Nothing is in the table, and nothing is copied."""

        def restart() -> None:
            change = self._table.transaction()
            change.delete(AlwaysTrue())
            change.remove_properties(*(key for key in self._table.properties if key.startswith(END)))
            change.commit_transaction()

        with mapped(f"table {self.name}"):
            self._again(restart)

    def _has(self, path: str) -> bool:
        summaries = (one.summary for one in self._table.snapshots())
        return any(one is not None and one.additional_properties.get(FILE) == path for one in summaries)

    def _again(self, change: Any) -> None:
        """A change that may be made on top of whatever others have made."""
        for attempt in range(ATTEMPTS):
            try:
                change()
                return
            except CommitFailedException:
                self._wait(attempt)
        raise Unavailable(
            f"table {self.name}: others commit so often that it could not be changed; try again"
        )

    def _wait(self, attempt: int) -> None:
        time.sleep(PAUSE_S * min(2**attempt, 32) * random.random())
        self.reload()


def _create(catalog: Catalog, name: str, topic: str) -> Table:
    namespace = name.rpartition(".")[0]
    try:
        catalog.create_namespace_if_not_exists(namespace)
    except Exception:  # each catalog has its own for a namespace that somebody makes at the same moment
        if not catalog.namespace_exists(namespace):
            raise
    try:
        return catalog.create_table(name, schema=ENVELOPE, properties={TOPIC: topic, **_NO_RETRIES})
    except TableAlreadyExistsError:
        return catalog.load_table(name)


def _position(text: str) -> Position:
    ledger, _, entry = text.partition(":")
    return Position(int(ledger), int(entry))


def _text(position: Position) -> str:
    return f"{position.ledger_id}:{position.entry_id}"
