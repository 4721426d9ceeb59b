"""Names of metadata copies in an object store, which are ordered by number and never by a clock.

    metadata/CLUSTER/NUMBER-TIME-UNIQUE    NUMBER has 16 digits; TIME is wall-clock ms, informational
    metadata/CLUSTER/TIME-UNIQUE           name from older versions, which did not number copies; TIME has 16 digits

The cluster's record contains the last copy's number. A process increases it before it uploads the copy with that
number. So a copy with a greater number than the record's proves that the metadata are older than that copy: an older
backup of the metadata store was restored. The first number is greater than every listed TIME, so that unnumbered copies
sort before numbered ones.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from quire.objects.store import ObjectStore

FOLDER: Final = "metadata/"
_NAME: Final = re.compile(r"(\d{16})-(?:(\d{16})-)?[0-9a-f]{32}")


def copies_of(cluster: str) -> str:
    """Return the folder of a cluster's metadata copies."""
    return f"{FOLDER}{cluster}/"


def copy_name(cluster: str, number: int, taken_ms: int, unique: str) -> str:
    """Return the name of a metadata copy; `unique` has 32 hex digits."""
    name = f"{number:016d}-{taken_ms:016d}-{unique}"
    assert _NAME.fullmatch(name), name
    return copies_of(cluster) + name


def cluster_of(name: str) -> str:
    """Return the cluster id in the name of a metadata copy."""
    return name.removeprefix(FOLDER).partition("/")[0]


def number_of(name: str) -> int:
    """Return the number in a copy's name, or TIME if the copy is unnumbered; -1 if `name` names no copy."""
    found = _NAME.fullmatch(name.rpartition("/")[2])
    return int(found[1]) if found is not None else -1


def greatest_number(names: Iterable[str]) -> int:
    """Return the greatest number among the numbered copies; 0 if there are no numbered copies."""
    found = (_NAME.fullmatch(name.rpartition("/")[2]) for name in names)
    return max((int(one[1]) for one in found if one is not None and one[2]), default=0)


async def list_copies(objects: ObjectStore, cluster: str) -> list[str]:
    """Return the names of a cluster's metadata copies, oldest first. Raises the store's errors."""
    listed = [info.name for info in await objects.list(copies_of(cluster))]
    return sorted((name for name in listed if number_of(name) >= 0), key=lambda name: (number_of(name), name))
