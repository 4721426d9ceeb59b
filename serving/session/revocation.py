"""What is taken away while it is used: permissions, and what let somebody in.

Users, passwords and keys (`end_withdrawn`): connections whose credentials would let nobody in any more are closed.
Clients come back, and log in by new ones or are refused.

Permissions (`revoke`): producers, consumers and watchers that are open are closed within seconds.

Every `LOOK_EACH_S` the namespaces are taken whose grants have changed since (`Guard.take_changed`), and all that is
open in them is asked about again, some at a time; when nothing has changed, nothing is done. What is being let in was
asked about a moment ago, before the change maybe, so its namespace is looked at again in the next round.

A client whose producer or consumer is closed looks its topic up again and is refused in words.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from quire.runtime.errors import ConfigurationError
from quire.runtime.tasks import Tasks
from quire.security.authentication import LOOK_EACH_S
from quire.security.authorization import Action, Place
from quire.serving.policy.guard import Guard, place_of
from quire.serving.session.connection import Connection
from quire.serving.session.consume import ConsumerEnd
from quire.serving.session.produce import ProducerEnd
from quire.serving.session.topic_watch import TopicWatcher

ENDS_A_TURN: Final = 100
LOGINS_A_TURN: Final = 1_000

End = ProducerEnd | ConsumerEnd | TopicWatcher
_log = logging.getLogger(__name__)


def start_revoking(guard: Guard, tasks: Tasks, sessions: Callable[[], Sequence[Connection]]) -> None:
    """Do both from now on; `sessions` are those that are open."""
    tasks.start_every(LOOK_EACH_S, lambda: revoke(guard, sessions()), "revoking permissions")
    tasks.start_every(LOOK_EACH_S, lambda: end_withdrawn(guard, sessions()), "ending withdrawn logins")


async def end_withdrawn(guard: Guard, sessions: Sequence[Connection]) -> None:
    """Close connections whose credentials count no longer; see `Authentication.holds`."""
    await guard.authentication.look()
    for count, connection in enumerate(sessions, 1):
        login = connection.peer.login
        if login is not None and not guard.authentication.holds(login.identity):
            login.withdraw()
        if count % LOGINS_A_TURN == 0:
            await asyncio.sleep(0)


async def revoke(guard: Guard, sessions: Iterable[Connection]) -> None:
    """Close what is open and no longer allowed."""
    changed = guard.take_changed()
    if not changed:
        return
    try:
        for count, (connection, end) in enumerate(list(_ends(sessions)), 1):
            try:
                place, action = _asked(end)
            except ConfigurationError:
                continue  # it names no topic, so it is never let in
            if (place.tenant, place.namespace) in changed or (place.tenant, "") in changed:
                await _look_at(guard, connection, end, action, place)
            if count % ENDS_A_TURN == 0:
                await asyncio.sleep(0)
    except BaseException:
        for tenant, namespace in changed:
            guard.look_again(tenant, namespace)
        raise


def _ends(sessions: Iterable[Connection]) -> Iterator[tuple[Connection, End]]:
    for connection in sessions:
        ends: list[End] = [*connection.producers.values(), *connection.consumers.values()]
        for end in (*ends, *connection.watchers.values()):
            yield connection, end


def _asked(end: End) -> tuple[Place, Action]:
    """What it was let in for."""
    if isinstance(end, TopicWatcher):
        return Place(*end.namespace), Action.LIST_TOPICS
    if isinstance(end, ConsumerEnd):
        return place_of(end.topic_name, end.subscription_name), Action.CONSUME
    return place_of(end.topic_name), Action.PRODUCE


async def _look_at(guard: Guard, connection: Connection, end: End, action: Action, place: Place) -> None:
    login = connection.peer.login
    if login is None or connection.is_closed:
        return
    decision = await guard.still_may(login.identity, action, place)
    if decision.allowed:
        if not _is_open(end):
            guard.look_again(place.tenant, place.namespace)
        return
    if _is_open(end):
        _log.info("%s: closing what it may no longer have: %s", connection.peer.name, decision.why)
        guard.audit.record(
            "revoked", login.identity, connection.peer.address, action.name, str(place), decision.why
        )
        end.revoke()
    else:
        guard.look_again(place.tenant, place.namespace)


def _is_open(end: End) -> bool:
    """It was let in, and has not left."""
    if isinstance(end, ProducerEnd):
        return end.topic is not None and not end.is_closed
    return end.is_open
