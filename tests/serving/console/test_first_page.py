"""How much the first pages are, and how quick, with ten thousand topics."""

from __future__ import annotations

import time

from quire.serving.broker import Broker
from quire.serving.console.pages import static_files
from quire.serving.names import TopicName
from tests.machine_speed import times_slower
from tests.serving.admin.conftest import Rest

TOPICS = 10_000
PAGE_BYTES_MAX = 200_000
PAGE_S_MAX = 0.3
TRIES = 5


async def test_the_first_pages_are_small_and_quick_with_ten_thousand_topics(
    rest: Rest, broker: Broker
) -> None:
    for number in range(TOPICS):
        await broker.registry.records.create(TopicName.parse(f"a-topic-with-a-name-{number:05}"))
    asked = [
        ["/quire/v1/whoami", "/quire/v1/overview"],
        ["/quire/v1/whoami", "/quire/v1/namespaces/public/default/topics?limit=50"],
        ["/quire/v1/whoami", "/quire/v1/namespaces/public/default/topics?limit=50&contains=99&offset=50"],
        ["/quire/v1/whoami", "/quire/v1/namespaces/public/default/topics?limit=50&sort=in"],
    ]
    page_s_max = PAGE_S_MAX * times_slower()
    files = sum(len(file.plain) for file in set(static_files().values()))
    for paths in asked:
        taken = []
        for _ in range(TRIES):
            began, size = time.perf_counter(), files
            for path in paths:
                async with rest.session.get(rest.url + path) as answer:
                    assert answer.status == 200
                    size += len(await answer.read())
            taken.append(time.perf_counter() - began)
        print(
            f"{paths[-1]}: {size} bytes with the files, {min(taken) * 1e3:.0f} to {max(taken) * 1e3:.0f} ms"
        )
        assert size <= PAGE_BYTES_MAX, f"{paths} and the files have {size} bytes"
        assert min(taken) <= page_s_max, f"{paths} take {min(taken):.3f} s"
