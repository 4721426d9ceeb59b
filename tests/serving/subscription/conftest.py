"""What the tests of subscriptions share."""

from __future__ import annotations

import pytest

from tests.serving.subscription.stand import Stand


@pytest.fixture
def stand() -> Stand:
    return Stand()
