"""Deletion of one topic, with all its data, by the broker that owns it.

The topic's record is marked first and deleted last. An interrupted deletion is resumed by the next broker that finds
the mark (`Catalogue.on_deleting`).
"""

from __future__ import annotations

from collections.abc import Callable

from quire.runtime.errors import QuireError
from quire.serving.names import TopicName
from quire.serving.registry.registry import Registry
from quire.serving.topic.topic import PersistentTopic, is_persistent


async def delete(
    registry: Registry, name: TopicName, unless: Callable[[PersistentTopic], bool] = lambda _: False
) -> None:
    """Delete a topic, unless `unless` returns True for it.

    `unless` is called immediately before the deletion begins, so that no client can attach in between. Raises
    `NotFound`, and `Unavailable` if the deletion should be tried again.
    """
    while True:
        topic = await registry.open_to_delete(name)
        if not topic.is_closed and not registry.is_closing(name):
            break  # otherwise another request closed it first
    if is_persistent(topic) and unless(topic):
        return
    try:
        await registry.close(name, lambda: topic.delete(lambda: _forget(registry, name)))
    except QuireError:
        registry.catalogue.on_deleting(name)
        raise


async def _forget(registry: Registry, name: TopicName) -> None:
    """Delete the topic's policies and schemas; those of a partition belong to its parent, and are deleted with it."""
    if name.parent is None or await registry.records.find(name.parent) is None:
        await registry.policies.forget(name)
        await registry.schemas.forget(name)
