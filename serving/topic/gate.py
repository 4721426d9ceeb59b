"""What a topic's policies ask of each run of SENDs before it is taken: its rate, and the size of its messages.

A topic without such policies has no gate, so what is off costs one look at an attribute per run. Producers that come
too fast wait here, one behind the other over all connections, and are called back one by one as the rate allows;
what they sent meanwhile waits with their sessions, which stop reading when it gets too much.

When other limits hold, the former gate is opened (`regated`), and everybody asks the new one.
"""

from __future__ import annotations

import asyncio
from collections import deque

from quire.runtime.clock import Clock
from quire.serving.policy.resolved import TopicPolicies
from quire.serving.ports import Done
from quire.serving.topic.rate_limit import RateLimit

TIMER_SLACK_S = 0.001
"""A timer that fires a moment early would only be set again."""


class Gate:
    """See the top of the file. `message_bytes_max` 0: any size that a frame can have."""

    def __init__(self, limit: RateLimit | None, message_bytes_max: int, clock: Clock) -> None:
        self._limit = limit
        self._clock = clock
        self._waiting: deque[Done] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._is_releasing = False
        self.waits = 0
        """How often a producer had to wait."""
        self.message_bytes_max = message_bytes_max

    def is_open(self) -> bool:
        """A run may pass now. Else `wait`."""
        if self._limit is None:
            return True
        is_next = self._is_releasing or not self._waiting
        return is_next and self._limit.wait_s(self._clock.monotonic()) <= 0

    def wait(self, resume: Done) -> None:
        """Call `resume` when a run may pass, behind all who waited before."""
        self.waits += 1
        self._waiting.append(resume)
        if self._timer is None:
            self._arm()

    def passed(self, messages: int, byte_count: int) -> None:
        """A run was taken."""
        if self._limit is not None:
            self._limit.take(messages, byte_count)

    def open(self) -> None:
        """Other policies hold, or the topic is closed: nobody waits any more."""
        self._limit = None
        if self._timer is not None:
            self._timer.cancel()
        waiting, self._waiting = self._waiting, deque()
        for resume in waiting:
            resume()

    def _arm(self) -> None:
        wait_s = 0.0 if self._limit is None else self._limit.wait_s(self._clock.monotonic())
        delay_s = wait_s + TIMER_SLACK_S
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._release)

    def _release(self) -> None:
        """Let in who waits, each with what it has, as far as the rate allows."""
        self._timer = None
        self._is_releasing = True
        while self._waiting and self.is_open():
            self._waiting.popleft()()
        self._is_releasing = False
        if self._waiting and self._timer is None:
            self._arm()


def make_gate(policies: TopicPolicies, clock: Clock) -> Gate | None:
    """None where the policies limit nothing."""
    rate = policies.publish_rate
    is_limited = rate.messages_per_s > 0 or rate.bytes_per_s > 0
    if not is_limited and policies.message_bytes_max <= 0:
        return None
    limit = RateLimit(rate, clock.monotonic()) if is_limited else None
    return Gate(limit, policies.message_bytes_max, clock)


def regated(gate: Gate | None, former: TopicPolicies, policies: TopicPolicies, clock: Clock) -> Gate | None:
    """The gate for `policies`: the same when nothing that it knows has changed; who waited at another one asks anew."""
    if (former.publish_rate, former.message_bytes_max) == (policies.publish_rate, policies.message_bytes_max):
        return gate
    if gate is not None:
        asyncio.get_running_loop().call_soon(gate.open)
    return make_gate(policies, clock)
