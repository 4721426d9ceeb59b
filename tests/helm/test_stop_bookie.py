"""A bookie's pod that is to come back stops as it is; one that is scaled away is left to drain. With a real process."""

from __future__ import annotations

import http.server
import json
import os
import signal
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from quire.security.certs import Authority

SCRIPT = Path(__file__).parents[2] / "deploy" / "stop_bookie.py"
BOOKIE = """
import signal, sys
signal.signal(signal.SIGINT, lambda *_: sys.exit(7))
signal.signal(signal.SIGTERM, lambda *_: sys.exit(9))
print("up", flush=True)
signal.pause()
"""
"""Exit code 7: told to stop as it is."""


@pytest.fixture(scope="module")
def account(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What Kubernetes gives a pod to call its API server with."""
    folder = tmp_path_factory.mktemp("account")
    Authority.make(folder).sign_process("api", ["127.0.0.1"], 1)
    (folder / "authority.pem").rename(folder / "ca.crt")
    (folder / "token").write_text("a token\n")
    return folder


@contextmanager
def api_server(account: Path, answer: dict[str, Any]) -> Iterator[tuple[int, list[str]]]:
    """Its port, and what was asked with the token."""
    asked: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            allowed = self.headers["Authorization"] == "Bearer a token"
            asked.append(self.path)
            self.send_response(200 if allowed else 403)
            self.end_headers()
            self.wfile.write(json.dumps(answer).encode())

        def log_message(self, *_: object) -> None: ...

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(account / "api.pem", account / "api-key.pem")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_address[1], asked
    finally:
        server.shutdown()
        server.server_close()


def stopped(account: Path, port: int, pod: str) -> int | None:
    """The exit code of the pod's bookie when the hook is over; None: it runs on, and the hook said nothing."""
    bookie = subprocess.Popen([sys.executable, "-c", BOOKIE], stdout=subprocess.PIPE)
    reaper = threading.Thread(target=bookie.wait)
    try:
        assert bookie.stdout is not None and bookie.stdout.readline() == b"up\n"
        reaper.start()
        environment = {
            "KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(port),
            "SERVICE_ACCOUNT": str(account), "STATEFUL_SET": "apart/try-bookie", "POD_NAME": pod,
            "BOOKIE_PID": str(bookie.pid), "PATH": os.environ["PATH"],
        }  # fmt: skip
        subprocess.run([sys.executable, str(SCRIPT)], env=environment, check=True, timeout=60)
        return bookie.poll()
    finally:
        bookie.send_signal(signal.SIGKILL)
        reaper.join()


@pytest.mark.parametrize(
    ("pod", "answer", "code"),
    [
        ("try-bookie-2", {"metadata": {}, "spec": {"replicas": 3}}, 7),
        ("try-bookie-3", {"metadata": {}, "spec": {"replicas": 3}}, None),
        ("try-bookie-3", {"metadata": {"deletionTimestamp": "now"}, "spec": {"replicas": 0}}, 7),
        ("try-bookie-3", {"metadata": {}}, 7),
    ],
)
def test_only_a_pod_beyond_the_replicas_is_drained(
    account: Path, pod: str, answer: dict[str, Any], code: int | None
) -> None:
    with api_server(account, answer) as (port, asked):
        assert stopped(account, port, pod) == code
    assert asked == ["/apis/apps/v1/namespaces/apart/statefulsets/try-bookie"]


def test_who_cannot_ask_keeps_the_data(account: Path) -> None:
    assert stopped(account, 1, "try-bookie-9") == 7
