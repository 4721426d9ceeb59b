"""What a person sees of a command that takes long, and what Ctrl-C does to it."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

VERIFIED = {"segments": 8, "damaged": [], "orphans": []}


class SlowBroker:
    """REST whose POSTs and `/topics…` end when they may."""

    def __init__(self, answers: dict[str, Any]) -> None:
        self.may_end = threading.Event()
        broker = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                path = self.path.partition("?")[0]
                if self.command == "POST" or "/stats" in path:
                    broker.may_end.wait(60)
                sent = json.dumps(answers[path]).encode()
                try:
                    self.send_response(200)
                    self.send_header("Content-Length", str(len(sent)))
                    self.end_headers()
                    self.wfile.write(sent)
                except ConnectionError:
                    pass  # the command was ended

            do_POST = do_PUT = do_GET

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@contextmanager
def slow_broker(answers: dict[str, Any]) -> Iterator[SlowBroker]:
    broker = SlowBroker(answers)
    serving = threading.Thread(target=broker.server.serve_forever, daemon=True)
    serving.start()
    try:
        yield broker
    finally:
        broker.may_end.set()
        broker.server.shutdown()
        broker.server.server_close()


class Terminal:
    """A command whose standard error is a terminal."""

    def __init__(self, *words: str) -> None:
        self.master, of_the_command = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "quire", *words],
            stdout=subprocess.PIPE,
            stderr=of_the_command,
            text=True,
            env={**os.environ, "TERM": "xterm"},
        )
        os.close(of_the_command)
        self.shown = ""

    def read_until(self, pattern: str) -> None:
        while not re.search(pattern, self.shown):
            self.shown += self._read()

    def end(self) -> tuple[int, str]:
        """Its exit code and standard output."""
        out, _ = self.process.communicate(timeout=60)
        try:
            while said := self._read():
                self.shown += said
        except OSError:
            pass  # all was read
        os.close(self.master)
        return self.process.returncode, out

    def _read(self) -> str:
        return os.read(self.master, 10_000).decode()


def _archive(broker_progress: list[dict[str, Any]]) -> dict[str, Any]:
    return {"/quire/v1/archive/verify": VERIFIED, "/quire/v1/archive/progress": broker_progress}


TWO_BROKERS = [
    {"what": "verify", "done": 2, "of": 5},
    {"what": "repair", "done": 9, "of": 9},
    {"what": "verify", "done": 1, "of": 3},
]


def test_a_bar_adds_up_what_all_brokers_did_and_the_answer_comes_after_it() -> None:
    with slow_broker(_archive(TWO_BROKERS)) as broker:
        terminal = Terminal("archive", "verify", "--json", "--admin-url", broker.url)
        terminal.read_until("3/8 segments")
        broker.may_end.set()
        code, out = terminal.end()
    assert code == 0 and json.loads(out) == VERIFIED


def test_ctrl_c_ends_the_command_and_says_that_the_brokers_go_on() -> None:
    with slow_broker(_archive(TWO_BROKERS)) as broker:
        terminal = Terminal("archive", "verify", "--admin-url", broker.url)
        terminal.read_until("3/8 segments")
        terminal.process.send_signal(signal.SIGINT)
        code, out = terminal.end()
    assert (code, out) == (130, "") and "the brokers continue" in terminal.shown
    assert "Traceback" not in terminal.shown


def test_any_wait_of_more_than_two_seconds_is_seen() -> None:
    stats = "/admin/v2/persistent/public/default/slow/stats"
    with slow_broker({stats: {}, "/admin/v2/persistent/public/default/slow/partitions": {}}) as broker:
        terminal = Terminal("topics", "stats", "slow", "--json", "--admin-url", broker.url)
        terminal.read_until("the broker works")
        broker.may_end.set()
        code, _ = terminal.end()
    assert code == 0


def _draining(look: int) -> dict[str, Any]:
    return {"uuid": "5f0c", "state": "draining", "ledgersLeft": (0, 6, 4)[min(look, 2)]}


def test_a_drain_that_is_waited_for_shows_what_was_copied() -> None:
    looks = iter(range(1_000))
    repair = {"checked": 1, "ledgers": 6, "repaired": 2, "bytesCopied": 9, "open": 0}
    with slow_broker(_Answers(lambda: _draining(next(looks)), repair)) as broker:
        terminal = Terminal("bookies", "decommission", "5f0c", "--wait", "--admin-url", broker.url)
        terminal.read_until("2/6 ledgers copied")
        terminal.process.send_signal(signal.SIGINT)
        code, _ = terminal.end()
    assert code == 130 and "cancel it with `quire bookies keep 5f0c`" in terminal.shown


class _Answers(dict[str, Any]):
    def __init__(self, row: Callable[[], Any], repair: Any) -> None:
        super().__init__({"/quire/v1/repair": repair})
        self._row = row

    def __missing__(self, path: str) -> Any:
        return self._row()
