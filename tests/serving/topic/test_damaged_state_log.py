"""A bundle's state log that cannot be read: it says whose it is, and is forgotten only on proven metadata."""

from __future__ import annotations

import pytest

from quire.metadata import paths
from quire.metadata.records import StateLogRecord, decode
from quire.runtime.errors import ConfigurationError, CorruptionError, WrongCluster
from quire.serving.model.ports import EARLIEST
from quire.serving.names import TopicName
from tests.serving.conftest import BrokerHouse


async def test_a_state_log_that_cannot_be_read_says_whose_it_is(
    house: BrokerHouse, caplog: pytest.LogCaptureFixture
) -> None:
    broker = await house.start()
    names = [f"persistent://public/default/topic-{number}" for number in range(3)]
    for name in names:
        await broker.admin.subscriptions.create(TopicName.parse(name), "s", EARLIEST)
    await house.kill(broker)
    path = paths.state_log("public", "default", "00000000_ffffffff")
    store = house.cluster.store
    record = decode(StateLogRecord, (await store.get(path)).value, path)
    for bookie in house.cluster.bookies:
        bookie.flip(record.ledgers[-1], 0)
    broker = await house.start()
    for _ in range(2):
        with pytest.raises(CorruptionError, match=r"topic-0, .*topic-1, .*topic-2") as raised:
            await broker.registry.open(TopicName.parse(names[0]))
    assert "bundle public/default/00000000_ffffffff" in str(raised.value)
    assert broker.metrics()["quire_serving_bundles_damaged"] == 1
    told = [one for one in caplog.records if "cannot be read, so these topics" in one.getMessage()]
    assert len(told) == 1

    async def refuse(found: str) -> None:
        raise WrongCluster("the metadata are older than copy 5 of them")

    bundle, guard = "public/default/00000000_ffffffff", broker.services.ledgers.confirm_absence
    with pytest.raises(ConfigurationError, match="confirm this with --accept-loss"):
        await broker.bundles.forget(bundle, accept_loss=False)
    broker.services.ledgers.confirm_absence = refuse
    with pytest.raises(WrongCluster):
        await broker.bundles.forget(bundle, accept_loss=True)
    assert decode(StateLogRecord, (await store.get(path)).value, path).ledgers
    broker.services.ledgers.confirm_absence = guard
    await broker.bundles.forget(bundle, accept_loss=True)
    assert not decode(StateLogRecord, (await store.get(path)).value, path).ledgers
