"""Bundles and their state logs, which hold the subscriptions: facts in, records out. No I/O.

A ledger of a state log names its bundle, so bundles are known by their edges: those of the copy, and of all ledgers. A
bundle that was split went on in the ledger that it had, as the lower part; so a ledger belongs to the bundle that
begins where its own does. A log reads its last ledger that has a whole snapshot, and passes over the others.
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
    """`namespaces` and `logs` by `tenant/namespace` and `tenant/namespace/low_high`."""

    namespaces: dict[str, NamespaceRecord] = field(default_factory=dict)
    logs: dict[str, StateLogRecord] = field(default_factory=dict)
    bare: list[str] = field(default_factory=list)
    """Namespaces that no copy knows: they come back without policies and permissions."""


def plan_bundles(
    copied: Mapping[str, NamespaceRecord],
    listed: Mapping[str, StateLogRecord],
    ledgers: LedgerPlan,
    filled: Collection[int],
    in_use: Iterable[str],
) -> BundlePlan:
    """`copied` namespaces and `listed` state logs are the copy's; `in_use` are namespaces that have topics.

    `filled` are ledgers that have blocks.
    """
    plan = BundlePlan()
    starts: dict[str, dict[str, set[int]]] = {}
    edges: dict[str, set[str]] = {name: set(record.boundaries) for name, record in copied.items()}

    def add(bundle: str, ids: Iterable[int]) -> None:
        place, _, span = bundle.rpartition("/")
        low, _, high = span.partition("_")
        edges.setdefault(place, set()).update((low, high))
        starts.setdefault(place, {}).setdefault(low, set()).update(each for each in ids if each in filled)

    for ledger_id, told in ledgers.ledgers.items():
        if told.record.purpose.startswith(_PURPOSE):
            add(told.record.purpose.removeprefix(_PURPOSE), [ledger_id])
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
