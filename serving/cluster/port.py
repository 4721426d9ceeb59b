"""What a broker asks about the ownership of bundles, and what ownership asks of its broker.

A bundle is named `tenant/namespace/low_high`. `SoleOwner` is the whole of ownership in a process that is alone: it
owns everything at once and causes no metadata traffic.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from quire import __version__
from quire.runtime.errors import Unavailable
from quire.runtime.metrics import Values
from quire.serving.cluster.addresses import Addresses


class ServiceUrls(NamedTuple):
    """Where clients go; "" for a port that is closed."""

    plain: str
    tls: str


class Owner(NamedTuple):
    """The broker that owns a bundle or, with `owns` False, should take it when it is asked."""

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
        """Where a client reaches it that asks for the URLs of `listener`, or for none's. Raises `Unavailable`."""
        if not listener.strip():
            return ServiceUrls(self.service_url, self.service_url_tls)
        found = ServiceUrls(self.listeners.get(listener, ""), self.listeners_tls.get(listener, ""))
        if not any(found):
            raise Unavailable(
                f"the broker {self.broker_id} has no listener named {listener!r}; its advertised_listeners name them"
            )
        return found

    def rest_url(self, *, tls: bool) -> str:
        """Its REST interface for who speaks TLS, or does not; "" when there is none.

        Who speaks TLS is never sent on without it, for credentials would go with him.
        """
        return self.http_url_tls if tls else self.http_url or self.http_url_tls


class NotOwner(Unavailable):
    """The topic is another broker's, or has no owner: look it up again. `owner` is where it is, if that is known."""

    def __init__(self, what: str, owner: Owner | None = None) -> None:
        super().__init__(what)
        self.owner = owner


class BundleLoad(NamedTuple):
    """What a bundle costs its broker; see `balance` for the unit."""

    load: float
    topics: int


class Handover(NamedTuple):
    """A bundle whose topics are closed here."""

    topics: Sequence[str]
    """Those that clients use, by their full names."""
    disconnect_clients: Callable[[str], None]
    """Close the clients' producers and consumers: they go to the new owner's service URL, or look up if it is empty."""


class BundleHost(Protocol):
    """The broker, as its ownership sees it."""

    @property
    def addresses(self) -> Addresses: ...

    def gained(self, bundle: str) -> None:
        """The bundle is this broker's from now on."""
        ...

    async def hand_over(self, bundle: str) -> Handover:
        """Close the bundle's topics and its state log, so that the next owner has nothing to recover.

        The clients are disconnected when another broker may have the bundle.
        """
        ...

    async def ask_to_take(self, new_owner: Owner, bundle: str, topics: Sequence[str]) -> None:
        """Ask another broker to take the bundle, which has no owner, and to load `topics`; return when it has.

        Raises `Unavailable`, `NotOwner`.
        """
        ...

    def drop(self, bundles: Collection[str]) -> None:
        """Stop serving the bundles at once, and write nothing more: they may be another broker's already."""
        ...

    def bundle_loads(self) -> Mapping[str, BundleLoad]:
        """Of the bundles that have topics loaded."""
        ...

    def divisible(self) -> Collection[str]:
        """The bundles whose load is that of more than one topic."""
        ...

    async def split(self, bundle: str, at: str = "") -> tuple[str, str]:
        """See `Splits.split`."""
        ...


class Ownership(Protocol):
    async def start(self, host: BundleHost) -> None:
        """Take part. Raises `ConfigurationError` when another broker has this one's name."""
        ...

    async def stop(self) -> None:
        """Hand everything over and leave."""
        ...

    def holds(self, bundle: str) -> bool:
        """Topics of the bundle may be served, and loaded, here and now."""
        ...

    async def owner_of(self, bundle: str, *, take: bool = False) -> Owner:
        """The bundle's owner; when it has none, the broker that should own it. With `take` this broker takes it then.

        Raises `Unavailable` while this broker cannot tell: its session is in doubt, or over.
        """
        ...

    async def take(self, bundle: str) -> None:
        """Its owner gives it away, to this broker. Raises `NotOwner` when another one was faster, `Unavailable`."""
        ...

    async def require(self, bundle: str, *, take: bool) -> None:
        """Return when the bundle is owned here; with `take`, take it if it has no owner. Raises `NotOwner`."""
        ...

    async def release(self, bundle: str, why: str) -> None:
        """Hand one bundle over to whom a lookup would lead. Raises `NotOwner` when it is not owned here."""
        ...

    async def split(
        self, bundle: str, parts: tuple[str, str], carry_out: Callable[[], Awaitable[None]]
    ) -> None:
        """Own `parts` instead of the bundle, which `carry_out` splits. Raises as that, `Unavailable`, `InUse`."""
        ...

    def verify_owned(self, bundle: str) -> None:
        """Another broker changed a topic of the bundle: find out whether the bundle is still owned here."""
        ...

    def why_not_ready(self) -> str:
        """Why no client should come here now; empty when all is well."""
        ...

    def brokers(self) -> list[dict[str, Any]]:
        """The brokers of the cluster, each with its load."""
        ...

    def bundles(self) -> list[dict[str, Any]]:
        """Each bundle's owner, since when and why, by the last reports."""
        ...

    def metrics(self) -> Values: ...


class SoleOwner:
    """Owns everything. An `Ownership`."""

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

    def brokers(self) -> list[dict[str, Any]]:
        assert self._host is not None
        loads, own = self._host.bundle_loads().values(), self._host.addresses
        return [
            {
                "broker": self._id,
                "serviceUrl": own.service_url,
                "serviceUrlTls": own.service_url_tls,
                "httpUrl": own.http_url,
                "httpUrlTls": own.http_url_tls,
                "version": __version__,
                "bundles": len(loads),
                "topics": sum(one.topics for one in loads),
                "load": round(sum(one.load for one in loads), 1),
                "cannotWrite": "",
            }
        ]

    def bundles(self) -> list[dict[str, Any]]:
        assert self._host is not None
        return [
            {
                "bundle": bundle,
                "broker": self._id,
                "topics": one.topics,
                "load": round(one.load, 1),
                "sinceMs": 0,
                "why": "this broker is alone",
            }
            for bundle, one in sorted(self._host.bundle_loads().items())
        ]

    def metrics(self) -> Values:
        return {}
