"""Dependencies that the ledgers of one process share: store, bookies, outboxes, background work."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import Final, NamedTuple

from quire.ledger.deletion import Deletion, Silent
from quire.ledger.directory import BookieDirectory
from quire.ledger.idle import IdleLacs
from quire.ledger.ids import Claim, LedgerIds, no_claim
from quire.ledger.narrow import Narrow
from quire.ledger.outbox import Outboxes
from quire.ledger.placement import EnsemblePlacement, Quarantine
from quire.ledger.replicas import Replicas
from quire.ledger.settings import LedgerSettings
from quire.ledger.writer_core import Lag
from quire.metadata.records import BookieRecord, LedgerRecord, PersistencePolicy, Storage
from quire.metadata.store import MetadataStore
from quire.metadata.underreplicated import Reports
from quire.runtime.clock import Clock
from quire.runtime.errors import ConfigurationError, Unavailable
from quire.runtime.tasks import Tasks
from quire.runtime.turn import EndOfTurn
from quire.wire.bookie import BookieId

Guard = Callable[[str], Awaitable[object]]
"""Check before a command gives up data: confirms that the metadata store is complete and belongs to this cluster.

Otherwise, a record that is missing from the store would not prove a deletion. The argument describes data that were
found without a record; "" if there are none. Raises `WrongCluster`, `Unavailable`. The process passes the check to this
package, because it reads object stores, which this package must not import (`identity.guard`).
"""


async def unguarded(found: str) -> None:
    """Accept the metadata store without a check, because the process has no cluster. A `Guard`."""


class Home(NamedTuple):
    """Location of a process: its rack, and the cluster id that its metadata store must have ("" without a cluster).

    `guard` and `claim` are the process's checks against its object stores.
    """

    rack: str = ""
    cluster: str = ""
    guard: Guard = unguarded
    claim: Claim = no_claim


NOWHERE: Final = Home()


class LedgerContext:
    """Dependencies shared by the ledgers of one process."""

    def __init__(
        self,
        store: MetadataStore,
        bookies: BookieDirectory,
        clock: Clock,
        rng: Random,
        settings: LedgerSettings,
        home: Home,
        quarantine_s: float,
    ) -> None:
        self.store = store
        self.home = home
        self.bookies = bookies
        self.ids = LedgerIds(store, bookies, home.claim)
        self.clock = clock
        self.settings = settings
        self.tasks = Tasks("ledgers")
        self.loads: Counter[BookieId] = Counter()
        """Number of this process's open ledgers on each bookie."""
        quarantine = Quarantine(clock.monotonic, quarantine_s)
        self.placement = EnsemblePlacement(self.loads, rng.random, quarantine)
        at_end = EndOfTurn().call
        self.outboxes = Outboxes(bookies.port, at_end)
        self.lag = Lag()
        self.replicas = Replicas(bookies, clock, quarantine, home.rack)
        self.narrow = Narrow()
        self.idle = IdleLacs(self.tasks, settings.idle_lac_ms)
        self.reports = Reports(store, clock)

    def place(self, persistence: PersistencePolicy) -> tuple[int, int, list[BookieId]]:
        """Return write quorum, ack quorum and ensemble of a new ledger. Raises `Unavailable`, `ConfigurationError`."""
        if (persistence.storage or self.bookies.storage) is Storage.OBJECTS:
            wal = self.bookies.own_wal()
            if wal is None:
                raise Unavailable(
                    "this broker has no write-ahead log on object storage: start it with --wal, or read the reason at "
                    "/health"
                )
            return 1, 1, [wal]
        width = persistence.write_quorum or self.settings.write_quorum
        quorum = persistence.ack_quorum or min(self.settings.ack_quorum, width)
        if not 1 <= quorum <= width:
            raise ConfigurationError(f"ack quorum {quorum} must lie between 1 and write quorum {width}")
        return width, quorum, self.placement.new_ensemble(width, quorum, self.bookies.available())

    def takers(self, storage: Storage) -> Sequence[BookieRecord]:
        """Return the running bookies, or for `Storage.OBJECTS` the write-ahead log of this process, if it has one."""
        if storage is Storage.BOOKIES:
            return self.bookies.available()
        wal = self.bookies.own_wal()
        return [BookieRecord(*wal)] if wal is not None else []

    def closed(self, record: LedgerRecord, *, is_whole: bool) -> None:
        """Report a ledger that this process closed, if a copy may be missing or incomplete.

        `is_whole`: every bookie of the last ensemble has acknowledged all its blocks. This is unknown for the bookies
        of earlier fragments, and after a recovery. A ledger with one copy is always complete.
        """
        if not is_whole and record.write_quorum > 1:
            self.reports.may_lack(record.ledger_id, "closed while a bookie may have lacked blocks")
        elif [len(each.bookies) for each in record.fragments] != [record.write_quorum]:
            self.reports.may_lack(record.ledger_id, "closed narrow, or after an ensemble change")

    async def delete(self, ledger_id: int, *, buries: bool = True) -> None:
        """Delete a ledger (see `Deletion.run`). If a bookie missed the deletion, report the ledger to repair."""
        try:
            await Deletion(self.store, self.bookies, self.home.cluster).run(ledger_id, buries=buries)
        except Silent:
            self.reports.may_lack(ledger_id, "a bookie missed its deletion")
            raise

    async def stop(self) -> None:
        """Store the pending reports of under-replicated ledgers, then stop background work."""
        self.idle.stop()
        self.narrow.stop()
        await self.reports.stop()
        await self.tasks.stop()
