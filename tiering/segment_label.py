"""A segment's label: an object beside the segment's own that says whose segment it is.

    segments/LEDGER-UNIQUE          the object
    segments/LEDGER-UNIQUE.label    `sealed` JSON of a `SegmentLabel`, kind "label", version 1

The segment object proves its blocks, and its ledger's id stands in it; which topic the ledger belonged to, and what
the topic's list said of it, stands in the metadata store, and here for the day on which that is lost (`quire.rescue`).
It is put before the segment is recorded as archived, and goes before its object.
"""

from __future__ import annotations

from typing import Final

import msgspec

from quire.metadata.records import Record, SegmentRecord, decode, encode
from quire.objects.store import ObjectStore
from quire.tiering.sealed import seal, unseal

SUFFIX: Final = ".label"
_KIND: Final = "label"
_VERSION: Final = 1


class SegmentLabel(Record, frozen=True):
    """`segment` is as it is recorded when it is archived, pointer included."""

    topic: str
    segment: SegmentRecord


def label_of(name: str) -> str:
    """The name of an object's label."""
    return name + SUFFIX


def make(label: SegmentLabel) -> bytes:
    return seal(_KIND, _VERSION, encode(label))


async def read(store: ObjectStore, name: str) -> SegmentLabel:
    """The label that lies at `name`. Raises `NotFound`, `Unavailable`, `CorruptionError`."""
    found = await store.get_range(name, 0, await store.size(name))
    label = decode(SegmentLabel, unseal(_KIND, _VERSION, found, f"object {name}"), name)
    pointer = label.segment.archive
    if pointer is not None:  # by what URL the store was reached then says nothing about today
        label = msgspec.structs.replace(
            label,
            segment=msgspec.structs.replace(
                label.segment, archive=msgspec.structs.replace(pointer, store=store.url)
            ),
        )
    return label
