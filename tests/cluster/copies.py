"""Checks of the copies of a cluster's ledgers, by the ledgers' metadata, and by reading each copy from its bookie.

`lacking` reads metadata only. It checks that every bookie in a ledger's metadata is up with the same incarnation, and
that closed ledgers have three bookies in each fragment. It ignores open ledgers that neither a topic nor a state log
lists, because their creator died before it used them. `missing_blocks` reads every copy of every block.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from quire.ledger import orphans, states
from quire.ledger.bookie_client import BookieClient
from quire.metadata import paths
from quire.metadata.records import BookieRecord, LedgerRecord, LedgerState, decode
from quire.metadata.store import MetadataStore
from quire.runtime.errors import NotFound
from quire.runtime.limits import MIB
from quire.wire.block import read_header
from quire.wire.bookie import BookieId, ReadRequest, Status

COPIES = 3


async def lacking(store: MetadataStore) -> list[str]:
    """Return a line for each ledger that lacks a copy."""
    up = {f"{one.uuid}:{one.incarnation}" for one in (await _up(store)).values()}
    listed = await orphans._listed(store)
    found = []
    async for record in _ledgers(store):
        if record.state is LedgerState.CLOSED:
            is_whole = all(len(set(each.bookies) & up) == COPIES for each in record.fragments)
        else:
            named = {bookie for each in record.fragments for bookie in each.bookies}
            is_whole = record.ledger_id not in listed or named <= up
        if not is_whole:
            found.append(f"{record.state} ledger {record.ledger_id} of {record.purpose}: {record.fragments}")
    return found


async def missing_blocks(store: MetadataStore) -> list[str]:
    """Return a line for each bookie that lacks blocks of a closed ledger's fragment which names it."""
    clients = {uuid: BookieClient(record.address) for uuid, record in (await _up(store)).items()}
    try:
        found = []
        async for record in _ledgers(store):
            if record.state is LedgerState.CLOSED and record.last_entry >= 0:
                found += await _missing(record, clients)
        return found
    finally:
        for client in clients.values():
            await client.close()


async def _missing(record: LedgerRecord, clients: dict[str, BookieClient]) -> list[str]:
    found = []
    for index, fragment in enumerate(record.fragments):
        last = states.last_entry_of(record, index)
        for bookie in states.ensemble(fragment):
            entry, status = await _read(
                clients[bookie.uuid], bookie, record.ledger_id, fragment.first_entry, last
            )
            if entry <= last:
                found.append(f"ledger {record.ledger_id} at {bookie}, entry {entry} of {last}: {status.name}")
    return found


async def _read(
    client: BookieClient, bookie: BookieId, ledger_id: int, entry: int, last: int
) -> tuple[int, Status]:
    """Read entries from `entry` to `last`. Return the first missing entry, and the status of its read."""
    status = Status.OK
    while entry <= last:
        answer = await client.ask(ReadRequest(bookie, ledger_id, entry, MIB))
        status = answer.status
        if status is not Status.OK:
            break
        entry = read_header(answer.blocks[-1]).last_entry + 1
    return entry, status


async def _up(store: MetadataStore) -> dict[str, BookieRecord]:
    found = {}
    for uuid in await store.children(paths.BOOKIES_AVAILABLE):
        path = paths.bookie_available(uuid)
        try:
            found[uuid] = decode(BookieRecord, (await store.get(path)).value, path)
        except NotFound:
            continue
    return found


async def _ledgers(store: MetadataStore) -> AsyncIterator[LedgerRecord]:
    """Yield the records of all ledgers except those that are being deleted."""
    async for ledger_id in orphans.ledger_ids(store):
        path = paths.ledger(ledger_id)
        try:
            record = decode(LedgerRecord, (await store.get(path)).value, path)
        except NotFound:
            continue
        if record.state is not LedgerState.DELETING:
            yield record
