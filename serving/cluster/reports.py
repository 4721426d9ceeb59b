"""What brokers tell of themselves: who there is, which bundles each has, and how much load they are.

Each broker writes one record when its loads changed enough to matter, and follows those of the others. `sent` counts
the clients that were sent to a broker since the last report, so that two bundles in a row do not go to one broker
because its report is three seconds old.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from quire import __version__
from quire.metadata import paths
from quire.metadata.followed import Followed
from quire.metadata.records import BrokerRecord, BundleReport, LoadRecord, encode
from quire.metadata.store import ANY_VERSION, MetadataStore
from quire.runtime.errors import NotFound, OutcomeUnknown, Unavailable
from quire.runtime.tasks import Tasks
from quire.serving.cluster import balance
from quire.serving.cluster.port import BundleHost, BundleLoad
from quire.serving.cluster.table import BundleTable

CHANGED_ENOUGH: Final = 0.1
_NO_LOAD: Final = BundleLoad(balance.BUNDLE, 0)


class Reports:
    """`me` is this broker, `table` its bundles."""

    def __init__(self, store: MetadataStore, me: str, table: BundleTable, tasks: Tasks) -> None:
        self._store = store
        self._me = me
        self._table = table
        self._registered = Followed(store, paths.BROKERS, BrokerRecord, tasks)
        self._loads = Followed(store, paths.LOADS, LoadRecord, tasks)
        self.sent: Counter[str] = Counter()
        """Clients that were sent to each broker since the last report, and will bring load."""
        self._written: LoadRecord | None = None
        self._lag_s: Callable[[], float] = lambda: 0.0
        self._cannot_write: Callable[[], str] = lambda: ""

    async def start(self, host: BundleHost) -> None:
        """Read what there is and follow it. `host` tells this broker's loads. Raises `Unavailable`."""
        self._host = host
        await self._registered.start()
        await self._loads.start()

    def tell_lag(self, lag_s: Callable[[], float]) -> None:
        """How late this broker's event loop was lately, in seconds: told with its loads."""
        self._lag_s = lag_s

    def tell_cannot_write(self, why: Callable[[], str]) -> None:
        """Why this broker cannot write, empty when it can: told with its loads."""
        self._cannot_write = why

    async def stop(self) -> None:
        """Take this broker's loads away, and follow nothing any more."""
        try:
            await self._store.delete(paths.load(self._me), ANY_VERSION)
        except (NotFound, Unavailable, OutcomeUnknown):
            pass  # it goes with the session
        self._registered.stop()
        self._loads.stop()

    # -- this broker's ---------------------------------------------------------------------------------

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
        """Write this broker's loads, if they changed enough to matter, or are gone.

        A node of an earlier session of this broker goes when the store ends that. Raises `Unavailable`,
        `OutcomeUnknown`.
        """
        report, before = self._mine(), self._written
        is_there = self._me in self._loads.records
        if before is not None and is_there and not _differs(before, report):
            return
        path, value = paths.load(self._me), encode(report)
        self._written = None  # until the store answers: what it did not answer may be written all the same
        try:
            await self._store.put(path, value, ANY_VERSION)
        except NotFound:
            await self._store.create(path, value, ephemeral=True)
        self._written = report
        self.sent.clear()

    def lost(self) -> None:
        """The record went with the session."""
        self._written = None

    # -- everybody's -----------------------------------------------------------------------------------

    def registered(self) -> dict[str, BrokerRecord]:
        return dict(self._registered.records)

    def of_other_versions(self) -> list[str]:
        """Brokers that run another version of Quire than this one."""
        return sorted(name for name, one in self.registered().items() if one.version != __version__)

    def reported(self) -> Collection[str]:
        """The brokers whose loads are known."""
        return self._loads.records.keys()

    def loads(self) -> dict[str, dict[str, float]]:
        """Of each registered broker, by the last reports; this broker's own as it is now."""
        loads: dict[str, dict[str, float]] = {broker: {} for broker in self._registered.records}
        loads[self._me] = {}
        return {broker: {name: one.load for name, one in self._of(broker).items()} for broker in loads}

    def lags(self) -> dict[str, float]:
        """Of each registered broker, in seconds; see `balance`."""
        told = {broker: one.lag_ms / 1000 for broker, one in self._loads.records.items()}
        return {broker: told.get(broker, 0.0) for broker in self._registered.records} | {
            self._me: self._lag_s()
        }

    def cannot_write(self) -> dict[str, str]:
        """Of each registered broker that cannot write, why."""
        told = {broker: one.cannot_write for broker, one in self._loads.records.items()}
        told |= {self._me: self._cannot_write()}
        return {broker: why for broker in self._registered.records if (why := told.get(broker))}

    def unfit(self) -> set[str]:
        """See `balance`."""
        return balance.unfit(self._registered.records, self.cannot_write())

    def why_unfit(self) -> str:
        """Why this broker should own nothing now, while others can; empty when it may."""
        why = self._cannot_write()
        return f"this broker cannot write, and others can: {why}" if why and self._me in self.unfit() else ""

    def least_loaded(self, brokers: Mapping[str, BrokerRecord]) -> str:
        """Of `brokers`, and the clients that were sent there since the last report.

        One that lags is chosen last but for those that cannot write.
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

    # -- for people ------------------------------------------------------------------------------------

    def brokers(self) -> list[dict[str, Any]]:
        """A row for each broker, by name."""
        cannot_write = self.cannot_write()
        return [
            _broker_row(broker, self._of(broker_id), cannot_write.get(broker_id, ""))
            for broker_id, broker in sorted(self._registered.records.items())
        ]

    def bundles(self) -> list[dict[str, Any]]:
        """A row for each bundle that is owned, by name."""
        rows = [
            {
                "bundle": bundle,
                "broker": broker_id,
                "topics": one.topics,
                "load": one.load,
                "sinceMs": one.since_ms,
                "why": one.why,
            }
            for broker_id in self._registered.records
            for bundle, one in self._of(broker_id).items()
        ]
        return sorted(rows, key=lambda row: (str(row["bundle"]), str(row["broker"])))


def _broker_row(
    broker: BrokerRecord, report: Mapping[str, BundleReport], cannot_write: str
) -> dict[str, Any]:
    return {
        "broker": broker.broker_id,
        "serviceUrl": broker.service_url,
        "serviceUrlTls": broker.service_url_tls,
        "httpUrl": broker.http_url,
        "httpUrlTls": broker.http_url_tls,
        "version": broker.version,
        "startedMs": broker.started_ms,
        "bundles": len(report),
        "topics": sum(one.topics for one in report.values()),
        "load": round(sum(one.load for one in report.values()), 1),
        "cannotWrite": cannot_write,
    }


def _differs(before: LoadRecord, now: LoadRecord) -> bool:
    """Other bundles, a load that moved by more than a tenth and more than a little, or what others judge by."""
    if before.bundles.keys() != now.bundles.keys() or before.cannot_write != now.cannot_write:
        return True
    if (before.lag_ms >= balance.LAG_S * 1000) != (now.lag_ms >= balance.LAG_S * 1000):
        return True
    return any(
        abs(one.load - before.bundles[bundle].load)
        > max(CHANGED_ENOUGH * before.bundles[bundle].load, balance.SLACK / 10)
        for bundle, one in now.bundles.items()
    )
