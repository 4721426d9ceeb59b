"""A producer that listens to nothing, and what is published for it past all sessions."""

from __future__ import annotations

from typing import Any

from quire.serving.topic.runs import PublishRun


class Silent:
    name = "silent"

    def nothing(self, *_: object) -> None: ...

    write = close = nothing


def publish_silently(topic: Any, *entries: bytes, head: bytes = b"h") -> None:
    topic.log.publisher.publish(Silent(), PublishRun.of(1, [head] * len(entries), list(entries)))
