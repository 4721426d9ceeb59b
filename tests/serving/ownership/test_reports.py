"""What brokers tell of themselves is there as long as they are."""

from __future__ import annotations

from quire.metadata import paths
from quire.metadata.records import LoadRecord, encode
from quire.metadata.store import ANY_VERSION
from tests.serving.ownership.cluster import Brokers, until


async def test_loads_that_went_with_a_former_session_are_written_again() -> None:
    """Whoever gave its session up by its own clock is registered again before the store ends the former one."""
    brokers = Brokers()
    try:
        one = await brokers.start()
        path, former = paths.load(one.name), one.store.join()
        await one.store.delete(path, ANY_VERSION)
        await former.create(path, encode(LoadRecord()), ephemeral=True)
        one.ownership.reports.lost()
        await one.ownership.shedding.shed()
        await until(lambda: one.name in one.ownership.reports.reported())
        former.expire()
        await until(lambda: one.name not in one.ownership.reports.reported())
        await one.ownership.shedding.shed()
        await one.store.get(path)
        await until(lambda: one.name in one.ownership.reports.reported())
        version = (await one.store.get(path)).version
        await one.ownership.shedding.shed()
        assert (await one.store.get(path)).version == version, "written though nothing changed"
        await former.close()
    finally:
        await brokers.close()
