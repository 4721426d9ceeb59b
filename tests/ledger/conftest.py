"""What the tests of ledgers share."""

from __future__ import annotations

import pytest

from tests.ledger.repair_cluster import Cluster


@pytest.fixture
async def cluster() -> Cluster:
    made = Cluster(3)
    await made.know()
    return made
