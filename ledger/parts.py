"""What the ledgers of one process share: the store, who the bookies are, outboxes, queues of work."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from random import Random

from quire.ledger.deletion import Deletion, Silent
from quire.ledger.directory import BookieDirectory
from quire.ledger.idle import IdleLacs
from quire.ledger.narrow import Narrow
from quire.ledger.outbox import Outbox
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


class LedgerContext:
    """What the ledgers of one process share. `rack` is the process's own, "" when it has none."""

    def __init__(
        self,
        store: MetadataStore,
        bookies: BookieDirectory,
        clock: Clock,
        rng: Random,
        settings: LedgerSettings,
        rack: str,
        quarantine_s: float,
    ) -> None:
        self.store = store
        self.bookies = bookies
        self.clock = clock
        self.settings = settings
        self.tasks = Tasks("ledgers")
        self.loads: Counter[BookieId] = Counter()
        """Open ledgers of this process on each bookie."""
        quarantine = Quarantine(clock.monotonic, quarantine_s)
        self.placement = EnsemblePlacement(self.loads, rng.random, quarantine)
        at_end = EndOfTurn().call
        self.outbox = Outbox(bookies.port, at_end)
        self.recovery_outbox = Outbox(bookies.port, at_end, recovery=True, priority=True)
        self.priority_outbox = Outbox(bookies.port, at_end, priority=True)
        self.lag = Lag()
        self.replicas = Replicas(bookies, clock, quarantine, rack)
        self.narrow = Narrow()
        self.idle = IdleLacs(self.tasks, settings.idle_lac_ms)
        self.reports = Reports(store, clock)

    def place(self, persistence: PersistencePolicy) -> tuple[int, int, list[BookieId]]:
        """Write quorum, ack quorum and ensemble of a new ledger. Raises `Unavailable`, `ConfigurationError`."""
        if (persistence.storage or self.bookies.storage) is Storage.OBJECTS:
            wal = self.bookies.own_wal()
            if wal is None:
                raise Unavailable(
                    "this broker has no write-ahead log on object storage: start it with --wal, or see its /health"
                )
            return 1, 1, [wal]
        width = persistence.write_quorum or self.settings.write_quorum
        quorum = persistence.ack_quorum or min(self.settings.ack_quorum, width)
        if not 1 <= quorum <= width:
            raise ConfigurationError(f"ack quorum {quorum} must lie between 1 and write quorum {width}")
        return width, quorum, self.placement.new_ensemble(width, quorum, self.bookies.available())

    def takers(self, storage: Storage) -> Sequence[BookieRecord]:
        """Who may be asked to take new blocks."""
        if storage is Storage.BOOKIES:
            return self.bookies.available()
        wal = self.bookies.own_wal()
        return [BookieRecord(*wal)] if wal is not None else []

    def closed(self, record: LedgerRecord, *, is_whole: bool) -> None:
        """`record` has just been closed by this process: report it if some copy may be missing, or lack blocks.

        `is_whole`: every bookie it names now answered every block. Ones before an ensemble change need not have, and a
        recovery cannot know. The only copy lacks nothing.
        """
        if not is_whole and record.write_quorum > 1:
            self.reports.may_lack(record.ledger_id, "closed while a bookie may have lacked blocks")
        elif [len(each.bookies) for each in record.fragments] != [record.write_quorum]:
            self.reports.may_lack(record.ledger_id, "closed narrow, or after it left a bookie")

    async def delete(self, ledger_id: int) -> None:
        """See `Deletion.run`; what it cannot finish is reported."""
        try:
            await Deletion(self.store, self.bookies).run(ledger_id)
        except Silent:
            self.reports.may_lack(ledger_id, "a bookie missed its deletion")
            raise

    async def stop(self) -> None:
        """End background work, but tell the store first which ledgers may lack copies."""
        self.idle.stop()
        self.narrow.stop()
        await self.reports.stop()
        await self.tasks.stop()
