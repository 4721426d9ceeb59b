"""Is our ZooKeeper session alive, in doubt or over? A core that trusts its own clock and not the library's word.

    state       input                                          next        told
    CONNECTING  connected                                      CONNECTED
    CONNECTED   the connection dropped                         SUSPENDED   SUSPENDED
    CONNECTED   nothing heard for 2/3 of the session time-out  SUSPENDED   SUSPENDED
    SUSPENDED   connected with the same session; an answer     CONNECTED   RESUMED
    any         connected with another session                 CONNECTED   LOST (from CONNECTING: nothing)
    any         the server says that the session expired       CONNECTING  LOST (from CONNECTING: nothing)
    any         nothing heard for the session time-out         CONNECTING  LOST (from CONNECTING: nothing)

The server ends a session when it has heard nothing of it for the time-out. What we know of that is this: it heard us
no earlier than when we *asked* something that it answered. From there our clock runs, so we give the session up before
anybody else can have its ephemeral nodes. The time at which the connection was seen to drop proves nothing: a hung
server is noticed late, and by kazoo not at all while requests are being sent.

After a quarter of the time-out without an answer the shell asks something for the answer's sake. That takes the place
of ZooKeeper's own ping, at the same rate.

A session that was given up may still live on the server (a server that was away starts all time-outs anew). It must not
be taken up again, for its holder has said that it is lost: `gave_up` names it, and the shell ends it.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from quire.metadata.store import SessionEvent

ASK_AFTER: Final = 1 / 4
DOUBT_AFTER: Final = 2 / 3
"""Of the session time-out, without an answer."""


class SessionState(Enum):
    CONNECTING = "connecting"
    CONNECTED = "connected"
    SUSPENDED = "suspended"


class SessionCore:
    """See the table. Times are monotonic seconds. Each input returns the event to tell, if any."""

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        """As asked for, and from the first connection on as the server granted it."""
        self.state = SessionState.CONNECTING
        self.session_id = 0
        self.gave_up = 0
        """The session that we called lost though the server did not; 0: none."""
        self._heard_at = 0.0
        self._asked = False

    def connected(self, session_id: int, timeout_s: float, asked_at: float) -> SessionEvent | None:
        assert session_id != self.gave_up, "a session that was given up is not taken up again"
        before, same = self.state, session_id == self.session_id
        self.state, self.session_id, self.timeout_s = SessionState.CONNECTED, session_id, timeout_s
        self.gave_up = 0
        self._hear(asked_at if not same else max(asked_at, self._heard_at))
        if before is SessionState.CONNECTING:
            return None
        if not same:
            return SessionEvent.LOST
        return SessionEvent.RESUMED if before is SessionState.SUSPENDED else None

    def answered(self, asked_at: float) -> SessionEvent | None:
        """The server answered what was asked at `asked_at`."""
        if self.state is SessionState.CONNECTING:
            return None
        self._hear(max(asked_at, self._heard_at))
        if self.state is SessionState.CONNECTED:
            return None
        self.state = SessionState.CONNECTED
        return SessionEvent.RESUMED

    def dropped(self) -> SessionEvent | None:
        if self.state is not SessionState.CONNECTED:
            return None
        self.state = SessionState.SUSPENDED
        return SessionEvent.SUSPENDED

    def expired(self) -> SessionEvent | None:
        if self.state is SessionState.CONNECTING:
            return None
        self.state = SessionState.CONNECTING
        return SessionEvent.LOST

    def tick(self, now: float) -> SessionEvent | None:
        if self.state is SessionState.CONNECTING:
            return None
        silent_s = now - self._heard_at
        if silent_s >= self.timeout_s:
            self.gave_up = self.session_id
            return self.expired()
        return self.dropped() if silent_s >= self.timeout_s * DOUBT_AFTER else None

    def should_ask(self, now: float) -> bool:
        """Whether to ask something now; true once for each silence."""
        due = self.state is SessionState.CONNECTED and now - self._heard_at >= self.timeout_s * ASK_AFTER
        if not due or self._asked:
            return False
        self._asked = True
        return True

    def wake_in(self, now: float) -> float:
        """Seconds until `tick` or `should_ask` may have something to say, if nothing else happens."""
        if self.state is SessionState.CONNECTING:
            return self.timeout_s * ASK_AFTER
        asking = self.state is SessionState.CONNECTED and not self._asked
        doubting = self.state is SessionState.CONNECTED and self._asked
        share = ASK_AFTER if asking else DOUBT_AFTER if doubting else 1.0
        return max(0.0, self._heard_at + self.timeout_s * share - now)

    def _hear(self, at: float) -> None:
        self._heard_at = at
        self._asked = False
