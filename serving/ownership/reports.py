"""Load reports: the registered brokers, their bundles, and the loads of the bundles.

Each broker writes one record when its loads have changed considerably, and watches the records of the other brokers.
A report is up to three seconds old. `sent` counts the clients that were sent to a broker since its last report, so that
consecutive bundles do not all go to the broker that was the least loaded one at the time of the reports.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import Final

from quire import __version__
from quire.metadata import paths
from quire.metadata.followed import Followed
from quire.metadata.records import BrokerRecord, BundleReport, LoadRecord, encode
from quire.metadata.store import ANY_VERSION, MetadataStore
from quire.runtime.errors import NotFound, OutcomeUnknown, Unavailable
from quire.runtime.tasks import Tasks
from quire.serving.ownership import balance
from quire.serving.ownership.port import BrokerStats, BundleHost, BundleLoad, BundleStats
from quire.serving.ownership.table import BundleTable

CHANGED_ENOUGH: Final = 0.1
_NO_LOAD: Final = BundleLoad(balance.BUNDLE, 0)


class Reports:
    """Load reports of all brokers; `me` is this broker, `table` contains its bundles."""

    def __init__(self, store: MetadataStore, me: str, table: BundleTable, tasks: Tasks) -> None:
        self._store = store
        self._me = me
        self._table = table
        self._registered = Followed(store, paths.BROKERS, BrokerRecord, tasks)
        self._loads = Followed(store, paths.LOADS, LoadRecord, tasks)
        self.sent: Counter[str] = Counter()
        """Number of clients sent to each broker since its last report; they count as load there."""
        self._written: LoadRecord | None = None
        self._lag_s: Callable[[], float] = lambda: 0.0
        self._cannot_write: Callable[[], str] = lambda: ""

    async def start(self, host: BundleHost) -> None:
        """Read and watch the reports. `host` returns this broker's loads. Raises `Unavailable`."""
        self._host = host
        await self._registered.start()
        await self._loads.start()

    def set_lag_source(self, lag_s: Callable[[], float]) -> None:
        """Set the source of this broker's recent event loop lag, in seconds, which is part of the report."""
        self._lag_s = lag_s

    def set_cannot_write_source(self, why: Callable[[], str]) -> None:
        """Set the source of the reason why this broker cannot write (empty if it can), which is part of the report."""
        self._cannot_write = why

    async def stop(self) -> None:
        """Delete this broker's report, and stop watching the others."""
        try:
            await self._store.delete(paths.load(self._me), ANY_VERSION)
        except (NotFound, Unavailable, OutcomeUnknown):
            pass  # The store deletes the report with the session.
        self._registered.stop()
        self._loads.stop()

    # -- this broker's report --------------------------------------------------------------------------

    def _mine(self) -> LoadRecord:
        loads = self._host.bundle_loads()
        reports = {}
        for bundle in self._table.names():
            held, load = self._table.get(bundle), loads.get(bundle, _NO_LOAD)
            assert held is not None
            reports[bundle] = BundleReport(
                load=round(load.load, 1), topics=load.topics, since_ms=held.since_ms, why=held.why
            )
        return LoadRecord(
            bundles=reports, lag_ms=round(self._lag_s() * 1000), cannot_write=self._cannot_write()
        )

    async def write(self) -> None:
        """Write this broker's report if it changed considerably or does not exist.

        The store deletes the node of an earlier session of this broker with that session. Raises `Unavailable`,
        `OutcomeUnknown`.
        """
        report, before = self._mine(), self._written
        is_there = self._me in self._loads.records
        if before is not None and is_there and not _differs(before, report):
            return
        path, value = paths.load(self._me), encode(report)
        self._written = None  # Until the store answers, either report may be stored.
        try:
            await self._store.put(path, value, ANY_VERSION)
        except NotFound:
            await self._store.create(path, value, ephemeral=True)
        self._written = report
        self.sent.clear()

    def lost(self) -> None:
        """Handle the end of the session, with which the store deleted this broker's report."""
        self._written = None

    # -- all brokers -----------------------------------------------------------------------------------

    def registered(self) -> dict[str, BrokerRecord]:
        return dict(self._registered.records)

    def of_other_versions(self) -> list[str]:
        """Return the brokers that run a different version of Quire from this one."""
        return sorted(name for name, one in self.registered().items() if one.version != __version__)

    def reported(self) -> Collection[str]:
        """Return the brokers that have a report."""
        return self._loads.records.keys()

    def loads(self) -> dict[str, dict[str, float]]:
        """Return the loads of each registered broker's bundles, by the last reports; this broker's are current."""
        loads: dict[str, dict[str, float]] = {broker: {} for broker in self._registered.records}
        loads[self._me] = {}
        return {broker: {name: one.load for name, one in self._of(broker).items()} for broker in loads}

    def lags(self) -> dict[str, float]:
        """Return the event loop lag of each registered broker, in seconds; see `balance`."""
        told = {broker: one.lag_ms / 1000 for broker, one in self._loads.records.items()}
        return {broker: told.get(broker, 0.0) for broker in self._registered.records} | {
            self._me: self._lag_s()
        }

    def cannot_write(self) -> dict[str, str]:
        """Map each registered broker that cannot write to the reason."""
        told = {broker: one.cannot_write for broker, one in self._loads.records.items()}
        told |= {self._me: self._cannot_write()}
        return {broker: why for broker in self._registered.records if (why := told.get(broker))}

    def unfit(self) -> set[str]:
        """Return the brokers that cannot write while another one can; see `balance.unfit`."""
        return balance.unfit(self._registered.records, self.cannot_write())

    def why_unfit(self) -> str:
        """Return why this broker cannot write while others can; an empty string if it can, or if no broker can."""
        why = self._cannot_write()
        return f"this broker cannot write, but others can: {why}" if why and self._me in self.unfit() else ""

    def least_loaded(self, brokers: Mapping[str, BrokerRecord]) -> str:
        """Choose the least loaded of `brokers`; clients that were sent there since the last report count as load.

        A broker that lags is chosen only if every broker that can write lags.
        """
        lags, unfit = self.lags(), self.unfit()
        fit = {broker for broker in brokers if broker not in unfit} or set(brokers)
        awake = {broker for broker in fit if lags.get(broker, 0.0) < balance.LAG_S}
        totals = {broker: sum(loads.values()) + self.sent[broker] for broker, loads in self.loads().items()}
        return balance.least_loaded({broker: totals.get(broker, 0.0) for broker in awake or fit})

    def _of(self, broker_id: str) -> Mapping[str, BundleReport]:
        if broker_id == self._me:
            return self._mine().bundles
        report = self._loads.records.get(broker_id)
        return {} if report is None else report.bundles

    # -- for operators ---------------------------------------------------------------------------------

    def brokers(self) -> list[BrokerStats]:
        """Return a row for each broker, sorted by name."""
        cannot_write = self.cannot_write()
        return [
            _broker_stats(broker, self._of(broker_id), cannot_write.get(broker_id, ""))
            for broker_id, broker in sorted(self._registered.records.items())
        ]

    def bundles(self) -> list[BundleStats]:
        """Return a row for each owned bundle, sorted by name."""
        rows = [
            BundleStats(bundle, broker_id, one.topics, one.load, one.since_ms, one.why)
            for broker_id in self._registered.records
            for bundle, one in self._of(broker_id).items()
        ]
        return sorted(rows, key=lambda row: (row.bundle, row.broker))


def _broker_stats(broker: BrokerRecord, report: Mapping[str, BundleReport], cannot_write: str) -> BrokerStats:
    return BrokerStats(
        broker=broker.broker_id,
        service_url=broker.service_url,
        service_url_tls=broker.service_url_tls,
        http_url=broker.http_url,
        http_url_tls=broker.http_url_tls,
        version=broker.version,
        started_ms=broker.started_ms,
        bundles=len(report),
        topics=sum(one.topics for one in report.values()),
        load=round(sum(one.load for one in report.values()), 1),
        cannot_write=cannot_write,
    )


def _differs(before: LoadRecord, now: LoadRecord) -> bool:
    """Return whether two reports differ considerably.

    They do if the bundles, the ability to write, or the state of lagging changed, or if the load of a bundle changed by
    more than a tenth and by more than `balance.SLACK / 10`.
    """
    if before.bundles.keys() != now.bundles.keys() or before.cannot_write != now.cannot_write:
        return True
    if (before.lag_ms >= balance.LAG_S * 1000) != (now.lag_ms >= balance.LAG_S * 1000):
        return True
    return any(
        abs(one.load - before.bundles[bundle].load)
        > max(CHANGED_ENOUGH * before.bundles[bundle].load, balance.SLACK / 10)
        for bundle, one in now.bundles.items()
    )
