"""Tables of the console: one page of a namespace's topics, and the numbers of all namespaces."""

from __future__ import annotations

from quire.serving.operations.fan_out import FanOut
from quire.serving.operations.namespace_table import NamespaceTable
from quire.serving.operations.topic_table import TopicTable
from quire.serving.registry.registry import Registry
from quire.serving.topic.services import Services


class Tables:
    def __init__(self, registry: Registry, services: Services, fan_out: FanOut) -> None:
        self.topics = TopicTable(registry, services, fan_out)
        self.namespaces = NamespaceTable(registry, services, fan_out)
