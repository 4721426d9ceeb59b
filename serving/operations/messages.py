"""The operations on messages of operators: reading, searching and publishing."""

from __future__ import annotations

from quire.serving.operations.fan_out import FanOut
from quire.serving.operations.peeking import Peeking
from quire.serving.operations.publishing import Publishing
from quire.serving.operations.searching import Searching
from quire.serving.registry.registry import Registry
from quire.serving.topic.services import Services


class Messages:
    def __init__(self, registry: Registry, services: Services, fan_out: FanOut) -> None:
        self.peeking = Peeking(registry, fan_out)
        self.searching = Searching(registry, services, fan_out)
        self.publishing = Publishing(registry, services, fan_out)
