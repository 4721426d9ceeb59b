"""Segment label: a small object beside each segment object, with the segment's topic and record.

    segments/LEDGER-CLUSTER-UNIQUE          the segment object
    segments/LEDGER-CLUSTER-UNIQUE.label    `sealed` JSON of a `SegmentLabel`, kind "label", version 1

The segment object contains only the segment's blocks and ledger id. The segment's topic, and its record in the topic's
segment list, are in the metadata store. The label contains a copy of both, for a rescue after a loss of the metadata
store (`quire.rescue`). The label is put before the segment is recorded as archived, and is deleted before its object.
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
    """Content of a label. `segment` is the record of the archived segment, including the pointer.

    `generation` is the topic's generation. In labels of older versions, it is 0, and `cluster` is empty.
    """

    topic: str
    segment: SegmentRecord
    generation: int = 0
    cluster: str = ""


def label_of(name: str) -> str:
    """Return the name of an object's label."""
    return name + SUFFIX


def make(label: SegmentLabel) -> bytes:
    return seal(_KIND, _VERSION, encode(label))


async def read(store: ObjectStore, name: str) -> SegmentLabel:
    """Read the label `name`. Raises `NotFound`, `Unavailable`, `CorruptionError`."""
    found = await store.get_range(name, 0, await store.size(name))
    label = decode(SegmentLabel, unseal(_KIND, _VERSION, found, f"object {name}"), name)
    pointer = label.segment.archive
    if pointer is not None:  # the store's URL may have changed
        label = msgspec.structs.replace(
            label,
            segment=msgspec.structs.replace(
                label.segment, archive=msgspec.structs.replace(pointer, store=store.url)
            ),
        )
    return label
