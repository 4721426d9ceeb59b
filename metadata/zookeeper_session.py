"""State of a ZooKeeper session (alive, in doubt, over), as a core that relies on its own clock, not on the library.

    state       input                                          next        event
    CONNECTING  connected                                      CONNECTED
    CONNECTED   the connection dropped                         SUSPENDED   SUSPENDED
    CONNECTED   no answer for 2/3 of the session time-out      SUSPENDED   SUSPENDED
    SUSPENDED   connected with the same session; an answer     CONNECTED   RESUMED
    any         connected with another session                 CONNECTED   LOST (from CONNECTING: nothing)
    any         the server reports that the session expired    CONNECTING  LOST (from CONNECTING: nothing)
    any         no answer for the session time-out             CONNECTING  LOST (from CONNECTING: nothing)

The server ends a session when it has received nothing from it for the time-out. When a request is answered, the client
knows only that the server received it no earlier than the client *sent* it. The client measures the time-out from when
it sent the last answered request, so it gives the session up before another process can get the session's ephemeral
nodes. The time when a connection drops proves nothing: a hung server is detected late, and by kazoo not at all while
requests are being sent.

After a quarter of the time-out without an answer, the shell sends a request. It replaces ZooKeeper's own ping, at the
same rate.

A session that was given up may still live on the server (a server that was down restarts all time-outs). It must not be
resumed, because it was reported to its users as lost: `gave_up` contains its id, and the shell ends it.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from quire.metadata.store import SessionEvent

ASK_AFTER: Final = 1 / 4
DOUBT_AFTER: Final = 2 / 3
"""Time without an answer, as a share of the session time-out, after which the session is in doubt.

After the share `ASK_AFTER`, the shell sends a request.
"""


class SessionState(Enum):
    CONNECTING = "connecting"
    CONNECTED = "connected"
    SUSPENDED = "suspended"


class SessionCore:
    """Core of one session; see the module's table. Times are monotonic seconds.

    The methods for inputs return the event to report, if any.
    """

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        """Session time-out in seconds: as requested, and after the first connection as granted by the server."""
        self.state = SessionState.CONNECTING
        self.session_id = 0
        self.gave_up = 0
        """Id of a session that this process gave up before the server did; 0 if there is none."""
        self._heard_at = 0.0
        self._asked = False

    def connected(self, session_id: int, timeout_s: float, asked_at: float) -> SessionEvent | None:
        assert session_id != self.gave_up, "a session that was given up is not resumed"
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
        """Handle the answer to a request that was sent at `asked_at`."""
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
        """Return whether to send a request now. True once in each period without an answer."""
        due = self.state is SessionState.CONNECTED and now - self._heard_at >= self.timeout_s * ASK_AFTER
        if not due or self._asked:
            return False
        self._asked = True
        return True

    def wake_in(self, now: float) -> float:
        """Return the seconds until `tick` or `should_ask` may have a result, if there is no other input."""
        if self.state is SessionState.CONNECTING:
            return self.timeout_s * ASK_AFTER
        asking = self.state is SessionState.CONNECTED and not self._asked
        doubting = self.state is SessionState.CONNECTED and self._asked
        share = ASK_AFTER if asking else DOUBT_AFTER if doubting else 1.0
        return max(0.0, self._heard_at + self.timeout_s * share - now)

    def _hear(self, at: float) -> None:
        self._heard_at = at
        self._asked = False
