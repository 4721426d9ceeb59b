"""A broker asked over HTTP: what its statuses mean, redirects, second attempts, and what is no broker."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import pytest

from quire.runtime import rest
from quire.runtime.errors import (
    AlreadyExists,
    ConfigurationError,
    InUse,
    NotAuthenticated,
    NotAuthorized,
    NotFound,
    QuireError,
    Unavailable,
)
from quire.runtime.rest import Admin

Answer = Callable[["Handler"], None]


class Handler(BaseHTTPRequestHandler):
    """Gives the prepared answers, one a request, and notes what was asked."""

    answers: ClassVar[list[Answer]]
    asked: ClassVar[list[tuple[str, str, str]]]

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
        self.asked.append((self.command, self.path, body))
        self.answers.pop(0)(self)

    do_GET = do_PUT = do_POST = do_DELETE = _answer

    def log_message(self, *_: object) -> None:
        """Nobody reads it."""


def says(status: int, text: str = "", **headers: str) -> Answer:
    def answer(handler: Handler) -> None:
        handler.send_response(status)
        for name, value in {"Content-Length": str(len(text)), **headers}.items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(text.encode())

    return answer


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, type[Handler]]]:
    class Own(Handler):
        answers: ClassVar[list[Answer]] = []
        asked: ClassVar[list[tuple[str, str, str]]] = []

    monkeypatch.setattr(rest, "PAUSE_S", 0)
    with ThreadingHTTPServer(("127.0.0.1", 0), Own) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", Own
        server.shutdown()


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, ConfigurationError),
        (401, NotAuthenticated),
        (402, ConfigurationError),
        (403, NotAuthorized),
        (404, NotFound),
        (405, ConfigurationError),
        (409, AlreadyExists),
        (412, InUse),
        (413, ConfigurationError),
        (429, Unavailable),
        (500, QuireError),
        (501, ConfigurationError),
        (502, QuireError),
        (503, Unavailable),
        (504, Unavailable),
    ],
)
def test_a_refusal_is_the_error_that_fits_in_the_brokers_own_words(
    broker: tuple[str, type[Handler]], status: int, kind: type[QuireError]
) -> None:
    url, handler = broker
    handler.answers = [
        says(status, json.dumps({"reason": "the moon"})),
        says(status, "in words"),
        says(status),
    ]
    for said in ("the moon", "in words", f"the broker returned status {status}"):
        with pytest.raises(QuireError) as caught:
            Admin(url).get("/x")
        assert type(caught.value) is kind
        assert str(caught.value) == said


def test_answers_are_json_or_bytes(broker: tuple[str, type[Handler]]) -> None:
    url, handler = broker
    handler.answers = [says(200, '{"a": 1}'), says(204), says(200, "raw", **{"X-Place": "here"})]
    admin = Admin(f"{url}/")
    assert admin.post("/p?q=1", [1]) == {"a": 1}
    assert admin.delete("/d") is None
    headers, body = admin.get_raw("/r")
    assert (headers["x-place"], body) == ("here", b"raw")
    assert handler.asked == [("POST", "/p?q=1", "[1]"), ("DELETE", "/d", ""), ("GET", "/r", "")]


def test_the_owner_is_where_the_broker_redirects_to(broker: tuple[str, type[Handler]]) -> None:
    url, handler = broker
    there = says(307, Location=f"{url}/owner")
    handler.answers = [there, says(200, "1"), there, says(200, "2")]
    assert Admin(url).put("/x", {"a": 1}) == 1
    assert Admin(url).get("/x") == 2
    assert handler.asked[1] == ("PUT", "/owner", '{"a": 1}')


def test_brokers_that_redirect_in_a_circle_are_left(broker: tuple[str, type[Handler]]) -> None:
    url, handler = broker
    handler.answers = [says(307, Location=f"{url}/again")] * (rest.REDIRECTS_MAX + 1)
    with pytest.raises(QuireError):
        Admin(url).put("/x")
    assert len(handler.asked) == rest.REDIRECTS_MAX + 1


def test_who_may_ask_again_does_when_it_can_help(broker: tuple[str, type[Handler]]) -> None:
    url, handler = broker
    handler.answers = [says(503), says(500), says(429), says(200, "1")]
    assert Admin(url, attempts=4).get("/x") == 1
    handler.answers = [says(503)] * 2
    with pytest.raises(Unavailable):
        Admin(url, attempts=2).get("/x")
    handler.answers = [says(404)]
    with pytest.raises(NotFound):
        Admin(url, attempts=4).get("/x")
    assert not handler.answers


def test_an_answer_that_breaks_off_is_no_wrong_port(broker: tuple[str, type[Handler]]) -> None:
    url, handler = broker
    handler.answers = [says(200, "half", **{"Content-Length": "100"})] * 2
    with pytest.raises(Unavailable, match="no broker answers"):
        Admin(url).get("/x")
    with pytest.raises(Unavailable, match="no broker answers"):
        Admin(url).get_raw("/x")


def test_what_speaks_no_rest_is_told_of(broker: tuple[str, type[Handler]]) -> None:
    url, handler = broker
    handler.answers = [
        says(200, "<html>"),
        lambda handler: handler.wfile.write(b"\0\0\0\5nope\r\n\r\n") and None,
    ]
    for _ in range(2):
        with pytest.raises(ConfigurationError, match="check that it is not the port of Pulsar clients"):
            Admin(url).get("/x")
    with pytest.raises(ConfigurationError, match="is not the HTTP address of a broker"):
        Admin("127.0.0.1:8080")
    with pytest.raises(Unavailable, match=r"no broker answers at http://127\.0\.0\.1:1 "):
        Admin("http://127.0.0.1:1").get("/x")
