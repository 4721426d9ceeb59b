"""`/quire/v1/bookies`, `…/repair`, `…/ledgers` and `…/archive`: where messages lie, and what operators want of it.

Every broker answers: what is asked and wanted lies in the metadata store. Of the archive any broker answers for the
whole cluster; `?here=true` asks for what that broker does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from quire.runtime.errors import QuireError
from quire.security.authorization import Action
from quire.serving.admin.route import Route, flag, path, path_number
from quire.serving.broker import Broker

BOOKIES: Final = "/quire/v1/bookies"
BOOKIE: Final = f"{BOOKIES}/{{bookie}}"
REPAIR: Final = "/quire/v1/repair"
LEDGERS: Final = "/quire/v1/ledgers"
ARCHIVE: Final = "/quire/v1/archive"


def routes(broker: Broker) -> Sequence[Route]:
    bookies, losses, archive = broker.admin.bookies, broker.admin.losses, broker.admin.archive
    bookie, ledger, here = path("bookie"), path_number("ledger"), flag("here")

    async def orphans(*, delete: bool) -> dict[str, Any]:
        found = await bookies.orphans()
        deleted, errors = 0, []
        for orphan in found if delete else ():
            try:
                await bookies.delete_ledger(orphan.ledger_id)
                deleted += 1
            except QuireError as error:
                errors.append(str(error))
        rows = [
            {
                "ledger": each.ledger_id,
                "purpose": each.purpose,
                "bytes": each.bytes,
                "createdMs": each.created_ms,
            }
            for each in found
        ]
        return {"orphans": rows, "deleted": deleted, "errors": errors}

    async def recover(ledger_id: int, *, accept_loss: bool) -> dict[str, Any]:
        return await (losses.give_up if accept_loss else losses.recover)(ledger_id)

    return (
        Route("GET", BOOKIES, bookies.all, may=Action.SUPERUSER),
        Route("GET", BOOKIE, bookies.show, bookie, may=Action.SUPERUSER),
        Route("PUT", f"{BOOKIE}/decommission", bookies.decommission, bookie, may=Action.SUPERUSER),
        Route("PUT", f"{BOOKIE}/recover", bookies.recover, bookie, may=Action.SUPERUSER),
        Route("PUT", f"{BOOKIE}/keep", bookies.keep, bookie, may=Action.SUPERUSER),
        Route("GET", REPAIR, bookies.repair, may=Action.SUPERUSER),
        Route("POST", f"{REPAIR}/run", bookies.repair_all, may=Action.SUPERUSER),
        Route("POST", f"{LEDGERS}/orphans", orphans, flag("delete"), may=Action.SUPERUSER),
        Route("GET", f"{LEDGERS}/lost", losses.known, may=Action.SUPERUSER),
        Route("GET", f"{LEDGERS}/{{ledger}}/loss", losses.look, ledger, may=Action.SUPERUSER),
        Route(
            "POST",
            f"{LEDGERS}/{{ledger}}/recover",
            recover,
            ledger,
            flag("accept_loss"),
            may=Action.SUPERUSER,
        ),
        Route("POST", f"{ARCHIVE}/run", archive.run, flag("seal"), here, may=Action.SUPERUSER),
        Route("GET", f"{ARCHIVE}/status", archive.status, here, may=Action.SUPERUSER),
        Route("POST", f"{ARCHIVE}/verify", archive.verify, flag("delete_orphans"), may=Action.SUPERUSER),
        Route("POST", f"{ARCHIVE}/repair", archive.repair, here, may=Action.SUPERUSER),
    )
