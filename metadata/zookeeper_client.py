"""kazoo, held at arm's length: one connection's life, its callbacks on the loop, its exceptions in our words.

kazoo runs each client on a thread of its own. Here every callback of kazoo does one thing: it posts to the loop, in
the order in which the server spoke (`_Handler` leaves out kazoo's two further threads, which would lose that order).
So a watch's event reaches the loop before the answer that shows the change.

What kazoo does not tell is asked of its insides, at one place (`_attend_handshakes`): the time-out that the server
granted, and when the handshake began. There too, and in `_Handler`, an attempt to connect is given up after a quarter
of the session time-out. kazoo would wait all of it, for one server that is out of reach or that accepts before it can
answer (as one does that is just starting); by then the session is over, although another attempt would have saved it.

What an exception says about what was asked:

    kazoo                                          read           change
    NoNode, NodeExists, BadVersion, NotEmpty, …    refused, and the state it names is proven
    SessionExpired, SessionMoved, Throttled, …     Unavailable    Unavailable: the server did not take it
    NoAuth, AuthFailed, InvalidACL                 ConfigurationError
    ConnectionLoss and all others                  Unavailable    OutcomeUnknown
"""

from __future__ import annotations

import asyncio
import logging
import select
import socket
import threading
import time
from collections.abc import Callable
from ssl import SSLContext, SSLSocket
from typing import Any, Final, NamedTuple, Protocol

from kazoo import exceptions as kazoo_errors
from kazoo.client import KazooClient
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.serialization import Connect
from kazoo.protocol.states import EventType, KazooState
from kazoo.retry import KazooRetry
from kazoo.security import make_digest_acl

from quire.metadata.store import EphemeralParent, NotEmpty
from quire.metadata.zookeeper_wake import Wake
from quire.runtime.errors import (
    AlreadyExists,
    ConfigurationError,
    NotFound,
    OutcomeUnknown,
    QuireError,
    Unavailable,
    VersionConflict,
)
from quire.runtime.tls import why_failed

RECONNECT_DELAY_S_MAX: Final = 1.0
ATTEMPT_SHARE: Final = 1 / 4
ATTEMPT_S_MIN: Final = 1.0
"""How long an attempt to connect may take: a share of the session time-out, but at least this."""

_LOG: Final = logging.getLogger("quire.metadata.kazoo")
_LOG.setLevel(logging.ERROR)  # the store itself tells what happens to the session

_REFUSED: Final[dict[type[Exception], tuple[type[QuireError], str]]] = {
    kazoo_errors.NoNodeError: (NotFound, "there is no metadata node {}"),
    kazoo_errors.NodeExistsError: (AlreadyExists, "metadata node {} exists already"),
    kazoo_errors.BadVersionError: (VersionConflict, "metadata node {} is at another version"),
    kazoo_errors.NotEmptyError: (NotEmpty, "metadata node {} has children"),
    kazoo_errors.NoChildrenForEphemeralsError: (
        EphemeralParent,
        "the parent of metadata node {} is ephemeral and cannot have children",
    ),
}
_NOT_TAKEN: Final = (
    kazoo_errors.SessionExpiredError,
    kazoo_errors.SessionMovedError,
    kazoo_errors.ThrottledOpError,
    kazoo_errors.NotReadOnlyCallError,
)
_FORBIDDEN: Final = (
    kazoo_errors.NoAuthError,
    kazoo_errors.AuthFailedError,
    kazoo_errors.InvalidACLError,
    kazoo_errors.QuotaExceededError,
)


class Connected(NamedTuple):
    """A handshake that succeeded."""

    session_id: int
    timeout_s: float
    asked_at: float
    """Monotonic seconds when the handshake began."""


class ClientListener(Protocol):
    """What a client tells, on the loop. The store implements it."""

    def client_connected(self, client: Client, connected: Connected) -> None: ...

    def client_dropped(self, client: Client) -> None: ...

    def client_expired(self, client: Client) -> None: ...

    def client_watch(self, client: Client, kind: str, path: str) -> None: ...

    def client_answered(self, client: Client, answer: Answer) -> None: ...


class Answer(NamedTuple):
    """What became of a request: `result`, or `error` as kazoo has it."""

    future: asyncio.Future[Any]
    asked_at: float
    result: Any
    error: Exception | None


def in_our_words(error: Exception, path: str, *, change: bool) -> QuireError:
    """`error` of kazoo as ours; see the table."""
    refused = _REFUSED.get(type(error))
    if refused is not None:
        kind, words = refused
        return kind(words.format(path))
    name = type(error).__name__
    if isinstance(error, _FORBIDDEN):
        return ConfigurationError(
            f"ZooKeeper forbids what was asked of {path} ({name}): the security file must have in [metadata] the user "
            "and the password that it was made with, or mend its ACLs"
        )
    if isinstance(error, _NOT_TAKEN) or not change:
        return Unavailable(f"the metadata store cannot be reached for {path} ({name}); try again")
    return OutcomeUnknown(
        f"no answer to a change of metadata node {path} ({name}); read it to see what holds"
    )


def _logging_in(login: bytes) -> dict[str, Any]:
    """Say who we are on each connection, and let nobody else have what we make: no reading either."""
    user, _, password = login.decode().partition(":")
    if not user:
        return {}
    return {
        "auth_data": [("digest", f"{user}:{password}")],
        "default_acl": [make_digest_acl(user, password, all=True)],
    }


def is_answer(error: Exception | None) -> bool:
    """Whether the server itself has spoken."""
    return error is None or type(error) in _REFUSED


def was_rolled_back(result: object) -> bool:
    """Whether a transaction's step is innocent of the refusal of another one."""
    return isinstance(result, kazoo_errors.RolledBackError | kazoo_errors.RuntimeInconsistency)


class Client:
    """One kazoo client: it connects by itself and again whenever it must, until `end`. All calls on the loop."""

    def __init__(
        self,
        hosts: str,
        session_timeout_s: float,
        listener: ClientListener,
        tls: Callable[[], SSLContext] | None = None,
        login: bytes = b"",
    ) -> None:
        """`tls` gives the context for each connection; called on kazoo's thread. `login`: USER:PASSWORD."""
        self._loop = asyncio.get_running_loop()
        self._listener = listener
        self._handshake = (session_timeout_s, 0.0)
        self._attempt_s = max(ATTEMPT_S_MIN, session_timeout_s * ATTEMPT_SHARE)
        self._ending: asyncio.Future[None] | None = None
        self._end_lock = threading.Lock()
        self._is_ended = False
        self.was_given_up = False
        """Its session was, or is being, ended by `give_up`."""
        retry = KazooRetry(
            max_tries=-1, delay=0.05, backoff=1.5, max_delay=RECONNECT_DELAY_S_MAX, max_jitter=0.3
        )
        self._handler = _Handler(self._attempt_s, tls)
        self._kazoo = KazooClient(
            hosts=hosts,
            timeout=session_timeout_s,
            handler=self._handler,
            connection_retry=retry,
            logger=_LOG,
            **_logging_in(login),
        )
        self._attend_handshakes()
        self._kazoo.add_listener(self._state_changed)
        self._kazoo.start_async()

    @property
    def refused(self) -> str:
        """Why the last attempt at TLS failed, if it did."""
        return self._handler.refused

    @property
    def thinks_it_is_connected(self) -> bool:
        return bool(self._kazoo.connected)

    @property
    def is_dead(self) -> bool:
        """Whether kazoo gave up for good, as after an exception that it did not expect."""
        thread = self._kazoo._connection._connection_routine
        return thread is not None and not thread.is_alive()

    def ask(self, request: Callable[[KazooClient], Any]) -> asyncio.Future[Any]:
        """Send a request; its answer goes to the listener, with the future that this call returns."""
        future = self._loop.create_future()
        asked_at = time.monotonic()
        request(self._kazoo).rawlink(
            lambda done: self._post(
                self._listener.client_answered, Answer(future, asked_at, done.value, done.exception)
            )
        )
        return future

    def data_watcher(self, event: Any) -> None:
        """Give this to kazoo as the watch of any path's data. On kazoo's thread."""
        if event.type != EventType.NONE:
            self._post(self._listener.client_watch, event.type, event.path)

    def child_watcher(self, event: Any) -> None:
        """Give this to kazoo as the watch of any path's children; of a deletion the other one tells."""
        if event.type != EventType.DELETED:
            self.data_watcher(event)

    async def end(self) -> None:
        """End the session, if the server can be told, and the thread. It takes up to the session time-out."""
        if self._ending is None:
            self._ending = self._loop.run_in_executor(None, self._end)
        await asyncio.shield(self._ending)

    def give_up(self) -> None:
        """End the session without the loop's help. From any thread; it returns at once."""
        self.was_given_up = True
        threading.Thread(target=self._end, name="quire-zookeeper-end", daemon=True).start()

    def _end(self) -> None:
        with self._end_lock:
            if self._is_ended:
                return
            self._is_ended = True
            try:
                self._kazoo.stop()
                self._kazoo.close()
            except Exception as error:  # of a library in its death throes; the session ends by itself
                _LOG.error("a ZooKeeper client did not end in good order: %r", error)

    # -- on kazoo's thread -----------------------------------------------------------------------------
    def _state_changed(self, state: str) -> None:
        if state == KazooState.CONNECTED:
            timeout_s, asked_at = self._handshake
            session_id = self._kazoo.client_id[0]
            self._post(self._listener.client_connected, Connected(session_id, timeout_s, asked_at))
        elif state == KazooState.SUSPENDED:
            self._post(self._listener.client_dropped)
        else:
            self._post(self._listener.client_expired)

    def _attend_handshakes(self) -> None:
        connection = self._kazoo._connection
        invoke = connection._invoke

        def attended(timeout: float, request: Any, xid: int | None = None) -> Any:
            if not isinstance(request, Connect):
                return invoke(timeout, request, xid)
            asked_at = time.monotonic()
            answer = invoke(min(timeout, self._attempt_s), request, xid)
            self._handshake = (answer[0].time_out / 1000, asked_at)
            return answer

        connection._invoke = attended

    def _post(self, callback: Callable[..., None], *arguments: object) -> None:
        try:
            self._loop.call_soon_threadsafe(callback, self, *arguments)
        except RuntimeError:
            pass  # the loop is closed, and with it everyone who listened


class _Handler(SequentialThreadingHandler):  # type: ignore[misc]
    """Runs callbacks at once, on the thread that reads the socket: they do nothing but post to the loop.

    TLS is ours as well: kazoo would look at no host's name, and read its files once.
    """

    def __init__(self, attempt_s: float, tls: Callable[[], SSLContext] | None) -> None:
        super().__init__()
        self._attempt_s = attempt_s
        self._tls = tls
        self.refused = ""

    def create_connection(
        self, address: tuple[str, int], hostname: str, timeout: float, **_options: Any
    ) -> socket.socket:
        sock = socket.create_connection(address, min(timeout, self._attempt_s))
        if self._tls is None:
            return sock
        try:
            wrapped = self._tls().wrap_socket(sock, server_hostname=hostname.strip("[]"))
        except (OSError, ConfigurationError) as error:
            self.refused = why_failed(error)
            sock.close()
            raise OSError(self.refused) from error
        self.refused = ""
        return wrapped

    def select(
        self, readers: list[Any], writers: list[Any], others: list[Any], timeout: float | None = None
    ) -> tuple[list[Any], list[Any], list[Any]]:
        """What TLS has read and decrypted already can be read, and the system knows nothing of it.

        kazoo asks for it within one answer only: the next answer of the same record would wait until another one comes.
        And it makes an epoll each time, four times for a request, which took as long as all the rest of one.
        """
        decrypted = [one for one in readers if isinstance(one, SSLSocket) and one.pending()]
        poll = select.poll()
        for one in readers:
            poll.register(one, select.POLLIN)
        for one in writers:
            poll.register(one, select.POLLOUT)
        patience_ms = None if timeout is None else max(0.0, timeout) * 1000
        ready = {fd for fd, _ in poll.poll(0 if decrypted else patience_ms)}
        readable = [one for one in readers if one.fileno() in ready or one in decrypted]
        return readable, [one for one in writers if one.fileno() in ready], []

    def create_socket_pair(self) -> tuple[Wake, Wake]:
        wake = Wake()
        return wake, wake

    def start(self) -> None:
        """No further threads. (As `running` stays false, kazoo completes requests on the spot.)"""

    def stop(self) -> None:
        pass

    def dispatch_callback(self, callback: Any) -> None:
        callback.func(*callback.args)
