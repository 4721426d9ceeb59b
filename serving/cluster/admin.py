"""What operators ask of a broker that is more than one call of one of its parts: `broker.admin.topics`, and so on."""

from __future__ import annotations

from quire.ledger.bookies import Bookies
from quire.ledger.losses import Losses
from quire.runtime.member import Member
from quire.serving.cluster.archive_admin import ArchiveAdmin
from quire.serving.cluster.deletion import Deletion
from quire.serving.cluster.fan_out import FanOut
from quire.serving.cluster.offloading import Offloading
from quire.serving.cluster.partitioned import Partitioned
from quire.serving.cluster.peeking import Peeking
from quire.serving.cluster.policy_admin import PolicyAdmin
from quire.serving.cluster.policy_updates import PolicyUpdates
from quire.serving.cluster.registry import Registry
from quire.serving.cluster.statistics import Statistics
from quire.serving.cluster.subscription_admin import SubscriptionAdmin
from quire.serving.cluster.topic_admin import TopicAdmin
from quire.serving.cluster.topic_metrics import TopicMetrics
from quire.serving.cluster.topic_table import TopicTable
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
        self.topics = TopicAdmin(registry, deletion, fan_out)
        self.peeking = Peeking(registry, fan_out)
        self.table = TopicTable(registry, services, fan_out)
        self.statistics = Statistics(registry, services, fan_out, offloading)
        self.subscriptions = SubscriptionAdmin(registry, partitioned, fan_out)
        self.policies = PolicyAdmin(registry, PolicyUpdates(registry, services.tasks), fan_out)
        self.archive = ArchiveAdmin(offloading, fan_out)
        self.bookies = Bookies(services.ledgers)
        self.metrics = TopicMetrics(registry, services)
        self.losses = Losses(services.ledgers, services.archive)
        self.member = Member("broker", services.settings.listen)
        """The process that this broker is in, as it tells of itself; whoever starts one knows more of it."""
