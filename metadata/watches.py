"""Watchers of paths and of the session: callbacks on the event loop, coalesced but never lost.

If `notify` is called several times in one iteration of the event loop, each callback runs once per path. A callback
that was cancelled meanwhile is not called. If a callback raises an exception, the event loop logs it, and the other
callbacks still run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from quire.metadata.store import SessionCallback, SessionEvent, WatchCallback


class Watches:
    """Watchers of one session. All methods run on the event loop's thread."""

    def __init__(self) -> None:
        self._by_path: dict[str, dict[int, WatchCallback]] = {}
        self._session: dict[int, SessionCallback] = {}
        self._pending: set[tuple[str, int]] = set()
        self._last_token = 0

    def watch(self, path: str, callback: WatchCallback) -> Callable[[], None]:
        token = self._token()
        self._by_path.setdefault(path, {})[token] = callback
        return lambda: self._cancel(path, token)

    def on_session(self, callback: SessionCallback) -> Callable[[], None]:
        token = self._token()
        self._session[token] = callback
        return lambda: void(self._session.pop(token, None))

    def notify(self, paths: Iterable[str]) -> None:
        """Call the watchers of `paths` in the next iteration of the event loop."""
        if not self._by_path:
            return
        loop = asyncio.get_running_loop()
        for path in paths:
            for token in self._by_path.get(path, ()):
                if (path, token) not in self._pending:
                    self._pending.add((path, token))
                    loop.call_soon(self._call, path, token)

    def notify_session(self, event: SessionEvent) -> None:
        """Call all watchers of session events, in order, in the next iteration of the event loop."""
        loop = asyncio.get_running_loop()
        for token in self._session:
            loop.call_soon(self._call_session, token, event)

    def paths(self) -> list[str]:
        """Return every watched path."""
        return list(self._by_path)

    def has(self, path: str) -> bool:
        return path in self._by_path

    def notify_all(self) -> None:
        """Call every watcher, because the changed paths are unknown."""
        self.notify(self.paths())

    def clear(self) -> None:
        self._by_path.clear()
        self._session.clear()

    def _token(self) -> int:
        self._last_token += 1
        return self._last_token

    def _cancel(self, path: str, token: int) -> None:
        callbacks = self._by_path.get(path, {})
        callbacks.pop(token, None)
        if not callbacks:
            self._by_path.pop(path, None)

    def _call(self, path: str, token: int) -> None:
        self._pending.discard((path, token))
        callback = self._by_path.get(path, {}).get(token)
        if callback is not None:
            callback(path)

    def _call_session(self, token: int, event: SessionEvent) -> None:
        callback = self._session.get(token)
        if callback is not None:
            callback(event)


def void(_: object) -> None:
    """Drop a value where a callback must return None."""
