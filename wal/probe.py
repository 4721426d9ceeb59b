"""Does the object store offer what a write-ahead log rests on? Proven before a broker acknowledges anything through it.

    conditional PUT     of several at once under one name exactly one succeeds, and its bytes stay
    read after write    what was put is read, whole, at once
    list after write    and is listed

A store that looks whether a name is taken and then writes passes every test that does one thing after another, so the
first is proven by races: `RACES` of `RACERS`. Tried and found right: our store in a directory, moto, and versitygw
1.8.0 over a directory, which looks once more under a lock.

What it put is deleted again. An answer that does not come proves nothing: `Unavailable`, try again.
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
RACERS: Final = 8
_BYTES: Final = 4096
"""Of each racer's object: a store that writes in steps needs some time for it."""


async def probe(store: ObjectStore) -> None:
    """Return when the store offers all of it.

    Raises `ConfigurationError` with one sentence that says what is missing, `Unavailable` when it does not answer.
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
            store, f"of {RACERS} conditional PUTs of one new name {len(won)} succeeded (If-None-Match: *)"
        )
    try:
        found = bytes(await store.get_range(name, 0, _BYTES))
    except NotFound:
        raise _unfit(store, "it does not find an object right after it was put") from None
    if found != won[0]:
        raise _unfit(store, "an object has other bytes than the one PUT of it that succeeded")


def _unfit(store: ObjectStore, what: str) -> ConfigurationError:
    return ConfigurationError(
        f"{store.url} cannot hold a write-ahead log: {what}; use a store that keeps its promise, such as AWS S3 "
        "or a directory"
    )
