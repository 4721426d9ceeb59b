"""`/quire/v1/topics/…/policies` and `/quire/v1/namespaces/…/policies`: effective policies, and where each is set.

The answers are keyed by the policies' last path segments, as in `policies`, which changes single policies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from quire.metadata.records import Policies
from quire.security.authorization import Action
from quire.serving.admin.policy_json import QUOTAS, namespace_policies_shown, topic_policies_shown
from quire.serving.admin.route import OF_NAMESPACE, TOPIC_NAME, Route
from quire.serving.broker import Broker
from quire.serving.names import TopicName

BY_TOPIC: Final = "/quire/v1/topics/{domain:persistent}/{tenant}/{namespace}/{topic}/policies"
BY_NAMESPACE: Final = "/quire/v1/namespaces/{tenant}/{namespace}/policies"


def routes(broker: Broker) -> Sequence[Route]:
    policies, services = broker.admin.policies, broker.services

    def defaults() -> dict[str, Any]:
        """Return the broker's settings for policies that topics cannot have."""
        return namespace_policies_shown(
            Policies(
                auto_topic_creation=services.settings.auto_topic_creation,
                topics_max=services.limits.topics_per_namespace,
            )
        )

    async def of_topic(topic: TopicName) -> dict[str, Any]:
        """Return a topic's own and effective policies, and the level that sets each.

        The level is `topic`, `namespace` or `broker`.
        """
        prescribed = topic_policies_shown(await policies.own(topic))
        applied = topic_policies_shown(await policies.effective(topic))
        namespace = await broker.namespaces.get(topic.tenant, topic.namespace)
        sources = _sources(topic=prescribed, namespace=topic_policies_shown(namespace.policies))
        return {"prescribed": prescribed, "applied": applied, "sources": sources}

    async def of_namespace(tenant: str, namespace: str) -> dict[str, Any]:
        """Return a namespace's own policies, those of a topic that has none of its own, and the level that sets each.

        The level is `namespace` or `broker`.
        """
        prescribed = namespace_policies_shown((await broker.namespaces.get(tenant, namespace)).policies)
        topics = namespace_policies_shown(await broker.registry.policies.of_namespace(tenant, namespace))
        lowest = defaults()
        applied = {word: _first(topics[word], prescribed[word], lowest[word]) for word in topics}
        return {"prescribed": prescribed, "applied": applied, "sources": _sources(namespace=prescribed)}

    return (
        Route("GET", BY_TOPIC, of_topic, TOPIC_NAME, may=Action.ADMINISTER),
        Route("GET", BY_NAMESPACE, of_namespace, *OF_NAMESPACE, may=Action.ADMINISTER),
    )


def _sources(**levels: Mapping[str, Any]) -> dict[str, Any]:
    """Return the level that sets each policy: the first of `levels`, policies as shown, with a value; or `broker`.

    Each type of backlog quota has its own level.
    """
    words = next(iter(levels.values()))
    found: dict[str, Any] = {
        word: _source({name: shown[word] for name, shown in levels.items()}) for word in words
    }
    quotas = {name: shown["backlogQuota"] or {} for name, shown in levels.items()}
    found["backlogQuota"] = {
        kind: _source({name: both.get(kind) for name, both in quotas.items()}) for kind in QUOTAS
    }
    return found


def _source(values: Mapping[str, Any]) -> str:
    return next((name for name, value in values.items() if value is not None), "broker")


def _first(*values: Any) -> Any:
    return next((value for value in values if value is not None), None)
