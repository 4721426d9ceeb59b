"""What the tests of a bookie share."""

from __future__ import annotations

import pytest

from quire.testing.node import SimulatedNode


@pytest.fixture
def machine() -> SimulatedNode:
    return SimulatedNode(seed=1)
