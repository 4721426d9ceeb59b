"""Plan of bundles and their state logs, which contain the subscriptions, from facts. No I/O.

The record of a state log's ledger contains the boundaries of its bundle. So the plan takes the boundaries of bundles
from the copy of the metadata and from all these ledgers. When a bundle is split, the lower half keeps the ledgers, so a
ledger belongs to the planned bundle with the same lower boundary. A broker that opens a state log reads it from the
last ledger with a complete snapshot, and skips the ledgers before it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from msgspec.structs import replace

from quire.metadata.records import NamespaceRecord, StateLogRecord
from quire.rescue.ledger_plan import LedgerPlan

_PURPOSE = "state:"
ALL = ("00000000", "ffffffff")


@dataclass
class BundlePlan:
    """Planned records: `namespaces` by `tenant/namespace`, `logs` by `tenant/namespace/low_high`."""

    namespaces: dict[str, NamespaceRecord] = field(default_factory=dict)
    logs: dict[str, StateLogRecord] = field(default_factory=dict)
    bare: list[str] = field(default_factory=list)
    """Namespaces without a record in the copy: they are restored without policies and permissions."""


def plan_bundles(
    copied: Mapping[str, NamespaceRecord],
    listed: Mapping[str, StateLogRecord],
    ledgers: LedgerPlan,
    filled: Collection[int],
    in_use: Iterable[str],
) -> BundlePlan:
    """Plan the records of namespaces and state logs.

    `copied` are the namespaces and `listed` the state logs in the copy of the metadata. `filled` are the ids of ledgers
    with blocks, `in_use` the namespaces with topics.
    """
    plan = BundlePlan()
    starts: dict[str, dict[str, set[int]]] = {}
    edges: dict[str, set[str]] = {name: set(record.boundaries) for name, record in copied.items()}

    def add(bundle: str, ids: Iterable[int]) -> None:
        place, _, span = bundle.rpartition("/")
        low, _, high = span.partition("_")
        edges.setdefault(place, set()).update((low, high))
        starts.setdefault(place, {}).setdefault(low, set()).update(each for each in ids if each in filled)

    for ledger_id, planned in ledgers.ledgers.items():
        if planned.record.purpose.startswith(_PURPOSE):
            add(planned.record.purpose.removeprefix(_PURPOSE), [ledger_id])
    for bundle, log in listed.items():
        add(bundle, log.ledgers)
    for place in sorted({*edges, *in_use}):
        boundaries = tuple(sorted({*edges.get(place, ()), *ALL}))
        tenant, _, name = place.partition("/")
        known = copied.get(place)
        if known is None:
            plan.bare.append(place)
        plan.namespaces[place] = replace(
            known or NamespaceRecord(tenant=tenant, name=name), boundaries=boundaries
        )
        for low, high in pairwise(boundaries):
            if ids := starts.get(place, {}).get(low):
                plan.logs[f"{place}/{low}_{high}"] = StateLogRecord(ledgers=tuple(sorted(ids)))
    return plan
