"""Rates as the stock Python client meets them: what is more than a second's worth comes later, and all of it comes."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Iterator

import pulsar
import pytest

from tests.cli.running import Server, standalone

RATE = 200
MESSAGES = 500
LEAST_S = (MESSAGES - RATE) / RATE
"""The first second's worth may come at once."""

PATIENCE_MS = 60_000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with standalone(tmp_path_factory.mktemp("server")) as made:
        yield made


def ask(server: Server, method: str, path: str, body: object = None) -> object:
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    url = f"{server.http_url}/admin/v2/persistent/public/default/{path}"
    with urllib.request.urlopen(urllib.request.Request(url, data, headers, method=method)) as answer:
        raw = answer.read()
        return json.loads(raw) if raw else None


@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    ("word", "kind"),
    [
        ("publishRate", "publish"),
        ("dispatchRate", "dispatch"),
        ("subscriptionDispatchRate", "dispatch"),
    ],
)
def test_what_is_beyond_a_rate_comes_later_and_comes(server: Server, word: str, kind: str) -> None:
    ask(server, "PUT", word)
    ask(server, "POST", f"{word}/{word}", {f"{kind}ThrottlingRateInMsg": RATE})
    client = pulsar.Client(
        server.service_url, logger=pulsar.FileLogger(pulsar.LoggerLevel.Error, "/dev/null")
    )
    try:
        consumer = client.subscribe(word, "s", receiver_queue_size=2 * MESSAGES)
        producer = client.create_producer(word, block_if_queue_full=True)
        began = time.monotonic()
        for number in range(MESSAGES):
            producer.send_async(str(number).encode(), lambda *_: None)
            if number % 10 == 9:
                producer.flush()
        got = [consumer.receive(PATIENCE_MS).data().decode() for _ in range(MESSAGES)]
        took_s = time.monotonic() - began
        assert got == [str(number) for number in range(MESSAGES)]
        assert took_s >= 0.9 * LEAST_S
        stats = ask(server, "GET", f"{word}/stats")
        assert isinstance(stats, dict)
        assert (stats["publishRateLimitedTimes"] > 0) == (kind == "publish")
    finally:
        client.close()
