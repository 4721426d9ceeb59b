"""Ports between a broker and its part that owns bundles, and `SoleOwner` for a standalone process.

A bundle is named `tenant/namespace/low_high`. `SoleOwner` always owns every bundle, and causes no metadata traffic.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from msgspec import UNSET, Struct, UnsetType

from quire import __version__
from quire.runtime.errors import Unavailable
from quire.runtime.metrics import Values


@dataclass
class Addresses:
    """URLs of this broker, complete once it listens; an empty string for a closed port or a missing REST interface."""

    service_url: str
    """`pulsar://host:port` for clients."""
    listeners: Mapping[str, str]
    """URLs for clients in other networks, by listener name (`advertised_listeners`)."""
    http_url: str = ""
    """URL of the REST interface, for operators and other brokers."""
    service_url_tls: str = ""
    """`pulsar+ssl://host:port`."""
    listeners_tls: Mapping[str, str] = field(default_factory=dict)
    http_url_tls: str = ""

    @property
    def all(self) -> list[str]:
        """Open URLs; those without TLS come first."""
        urls = (self.service_url, self.http_url, self.service_url_tls, self.http_url_tls)
        return [url for url in urls if url]

    @property
    def name(self) -> str:
        """Name of the broker in its cluster, `host:port`."""
        return (self.service_url or self.service_url_tls).partition("://")[2]


class ServiceUrls(NamedTuple):
    """URLs for clients; an empty string for a closed port."""

    plain: str
    tls: str


class Owner(NamedTuple):
    """Broker that owns a bundle or, if `owns` is False, that should acquire it when a client looks it up there."""

    broker_id: str
    service_url: str
    http_url: str
    is_here: bool
    owns: bool = True
    listeners: Mapping[str, str] = {}
    service_url_tls: str = ""
    http_url_tls: str = ""
    listeners_tls: Mapping[str, str] = {}

    def urls_for(self, listener: str) -> ServiceUrls:
        """Return the URLs of `listener`, or the default ones if it is empty. Raises `Unavailable`."""
        if not listener.strip():
            return ServiceUrls(self.service_url, self.service_url_tls)
        found = ServiceUrls(self.listeners.get(listener, ""), self.listeners_tls.get(listener, ""))
        if not any(found):
            raise Unavailable(
                f"the broker do not have {listener} listener: {self.broker_id} has no listener named {listener!r}; its "
                "advertised_listeners setting defines them"  # clients search for Pulsar's words at the beginning
            )
        return found

    def rest_url(self, *, tls: bool) -> str:
        """Return the URL of the REST interface for callers with or without `tls`; an empty string if there is none.

        A caller with TLS is never redirected to a URL without TLS, because its credentials would be sent in clear text.
        """
        return self.http_url_tls if tls else self.http_url or self.http_url_tls


class NotOwner(Unavailable):
    """Rejection of a request for a topic that this broker does not own. `owner` is its owner, if known."""

    def __init__(self, what: str, owner: Owner | None = None) -> None:
        super().__init__(what)
        self.owner = owner


class BundleLoad(NamedTuple):
    """Load of a bundle on its broker, in the unit of `balance`."""

    load: float
    topics: int


class Handover(NamedTuple):
    """Bundle whose topics are closed, ready for its next owner."""

    topics: Sequence[str]
    """Full names of the topics that clients used."""
    disconnect_clients: Callable[[str], None]
    """Function that closes the clients' producers and consumers.

    Its argument is the new owner's service URL, or an empty string if clients must look their topics up.
    """


class BrokerStats(Struct, rename="camel", kw_only=True):
    """Broker of the cluster, from its last report; `Addresses` explains the URLs."""

    broker: str
    service_url: str
    service_url_tls: str
    http_url: str
    http_url_tls: str
    version: str
    started_ms: int | UnsetType = UNSET
    """Time of the broker's registration, in ms since 1970; absent for a standalone process."""
    bundles: int
    topics: int
    load: float
    """Load in the unit of `balance`."""
    cannot_write: str = ""
    """Reason why the broker cannot write; empty if it can."""


class BundleStats(Struct, rename="camel"):
    """Bundle with its owner."""

    bundle: str
    broker: str
    topics: int
    load: float
    since_ms: int
    why: str
    """Reason why the broker owns the bundle."""


class BundleHost(Protocol):
    """Port from a broker's ownership to the broker."""

    @property
    def addresses(self) -> Addresses: ...

    def gained(self, bundle: str) -> None:
        """Start serving the bundle, which this broker owns from now on."""
        ...

    async def hand_over(self, bundle: str) -> Handover:
        """Close the bundle's topics and its state log, so that the next owner need not recover their ledgers.

        The topics' clients stay connected until another broker can acquire the bundle.
        """
        ...

    async def ask_to_take(self, new_owner: Owner, bundle: str, topics: Sequence[str]) -> None:
        """Ask another broker to acquire the bundle, which has no owner, and to load `topics`; wait until it has.

        Raises `Unavailable`, `NotOwner`.
        """
        ...

    def drop(self, bundles: Collection[str]) -> None:
        """Stop serving the bundles without closing their ledgers, because other brokers may own them already."""
        ...

    def bundle_loads(self) -> Mapping[str, BundleLoad]:
        """Return the loads of the bundles that have loaded topics."""
        ...

    def divisible(self) -> Collection[str]:
        """Return the bundles that have more than one loaded topic."""
        ...

    async def split(self, bundle: str, at: str = "") -> tuple[str, str]:
        """See `Splits.split`."""
        ...


class Ownership(Protocol):
    async def start(self, host: BundleHost) -> None:
        """Register this broker. Raises `ConfigurationError` if another broker has the same name."""
        ...

    async def stop(self) -> None:
        """Hand over all bundles, and remove this broker from the list of brokers."""
        ...

    def holds(self, bundle: str) -> bool:
        """Return whether this broker may load and serve topics of the bundle now."""
        ...

    async def owner_of(self, bundle: str, *, take: bool = False) -> Owner:
        """Return the bundle's owner, or the broker that should own it; with `take`, acquire an unowned bundle.

        Raises `Unavailable` if this broker does not know, because its metadata session is in doubt or has ended.
        """
        ...

    async def take(self, bundle: str) -> None:
        """Acquire a bundle that its owner hands over to this broker. Raises `NotOwner`, `Unavailable`."""
        ...

    async def require(self, bundle: str, *, take: bool) -> None:
        """Ensure that this broker owns the bundle; with `take`, acquire an unowned one. Raises `NotOwner`."""
        ...

    async def release(self, bundle: str, why: str) -> None:
        """Hand a bundle over to the broker that a lookup would choose.

        Raises `NotOwner` if this broker does not own it.
        """
        ...

    async def split(
        self, bundle: str, parts: tuple[str, str], carry_out: Callable[[], Awaitable[None]]
    ) -> None:
        """Acquire `parts`, call `carry_out`, which splits the bundle into them, and give up the bundle.

        Raises the errors of `carry_out`, `Unavailable`, `InUse`.
        """
        ...

    def verify_owned(self, bundle: str) -> None:
        """Check whether this broker still owns the bundle, because another broker changed a topic of it."""
        ...

    def why_not_ready(self) -> str:
        """Return the reason why clients should avoid this broker now; an empty string if there is none."""
        ...

    def brokers(self) -> list[BrokerStats]:
        """Return a row for each broker of the cluster, with its load."""
        ...

    def bundles(self) -> list[BundleStats]:
        """Return a row for each bundle, from the last reports: its owner, and since when and why it owns the bundle."""
        ...

    def metrics(self) -> Values: ...


class SoleOwner:
    """`Ownership` of a standalone process, which owns every bundle."""

    def __init__(self) -> None:
        self._host: BundleHost | None = None

    async def start(self, host: BundleHost) -> None:
        self._host = host

    async def stop(self) -> None:
        pass

    def holds(self, bundle: str) -> bool:
        return True

    async def owner_of(self, bundle: str, *, take: bool = False) -> Owner:
        assert self._host is not None
        own = self._host.addresses
        return Owner(
            self._id,
            own.service_url,
            own.http_url,
            is_here=True,
            listeners=own.listeners,
            service_url_tls=own.service_url_tls,
            http_url_tls=own.http_url_tls,
            listeners_tls=own.listeners_tls,
        )

    async def take(self, bundle: str) -> None:
        pass

    async def require(self, bundle: str, *, take: bool) -> None:
        pass

    async def release(self, bundle: str, why: str) -> None:
        assert self._host is not None
        (await self._host.hand_over(bundle)).disconnect_clients("")

    async def split(
        self, bundle: str, parts: tuple[str, str], carry_out: Callable[[], Awaitable[None]]
    ) -> None:
        await carry_out()

    def verify_owned(self, bundle: str) -> None:
        pass

    def why_not_ready(self) -> str:
        return ""

    @property
    def _id(self) -> str:
        assert self._host is not None
        return self._host.addresses.name

    def brokers(self) -> list[BrokerStats]:
        assert self._host is not None
        loads, own = self._host.bundle_loads().values(), self._host.addresses
        return [
            BrokerStats(
                broker=self._id,
                service_url=own.service_url,
                service_url_tls=own.service_url_tls,
                http_url=own.http_url,
                http_url_tls=own.http_url_tls,
                version=__version__,
                bundles=len(loads),
                topics=sum(one.topics for one in loads),
                load=round(sum(one.load for one in loads), 1),
            )
        ]

    def bundles(self) -> list[BundleStats]:
        assert self._host is not None
        return [
            BundleStats(
                bundle, self._id, one.topics, round(one.load, 1), 0, "this process is the only broker"
            )
            for bundle, one in sorted(self._host.bundle_loads().items())
        ]

    def metrics(self) -> Values:
        return {}
