"""Policies that change while topics are loaded: each topic of the namespace gets what holds for it now."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from quire.runtime.errors import CorruptionError, NotFound, QuireError
from quire.runtime.tasks import Tasks
from quire.serving.cluster.registry import Registry
from quire.serving.names import TopicName
from quire.serving.topic.topic import must_be_loaded_anew

RETRY_S: Final = 1.0
TOPICS_A_TURN: Final = 500
"""That get other policies in one turn of the event loop."""

_log = logging.getLogger(__name__)


class PolicyUpdates:
    def __init__(self, registry: Registry, tasks: Tasks) -> None:
        self._registry = registry
        self._tasks = tasks
        registry.policies.on_change(self._changed)

    def _changed(self, tenant: str, namespace: str) -> None:
        if self._registry.in_namespace(tenant, namespace):
            self._tasks.start(self._follow(tenant, namespace), f"policies of {tenant}/{namespace}")

    async def _follow(self, tenant: str, namespace: str) -> None:
        """As `apply`, however long the metadata store takes to tell."""
        while True:
            try:
                await self.apply(tenant, namespace)
                return
            except QuireError as error:
                _log.warning(
                    "policies of %s/%s cannot be applied, trying again: %s", tenant, namespace, error
                )
                await asyncio.sleep(RETRY_S)

    async def apply(self, tenant: str, namespace: str) -> None:
        """What is known to be prescribed holds for every topic when this returns: for those that are being loaded, too.

        Raises `Unavailable` when it cannot be read; then it holds later.
        """
        for count, name in enumerate(self._registry.in_namespace(tenant, namespace), 1):
            await self._apply_to(name)
            if count % TOPICS_A_TURN == 0:
                await asyncio.sleep(0)

    async def _apply_to(self, name: TopicName) -> None:
        """Give a topic, if it is loaded, what holds for it now."""
        try:
            policies = await self._registry.policies.of(name)
        except NotFound:
            return  # its namespace is gone
        except CorruptionError as error:
            _log.error("topic %s keeps the policies that it has: %s", name, error)
            return
        topic = self._registry.find(name)
        if topic is not None:
            topic.apply(policies)
            if must_be_loaded_anew(topic, policies):
                await self._registry.unload(name)
