"""Benchmark of scraping metrics: the same load with and without one scrape per second, 15 times the usual frequency.

    python -m bench.metrics [topics]

The load is an open loop at a fixed rate. Its latencies show the effect on publishers; the server's CPU time shows the
cost. Runs with and without scrapes alternate, with one line of output each.
"""

from __future__ import annotations

import sys
import threading
import time
import urllib.request

from bench import server as servers
from bench.report import show
from bench.standalone import _run

RATE = 5_000
SECONDS = 10
ROUNDS = 2
EACH_S = 1.0


class Scraper:
    """Thread that scrapes the metrics every `EACH_S` until the `with` block ends."""

    def __init__(self, url: str) -> None:
        self._url = f"{url}/metrics"
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._ask)
        self.took_s: list[float] = []
        self.size_bytes = 0

    def __enter__(self) -> Scraper:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _ask(self) -> None:
        while not self._is_over.wait(EACH_S):
            began = time.perf_counter()
            with urllib.request.urlopen(self._url, timeout=30) as answer:
                self.size_bytes = len(answer.read())
            self.took_s.append(time.perf_counter() - began)


def measure(topics: int) -> None:
    with servers.fresh("--topic-idle-ms-max", "0ms") as server:
        load = ("--topics", topics, "--rate", RATE, "--seconds", SECONDS, "--outstanding", 20_000)
        for number in range(ROUNDS):
            _run(
                server, "produce", "--prefix", "m", *load, "--label", f"{topics} topics, not asked, {number}"
            )
            with Scraper(server.http_url) as scraper:
                _run(
                    server, "produce", "--prefix", "m", *load, "--label", f"{topics} topics, asked, {number}"
                )
            show(
                "a scrape",
                bytes=scraper.size_bytes,
                seconds_p50=sorted(scraper.took_s)[len(scraper.took_s) // 2],
                seconds_max=max(scraper.took_s),
            )


if __name__ == "__main__":
    measure(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000)
