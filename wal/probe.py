"""Probe of an object store for the properties that a write-ahead log needs, before a broker acknowledges anything.

    conditional PUT     of several concurrent PUTs of one name exactly one succeeds, and its object is not replaced
    read after write    a new object can be read completely at once
    list after write    a new object is listed at once

A store that checks a name and then writes without a lock passes every sequential test. So the first property is tested
by `RACES` races of `RACERS` concurrent PUTs. These stores passed: Quire's store in a directory, moto, and versitygw
1.8.0 over a directory, which checks again under a lock. See
[conditional writes of S3](https://docs.aws.amazon.com/AmazonS3/latest/userguide/conditional-writes.html).

The objects of the probe are deleted. If the store does not answer, the probe raises `Unavailable`.
"""

from __future__ import annotations

import asyncio
from typing import Final
from uuid import uuid4

from quire.objects.store import ObjectStore
from quire.runtime.errors import (
    AlreadyExists,
    ConfigurationError,
    NotFound,
    OutcomeUnknown,
    Unavailable,
)

PREFIX: Final = "wal/probe-"
RACES: Final = 16
"""Number of races in one probe: a store without atomic conditional PUTs is likely to fail one of them."""
RACERS: Final = 8
_BYTES: Final = 4096
"""Size of each object in bytes; large enough that concurrent writes of a store overlap."""


async def probe(store: ObjectStore) -> None:
    """Check all properties of the store.

    Raises `ConfigurationError` with the missing property, and `Unavailable` if the store does not answer.
    """
    folder = f"{PREFIX}{uuid4().hex}"
    names = [f"{folder}/{race}" for race in range(RACES)]
    try:
        for name in names:
            await _race(store, name)
        listed = {info.name for info in await store.list(folder)}
        if missing := set(names) - listed:
            raise _unfit(
                store, f"it does not list {len(missing)} of {len(names)} objects right after they were put"
            )
    finally:
        await asyncio.gather(*(store.delete(name) for name in names), return_exceptions=True)


async def _race(store: ObjectStore, name: str) -> None:
    contents = [bytes([number]) * _BYTES for number in range(RACERS)]
    outcomes = await asyncio.gather(
        *(store.put_whole(name, (content,)) for content in contents), return_exceptions=True
    )
    for outcome in outcomes:
        if isinstance(outcome, Unavailable | OutcomeUnknown):
            raise Unavailable(f"{store.url} did not answer a probe: {outcome}")
        if outcome is not None and not isinstance(outcome, AlreadyExists):
            raise outcome
    won = [content for content, outcome in zip(contents, outcomes, strict=True) if outcome is None]
    if len(won) != 1:
        raise _unfit(
            store, f"of {RACERS} conditional PUTs of one new name, {len(won)} succeeded (If-None-Match: *)"
        )
    try:
        found = bytes(await store.get_range(name, 0, _BYTES))
    except NotFound:
        raise _unfit(store, "it does not find an object right after it was put") from None
    if found != won[0]:
        raise _unfit(store, "an object has other bytes than the successful PUT")


def _unfit(store: ObjectStore, what: str) -> ConfigurationError:
    return ConfigurationError(
        f"{store.url} cannot store a write-ahead log: {what}; use a store with atomic conditional PUTs, such as AWS "
        "S3 or a directory"
    )
