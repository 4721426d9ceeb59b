"""`/admin/v2/resource-quotas`: Pulsar's default quota, for every bundle.

Brokers balance bundles by their measured load, as Pulsar's do with this default (`dynamic`). Another quota would not be
enforced, so a request to set one is rejected (501).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from itertools import pairwise
from typing import Final, NoReturn

from msgspec import Struct

from quire.runtime.errors import NotFound
from quire.security.authorization import Action
from quire.serving.admin.requests import Absent
from quire.serving.admin.route import OF_NAMESPACE, Argument, Route, nothing, path
from quire.serving.broker import Broker

QUOTAS: Final = "/admin/v2/resource-quotas"
WHY: Final = (
    "resource quotas are not supported, because brokers measure the load of bundles: limit a namespace or a topic by "
    "publishRate and dispatchRate"
)


class ResourceQuota(Struct, frozen=True, rename="camel"):
    """Expected load of a bundle; rates are per second, `memory` is in MB."""

    msg_rate_in: float = 40.0
    msg_rate_out: float = 120.0
    bandwidth_in: float = 100_000.0
    bandwidth_out: float = 300_000.0
    memory: float = 80.0
    dynamic: bool = True


def routes(broker: Broker) -> Sequence[Route]:
    async def check_bundle(tenant: str, namespace: str, bundle: str) -> None:
        record = await broker.namespaces.get(tenant, namespace)
        if bundle not in {f"0x{low}_0x{high}" for low, high in pairwise(record.boundaries)}:
            raise NotFound(f"namespace {tenant}/{namespace} has no bundle {bundle}")

    async def check_nothing() -> None:
        """Accept every request, because the default always exists."""

    of_bundle = f"{QUOTAS}/{{tenant}}/{{namespace}}/{{bundle}}"
    return (
        *_never_set(QUOTAS, check_nothing),
        *_never_set(of_bundle, check_bundle, *OF_NAMESPACE, path("bundle")),
    )


def _never_set(path: str, check: Callable[..., Awaitable[None]], *names: Argument) -> Sequence[Route]:
    def default(_: object) -> ResourceQuota:
        return ResourceQuota()

    async def refuse(*of: str) -> NoReturn:
        """Reject a quota, because brokers measure the load of bundles."""
        await check(*of)
        raise Absent(WHY)

    may = Action.SUPERUSER
    return (
        Route("GET", path, check, *names, answer=default, may=may),
        Route("POST", path, refuse, *names, may=may),
        Route("DELETE", path, check, *names, answer=nothing, may=may),
    )
