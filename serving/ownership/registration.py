"""Registration of this broker in the list of brokers: one ephemeral node with a lease (`metadata.lease`).

| state of the session | serves its topics | answers lookups, acquires bundles | next state |
|---|---|---|---|
| held | yes | yes | suspended: *in doubt*; over: *lost* |
| in doubt | yes | no: "try again" | resumed: *held*; over, or timed out by this broker's clock: *lost* |
| lost | no, all were dropped | no | registered again: *held*, owning nothing |

ZooKeeper deletes all nodes of a session together, so there is one time-out for all bundles.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from quire import __version__
from quire.metadata import paths
from quire.metadata.lease import Lease, LeaseState
from quire.metadata.records import BrokerRecord, encode
from quire.metadata.store import MetadataStore
from quire.runtime.clock import Clock
from quire.runtime.errors import ConfigurationError, OutcomeUnknown, Unavailable
from quire.runtime.tasks import Tasks
from quire.serving.ownership.port import Addresses, Owner

RETRY_S: Final = 0.25

PATIENCE_S: Final = 2.0
"""Maximum time, in seconds, from the session's time-out until the store has deleted the nodes of a dead broker."""

_log = logging.getLogger(__name__)


class BrokerRegistration:
    """Registration of this broker. `lost` is called when the session ends; `unique` returns an id of this process."""

    def __init__(
        self,
        store: MetadataStore,
        clock: Clock,
        broker_id: str,
        tasks: Tasks,
        unique: Callable[[], str],
        lost: Callable[[], None],
    ) -> None:
        self._store = store
        self._clock = clock
        self.broker_id = broker_id
        self._tasks = tasks
        self._unique = unique
        self._lost = lost
        self._heard = asyncio.Event()
        """Event that is set by each notification of the store about the session."""
        self.patience_s = store.session_timeout_ms / 1000 + PATIENCE_S
        self.is_stopping = False
        self.sessions_lost_total = 0

    async def start(self, addresses: Addresses) -> None:
        """Register this broker. Raises `ConfigurationError` if another broker has its name."""
        self.me = BrokerRecord(
            broker_id=self.broker_id,
            service_url=addresses.service_url,
            http_url=addresses.http_url,
            started_ms=self._clock.now_ms(),
            session=self._unique(),
            listeners=dict(addresses.listeners),
            service_url_tls=addresses.service_url_tls,
            http_url_tls=addresses.http_url_tls,
            listeners_tls=dict(addresses.listeners_tls),
            version=__version__,
        )
        self.lease = Lease(
            self._store, paths.broker(self.broker_id), encode(self.me), self._clock, self._changed
        )
        self._unwatch = self._store.on_session(lambda _: self._heard.set())
        try:  # The node of this broker's former, killed process exists until its session ends.
            async with asyncio.timeout(self.patience_s):
                await self.lease.acquire()
        except TimeoutError:
            await self.lease.release()
            raise ConfigurationError(
                f"another broker is registered as {self.broker_id}; give each broker a different --advertise address"
            ) from None

    async def stop(self) -> None:
        """Remove this broker from the list, so that no client is sent to it. It still owns its bundles."""
        self.is_stopping = True
        self._unwatch()
        await self.lease.release()

    # -- the session -----------------------------------------------------------------------------------

    def _changed(self, state: LeaseState) -> None:
        if state is LeaseState.IN_DOUBT:
            _log.warning(
                "metadata store does not answer, topics are served, but lookups and changes are rejected"
            )
        elif state is LeaseState.HELD:
            _log.info("broker registered: broker=%s", self.broker_id)
        elif state is LeaseState.LOST:
            self.sessions_lost_total += 1
            self._lost()
            if not self.is_stopping:
                self._tasks.start(self._register_again(), "register again")

    async def _register_again(self) -> None:
        while True:
            try:
                await self.lease.acquire()
                return
            except (Unavailable, OutcomeUnknown):
                await self._until_heard()

    async def _until_heard(self) -> None:
        """Wait for `RETRY_S`, or until the store's next notification about the session."""
        self._heard.clear()
        try:
            async with asyncio.timeout(RETRY_S):
                await self._heard.wait()
        except TimeoutError:
            pass

    @property
    def is_held(self) -> bool:
        return self.lease.state is LeaseState.HELD

    def why_not_ready(self) -> str:
        """Return the reason why this broker cannot know the owners of bundles now; an empty string if it can."""
        match self.lease.state:
            case LeaseState.IN_DOUBT:
                return "the metadata store does not answer this broker"
            case LeaseState.LOST:
                return "this broker's metadata session ended, and it has not registered again yet"
        return ""

    def require(self) -> None:
        """Raise `Unavailable` unless the metadata session is known to be valid."""
        why = self.why_not_ready()
        if why:
            raise Unavailable(f"{why}; try again")

    # -- brokers ---------------------------------------------------------------------------------------

    def is_me(self, broker: BrokerRecord) -> bool:
        """Return whether `broker` is this broker, in its current session."""
        return broker.session == self.me.session

    def owner(self, broker: BrokerRecord, *, owns: bool = True) -> Owner:
        """Return `broker` as an `Owner`, the result of a lookup."""
        return Owner(
            broker.broker_id,
            broker.service_url,
            broker.http_url,
            self.is_me(broker),
            owns,
            broker.listeners,
            broker.service_url_tls,
            broker.http_url_tls,
            broker.listeners_tls,
        )
