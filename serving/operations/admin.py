"""Parts that serve operators' requests: `broker.admin.topics` and others."""

from __future__ import annotations

from quire.ledger.bookies import Bookies
from quire.ledger.losses import Losses
from quire.runtime.member import Member
from quire.serving.operations.archive_admin import ArchiveAdmin
from quire.serving.operations.deletion import Deletion
from quire.serving.operations.dynamic_settings import DynamicSettings, broker_settings
from quire.serving.operations.fan_out import FanOut
from quire.serving.operations.messages import Messages
from quire.serving.operations.partitioned import Partitioned
from quire.serving.operations.policy_admin import PolicyAdmin, PolicyUpdates
from quire.serving.operations.statistics import Statistics
from quire.serving.operations.subscription_admin import SubscriptionAdmin
from quire.serving.operations.tables import Tables
from quire.serving.operations.topic_admin import TopicAdmin
from quire.serving.operations.topic_metrics import TopicMetrics
from quire.serving.registry.offloading import Offloading
from quire.serving.registry.registry import Registry
from quire.serving.topic.services import Services


class Admin:
    def __init__(
        self,
        services: Services,
        registry: Registry,
        partitioned: Partitioned,
        deletion: Deletion,
        fan_out: FanOut,
        offloading: Offloading | None,
    ) -> None:
        self.topics = TopicAdmin(registry, deletion, fan_out, offloading)
        self.messages = Messages(registry, services, fan_out)
        self.tables = Tables(registry, services, fan_out)
        self.statistics = Statistics(registry, services, fan_out, offloading)
        self.subscriptions = SubscriptionAdmin(registry, partitioned, fan_out)
        updates = PolicyUpdates(registry, services.tasks)
        self.policies = PolicyAdmin(registry, updates, fan_out)
        self.settings = DynamicSettings(services.store, services.tasks)
        self.settings.add(broker_settings(services, registry, updates, offloading))
        self.archive = ArchiveAdmin(offloading, fan_out)
        self.bookies = Bookies(services.ledgers)
        self.metrics = TopicMetrics(registry, services)
        self.losses = Losses(services.ledgers, services.archive)
        self.metadata_url = ""
        """URL of the metadata store, without secrets; the code that starts the process sets it."""
        self.member = Member("broker", services.settings.listen)
        """Description of this broker's process; the code that starts the process adds to it."""
