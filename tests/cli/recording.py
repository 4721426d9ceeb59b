"""A REST interface that notes requests and answers with prepared JSON, for requests whose effects other tests cover."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Recording:
    """Requests as (method, path, body), and answers by "METHOD path".

    A list of answers is given one after the other. A request without an answer gets 204, or the next of its statuses.
    """

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {}
        self.statuses: dict[str, list[int]] = {}
        self.asked: list[tuple[str, str, Any]] = []
        recording = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                recording.asked.append((self.command, self.path, json.loads(raw) if raw else None))
                request = f"{self.command} {self.path}"
                answer = recording.answers.get(request)
                if isinstance(answer, list):
                    answer = answer.pop(0)
                sent = b"" if answer is None else json.dumps(answer).encode()
                statuses = recording.statuses.get(request) or [200 if sent else 204]
                self.send_response(statuses.pop(0))
                self.send_header("Content-Length", str(len(sent)))
                self.end_headers()
                self.wfile.write(sent)

            do_POST = do_PUT = do_DELETE = do_GET

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def changes(self) -> list[tuple[str, str, Any]]:
        """The requests but those that only read."""
        return [one for one in self.asked if one[0] != "GET"]


@contextmanager
def recording() -> Iterator[Recording]:
    made = Recording()
    serving = threading.Thread(target=made.server.serve_forever, daemon=True)
    serving.start()
    try:
        yield made
    finally:
        made.server.shutdown()
        made.server.server_close()
