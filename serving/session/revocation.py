"""Revocation of credentials and permissions that open sessions use.

Credentials (`end_withdrawn`): the broker closes connections whose users, passwords or keys are no longer valid. Their
clients reconnect, and log in with new credentials or are rejected.

Permissions (`revoke`): when a role loses a permission, the broker closes its producers, consumers and watchers within
seconds.

Every `LOOK_EACH_S` seconds the broker lists the namespaces whose grants have changed (`Guard.take_changed`). It checks
the open producers, consumers and watchers in these namespaces again, `ENDS_A_TURN` at a time. A producer that is
currently being admitted may have been checked before the change, so its namespace is checked again in the next round.

A client whose producer or consumer is closed looks its topic up again, and is rejected with the reason.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from quire.runtime.errors import ConfigurationError
from quire.runtime.tasks import Tasks
from quire.security.audit import Caller
from quire.security.authentication import LOOK_EACH_S
from quire.security.authorization import Action, Place
from quire.serving.policy.guard import Guard, place_of
from quire.serving.session.consumer_end import ConsumerEnd
from quire.serving.session.producer_end import ProducerEnd
from quire.serving.session.session import Session
from quire.serving.session.topic_watch import TopicWatcher

ENDS_A_TURN: Final = 100
LOGINS_A_TURN: Final = 1_000

End = ProducerEnd | ConsumerEnd | TopicWatcher
_log = logging.getLogger(__name__)


def start_revoking(guard: Guard, tasks: Tasks, sessions: Callable[[], Sequence[Session]]) -> None:
    """Start the periodic checks of credentials and permissions; `sessions` returns the open sessions."""
    tasks.start_every(LOOK_EACH_S, lambda: revoke(guard, sessions()), "revoking permissions")
    tasks.start_every(LOOK_EACH_S, lambda: end_withdrawn(guard, sessions()), "ending withdrawn logins")


async def end_withdrawn(guard: Guard, sessions: Sequence[Session]) -> None:
    """Close connections whose credentials are no longer valid; see `Authentication.holds`."""
    await guard.authentication.look()
    for count, session in enumerate(sessions, 1):
        login = session.login
        identity = session.peer.identity
        if login is not None and identity is not None and not guard.authentication.holds(identity):
            login.withdraw()
        if count % LOGINS_A_TURN == 0:
            await asyncio.sleep(0)


async def revoke(guard: Guard, sessions: Iterable[Session]) -> None:
    """Close producers, consumers and watchers that are no longer allowed."""
    changed = guard.take_changed()
    if not changed:
        return
    try:
        for count, (session, end) in enumerate(list(_ends(sessions)), 1):
            try:
                place, action = _asked(end)
            except ConfigurationError:
                continue  # its topic name is invalid, so it is never admitted
            if (place.tenant, place.namespace) in changed or (place.tenant, "") in changed:
                await _look_at(guard, session, end, action, place)
            if count % ENDS_A_TURN == 0:
                await asyncio.sleep(0)
    except BaseException:
        for tenant, namespace in changed:
            guard.look_again(tenant, namespace)
        raise


def _ends(sessions: Iterable[Session]) -> Iterator[tuple[Session, End]]:
    for session in sessions:
        ends: list[End] = [*session.producers.values(), *session.consumers.values()]
        for end in (*ends, *session.watchers.values()):
            yield session, end


def _asked(end: End) -> tuple[Place, Action]:
    """Return the place and the action that were checked when the producer, consumer or watcher was admitted."""
    if isinstance(end, TopicWatcher):
        return Place(*end.namespace), Action.LIST_TOPICS
    if isinstance(end, ConsumerEnd):
        return place_of(end.topic_name, end.subscription_name), Action.CONSUME
    return place_of(end.topic_name), Action.PRODUCE


async def _look_at(guard: Guard, session: Session, end: End, action: Action, place: Place) -> None:
    identity = session.peer.identity
    if identity is None or session.is_closed:
        return
    decision = await guard.still_may(identity, action, place)
    if decision.allowed:
        if not _is_open(end):
            guard.look_again(place.tenant, place.namespace)
        return
    if _is_open(end):
        _log.info(
            "permission revoked, closing a producer or consumer: connection=%s reason=%s",
            session.peer.name,
            decision.why,
        )
        caller = Caller(identity, session.peer.address, action.name)
        guard.audit.record("revoked", caller, str(place), decision.why)
        end.revoke()
    else:
        guard.look_again(place.tenant, place.namespace)


def _is_open(end: End) -> bool:
    """Return whether the producer, consumer or watcher was admitted and is not closed."""
    if isinstance(end, ProducerEnd):
        return end.topic is not None and not end.is_closed
    return end.is_open
