"""Wrapper of one kazoo client: runs kazoo's callbacks on the event loop, and maps its exceptions to QuireErrors.

kazoo runs each client on its own thread. Every callback of kazoo only posts to the event loop, in the order of the
server's messages. (`_Handler` omits kazoo's two further threads, which would lose that order.) So the event of a watch
reaches the loop before the response to a read that returns the changed node.

`_attend_handshakes` reads two values from kazoo's internals: the session time-out that the server granted, and the time
when the handshake began. It and `_Handler` end a connection attempt after a quarter of the session time-out. kazoo
would wait the whole time-out for a server that is unreachable, or that is starting and accepts connections but does not
respond yet. Then the session would expire, although another server could have continued it.

Exceptions are mapped by the kind of request:

    kazoo                                          read           change
    NoNode, NodeExists, BadVersion, NotEmpty, …    the matching error: it proves the node's state
    SessionExpired, SessionMoved, Throttled, …     Unavailable    Unavailable: the server did not execute it
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
"""Maximum delay in seconds between two connection attempts, so that a failover is short."""
ATTEMPT_SHARE: Final = 1 / 4
ATTEMPT_S_MIN: Final = 1.0
"""Minimum time-out of a connection attempt in seconds; for longer sessions, it is `ATTEMPT_SHARE` of their time-out."""

_LOG: Final = logging.getLogger("quire.metadata.kazoo")
_LOG.setLevel(logging.ERROR)  # the store itself logs the session's events

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
    """Successful handshake."""

    session_id: int
    timeout_s: float
    asked_at: float
    """Monotonic seconds when the handshake began."""


class ClientListener(Protocol):
    """Listener of a client, called on the event loop; `ZooKeeperConnection` implements it."""

    def client_connected(self, client: Client, connected: Connected) -> None: ...

    def client_dropped(self, client: Client) -> None: ...

    def client_expired(self, client: Client) -> None: ...

    def client_watch(self, client: Client, kind: str, path: str) -> None: ...

    def client_answered(self, client: Client, answer: Answer) -> None: ...


class Answer(NamedTuple):
    """Outcome of a request: `result`, or kazoo's `error`."""

    future: asyncio.Future[Any]
    asked_at: float
    result: Any
    error: Exception | None


def in_our_words(error: Exception, path: str, *, change: bool) -> QuireError:
    """Map an exception of kazoo to a QuireError; see the module's table."""
    refused = _REFUSED.get(type(error))
    if refused is not None:
        kind, words = refused
        return kind(words.format(path))
    name = type(error).__name__
    if isinstance(error, _FORBIDDEN):
        return ConfigurationError(
            f"ZooKeeper denies access to {path} ({name}): the security file must contain, in [metadata], the user and "
            "password that created the node; otherwise, correct the node's ACL"
        )
    if isinstance(error, _NOT_TAKEN) or not change:
        return Unavailable(f"the metadata store cannot be reached for {path} ({name}); try again")
    return OutcomeUnknown(
        f"no answer to a change of metadata node {path} ({name}); read the node to see its state"
    )


def _logging_in(login: bytes) -> dict[str, Any]:
    """Return kazoo's options for a login on each connection; created nodes are accessible only to this user."""
    user, _, password = login.decode().partition(":")
    if not user:
        return {}
    return {
        "auth_data": [("digest", f"{user}:{password}")],
        "default_acl": [make_digest_acl(user, password, all=True)],
    }


def is_answer(error: Exception | None) -> bool:
    """Return whether a request's outcome is a response from the server."""
    return error is None or type(error) in _REFUSED


def was_rolled_back(result: object) -> bool:
    """Return whether a transaction's step failed only because another step was refused."""
    return isinstance(result, kazoo_errors.RolledBackError | kazoo_errors.RuntimeInconsistency)


class Client:
    """kazoo client, which connects and reconnects by itself until `end`. All calls are made on the event loop."""

    def __init__(
        self,
        hosts: str,
        session_timeout_s: float,
        listener: ClientListener,
        tls: Callable[[], SSLContext] | None = None,
        login: bytes = b"",
    ) -> None:
        """Start connecting. `login` is USER:PASSWORD.

        `tls` returns the context for each connection; it is called on kazoo's thread.
        """
        self._loop = asyncio.get_running_loop()
        self._listener = listener
        self._handshake = (session_timeout_s, 0.0)
        self._attempt_s = max(ATTEMPT_S_MIN, session_timeout_s * ATTEMPT_SHARE)
        self._ending: asyncio.Future[None] | None = None
        self._end_lock = threading.Lock()
        self._is_ended = False
        self.was_given_up = False
        """Set when `give_up` ends the session."""
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
        """Error of the last TLS handshake, if it failed."""
        return self._handler.refused

    @property
    def thinks_it_is_connected(self) -> bool:
        return bool(self._kazoo.connected)

    @property
    def is_dead(self) -> bool:
        """True after kazoo has stopped permanently, for example after an unexpected exception."""
        thread = self._kazoo._connection._connection_routine
        return thread is not None and not thread.is_alive()

    def ask(self, request: Callable[[KazooClient], Any]) -> asyncio.Future[Any]:
        """Send a request and return a future, which the listener completes when it receives the answer."""
        future = self._loop.create_future()
        asked_at = time.monotonic()
        request(self._kazoo).rawlink(
            lambda done: self._post(
                self._listener.client_answered, Answer(future, asked_at, done.value, done.exception)
            )
        )
        return future

    def data_watcher(self, event: Any) -> None:
        """Forward an event of a data watch to the listener. kazoo's thread calls this method."""
        if event.type != EventType.NONE:
            self._post(self._listener.client_watch, event.type, event.path)

    def child_watcher(self, event: Any) -> None:
        """Forward an event of a child watch, except a deletion, which `data_watcher` forwards."""
        if event.type != EventType.DELETED:
            self.data_watcher(event)

    async def end(self) -> None:
        """End the session, if a server is reachable, and stop kazoo's thread. Takes up to the session time-out."""
        if self._ending is None:
            self._ending = self._loop.run_in_executor(None, self._end)
        await asyncio.shield(self._ending)

    def give_up(self) -> None:
        """End the session on a new thread, because the event loop is blocked. Thread-safe; returns at once."""
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
            except Exception as error:  # the server then ends the session after its time-out
                _LOG.error("cannot stop a ZooKeeper client: %r", error)

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
            pass  # the event loop is closed, so there is no listener any more


class _Handler(SequentialThreadingHandler):  # type: ignore[misc]
    """kazoo handler that runs callbacks at once on the thread that reads the socket; they only post to the event loop.

    It also implements TLS, because kazoo would not check the host's name, and would read the certificate files only
    once.
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
        """Select sockets; a TLS socket with decrypted bytes counts as readable, although `poll` does not report it.

        kazoo reads decrypted bytes only until the end of one response. The next response in the same TLS record would
        wait until more bytes arrive. kazoo's own handler also creates an epoll object four times per request, which
        doubles the time of a request.
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
        """Start no further threads: because `running` stays false, kazoo completes requests at once."""

    def stop(self) -> None:
        pass

    def dispatch_callback(self, callback: Any) -> None:
        callback.func(*callback.args)
