"""Tables that policies prescribe are kept fresh: every message once, whenever workers die, however many there are."""

from __future__ import annotations

import itertools
import json
import logging
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner

from quire.cli.spark import command
from quire.runtime.errors import ConfigurationError
from quire.runtime.rest import Admin
from quire.spark_source.jobs import follow
from quire.spark_source.jobs import iceberg as copying
from quire.spark_source.jobs.follow import Allowed, Follower, own_namespace, table_of
from quire.spark_source.jobs.iceberg_table import open_catalog
from tests.cli.running import quire, standalone
from tests.clients import programs
from tests.moto_store import moto_store
from tests.spark_source.jobs.test_iceberg import TOPIC, Killed, dying, entries

OTHER = "persistent://public/default/u"


class Lake(NamedTuple):
    """A catalog, and what pyiceberg needs to reach it."""

    catalog: str
    options: dict[str, str]
    warehouse: str = ""

    def open(self) -> Any:
        return open_catalog(self.catalog, self.options)

    def numbers(self, table: str = "public_default.t") -> list[int]:
        found = self.open().load_table(table).scan().to_arrow().sort_by("message_index")
        return [int(value) for value in found["value"].to_pylist()]


@pytest.fixture
def directory(tmp_path: Path) -> Lake:
    return Lake(str(tmp_path / "lake"), {})


@pytest.fixture(scope="module")
def rest() -> Iterator[Lake]:
    """Apache Iceberg's own REST catalog, its tables in S3."""
    words = programs.iceberg_catalog()
    pipe = subprocess.PIPE
    with (
        moto_store("lake") as endpoint,
        subprocess.Popen([*words, "s3://lake/tables"], stdin=pipe, stdout=pipe, text=True) as server,
    ):
        s3 = {
            "s3.endpoint": endpoint,
            "s3.access-key-id": "testing",
            "s3.secret-access-key": "testing",
            "s3.region": "us-east-1",
        }
        assert server.stdout is not None
        yield Lake(f"http://127.0.0.1:{int(server.stdout.readline())}", s3, "lake")
        server.terminate()


@pytest.fixture(params=["directory", "rest"])
def lake(request: pytest.FixtureRequest) -> Lake:
    found: Lake = request.getfixturevalue(request.param)
    if request.param == "rest":
        for table in found.open().list_tables("public_default") if _has_namespace(found) else ():
            found.open().drop_table(table)
    return found


def _has_namespace(lake: Lake) -> bool:
    return bool(lake.open().namespace_exists("public_default"))


def policy(lake: Lake, topic: str = TOPIC, **more: str) -> dict[str, str]:
    said = {
        "topic": topic,
        "catalog": lake.catalog,
        "warehouse": lake.warehouse,
        "namespace": "",
        "table": "",
    }
    return said | more


@pytest.fixture
def topic(broker: Any, archivist: Any, lake: Lake) -> Any:
    """Two archived segments and an active one: messages 0-99, 100-199, 200-249."""
    broker.topics[TOPIC] = [
        broker.segment(3, entries(0, 100)),
        broker.segment(5, entries(100, 100)),
        broker.segment(9, entries(200, 50), state="active"),
    ]
    for segment in broker.topics[TOPIC][:2]:
        archivist.archive(segment)
    broker.tables = [policy(lake)]
    return broker


def follower(broker: Any, lake: Lake, **more: Any) -> Follower:
    allowed = Allowed((lake.warehouse,) if lake.warehouse else ())
    return Follower(Admin(broker.url), lake.catalog, lake.options, allowed=allowed, **more)


def test_what_is_archived_is_there_soon(topic: Any, archivist: Any, lake: Lake) -> None:
    worker = follower(topic, lake)
    done = worker.round()
    assert (done.topics, done.commits, done.rows, done.errors) == (1, 2, 200, [])
    assert lake.numbers() == list(range(200)), "a segment a commit, and what is not archived waits"
    assert worker.round().rows == 0
    archivist.archive(topic.topics[TOPIC][2])
    topic.topics[TOPIC].append(topic.segment(12, entries(250, 30), state="active"))
    assert (worker.round().rows, lake.numbers()) == (50, list(range(250)))
    topic.tables = []
    archivist.archive(topic.topics[TOPIC][3])
    assert worker.round().topics == 0 and lake.numbers() == list(range(250))
    topic.tables = [policy(lake)]
    assert (worker.round().rows, lake.numbers()) == (30, list(range(280)))


@pytest.mark.parametrize("at", range(14))
def test_killed_at_any_step_another_goes_on(
    topic: Any, lake: Lake, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    steps = itertools.count()
    catalog = type(lake.open())
    with monkeypatch.context() as patched:
        patched.setattr(copying, "write_file", dying(steps, at, copying.write_file))
        for name in ("create_table", "commit_table"):
            patched.setattr(catalog, name, dying(steps, at, getattr(catalog, name)))
        try:
            follower(topic, lake).round()
            assert next(steps) == 10, "so many steps, and then it is not killed"
        except Killed:
            seen = (
                lake.numbers() if _has_namespace(lake) and lake.open().list_tables("public_default") else []
            )
            assert seen == list(range(len(seen))), "in order and once, whenever one looks"
    assert follower(topic, lake).round().errors == []
    assert lake.numbers() == list(range(200))


def test_two_at_once(broker: Any, archivist: Any, lake: Lake) -> None:
    broker.topics[TOPIC] = 2
    for i in range(2):
        broker.next_index = 0
        some = [broker.segment(10 * i + j, entries(1000 * i + 20 * j, 20)) for j in range(4)]
        broker.topics[f"{TOPIC}-partition-{i}"] = some
        for segment in some:
            archivist.archive(segment)
    broker.tables = [policy(lake)]
    with ThreadPoolExecutor(3) as pool:
        done = [one.result() for one in [pool.submit(follower(broker, lake).round) for _ in range(3)]]
    assert [one.errors for one in done] == [[]] * 3
    assert (sum(one.rows for one in done), sum(one.commits for one in done)) == (160, 8)
    assert sorted(lake.numbers()) == sorted(1000 * i + n for i in range(2) for n in range(80))


@pytest.mark.parametrize("lake", ["directory"], indirect=True)
def test_a_topic_that_fails_keeps_no_other_from_its_own(
    topic: Any, archivist: Any, lake: Lake, caplog: pytest.LogCaptureFixture
) -> None:
    topic.topics[OTHER] = [topic.segment(20, entries(0, 10))]
    archivist.archive(topic.topics[OTHER][0])
    taken = policy(lake, table="u")
    topic.tables = [taken, policy(lake, OTHER), policy(lake, "persistent://public/default/gone")]
    now_s = [0.0]
    worker = follower(topic, lake, clock_s=lambda: now_s[0])
    with caplog.at_level(logging.INFO, follow.__name__):
        done = worker.round()
        assert (done.rows, len(done.errors)) == (200, 2) and "no topic" in done.errors[0]
        assert f"is the copy of {TOPIC}" in done.errors[1]
        topic.requests.clear()
        assert worker.round().errors == done.errors and not any("/u/" in one for one in topic.requests)
        topic.tables[0] = policy(lake)
        topic.tables[1] = policy(lake, OTHER, table="v")
        now_s[0] = follow.PAUSE_FIRST_S
        again = worker.round()
    assert (again.rows, len(again.errors)) == (210, 1)
    assert lake.numbers("public_default.v") == list(range(10))
    assert [one.levelname for one in caplog.records].count("WARNING") == 2
    assert f"topic {OTHER}: copying succeeded again" in caplog.text


@pytest.mark.parametrize("lake", ["directory"], indirect=True)
def test_a_broker_or_a_catalog_that_is_away(topic: Any, lake: Lake) -> None:
    away = Follower(Admin("http://127.0.0.1:9", 1.0), lake.catalog, {}).round()
    assert away.topics == 0 and len(away.errors) == 1
    nowhere = Lake("http://127.0.0.1:9", {})
    topic.tables = [policy(nowhere)]
    assert "catalog http://127.0.0.1:9" in follower(topic, nowhere).round().errors[0]
    assert follower(topic, lake).round().topics == 0, "policies of other catalogs are not its own"


def test_names_of_tables() -> None:
    def named(topic: str, **more: str) -> str:
        return table_of({"topic": topic, "namespace": "", "table": "", **more})

    assert named("persistent://public/default/d.e-1") == "public_default.d_e_1"
    assert named("persistent://a/b/c", table="d") == "a_b.d"
    assert named("persistent://a/b/c", namespace="shop.eu") == "shop.eu.c"
    assert named("persistent://a/b/c", namespace="a_b") == "a_b.c"


def test_no_two_namespaces_have_tables_of_one_name() -> None:
    pairs = [("a", "b_c"), ("a_b", "c"), ("a-b", "c"), ("a", "b-c"), ("A", "b-c"), ("A", "b"), ("a", "b")]
    names = {own_namespace(*pair).lower() for pair in pairs}
    assert len(names) == len(pairs)
    assert all(own_namespace(*name.split("_", 1)) != name for name in names if name.count("_") > 1)


@pytest.mark.parametrize(
    "more",
    [
        {"namespace": "other_default"},
        {"namespace": "other_default.x"},
        {"namespace": "Public_Default"},
        {"namespace": "../../etc"},
        {"namespace": "a/b"},
        {"table": "../orders"},
        {"table": "a.b"},
    ],
)
def test_a_policy_may_not_name_the_table_of_another_tenant_or_leave_the_warehouse(
    more: dict[str, str],
) -> None:
    policy = {"topic": "persistent://public/default/t", "namespace": "", "table": "", **more}
    with pytest.raises(ConfigurationError):
        table_of(policy)


def test_a_namespace_that_the_worker_allows() -> None:
    policy = {"topic": "persistent://public/default/t", "namespace": "our_lake", "table": ""}
    assert table_of(policy, Allowed(namespaces=("our_lake",))) == "our_lake.t"


@pytest.mark.parametrize(
    ("warehouse", "allowed"),
    [
        ("lake", True),
        ("lake2", False),
        ("s3://bucket/tables", True),
        ("s3://bucket/tables/a/b/", True),
        ("s3://bucket/tables-of-others", False),
        ("s3://bucket", False),
        ("s3://bucket/tables/../secret", False),
        ("s3://bucket/tables/%2e%2e/secret", False),
        ("file:///etc/cron.d", False),
        ("/etc/cron.d", False),
    ],
)
def test_a_policy_names_a_warehouse_that_the_worker_allows_or_none(warehouse: str, allowed: bool) -> None:
    rules = Allowed(("lake", "s3://bucket/tables/"))
    if allowed:
        rules.check_warehouse(warehouse)
    else:
        with pytest.raises(ConfigurationError, match="not allowed"):
            rules.check_warehouse(warehouse)
    with pytest.raises(ConfigurationError, match="--allow-warehouse"):
        Allowed().check_warehouse(warehouse)


@pytest.mark.parametrize("lake", ["directory"], indirect=True)
def test_a_warehouse_that_is_not_allowed_is_not_written_to(topic: Any, lake: Lake, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    topic.tables = [policy(lake, warehouse=f"file://{elsewhere}")]
    done = Follower(Admin(topic.url), lake.catalog, {}).round()
    assert "not allowed" in done.errors[0] and not elsewhere.exists()
    given = Follower(Admin(topic.url), lake.catalog, {"warehouse": f"file://{lake.catalog}"}).round()
    assert given.errors == [] and not elsewhere.exists(), "the worker's own counts"


@pytest.mark.parametrize("lake", ["directory"], indirect=True)
def test_a_table_of_a_former_name_goes_on(broker: Any, archivist: Any, lake: Lake) -> None:
    name = "persistent://a-b/c/t"
    broker.topics[name] = [broker.segment(3, entries(0, 10))]
    archivist.archive(broker.topics[name][0])
    broker.tables = [policy(lake, name)]
    lake.open().create_namespace("a_b_c")
    copying.CopyTable.open(lake.open(), "a_b_c.t", name, create=True)
    assert follower(broker, lake).round().errors == []
    assert lake.numbers("a_b_c.t") == list(range(10))


@pytest.mark.parametrize("lake", ["directory"], indirect=True)
def test_the_command(topic: Any, lake: Lake) -> None:
    words = ["follow-iceberg", "--catalog", lake.catalog, "--admin-url", topic.url, "--once"]
    done = CliRunner().invoke(command, [*words, "--json"])
    assert done.exit_code == 0 and json.loads(done.stdout)["rows"] == 200
    topic.tables.append(policy(lake, OTHER))
    failed = CliRunner().invoke(command, words)
    assert failed.exit_code == 1 and f"not fresh: {OTHER}" in failed.output


@pytest.mark.chaos
@pytest.mark.parametrize("seed", [0])
def test_a_worker_that_is_killed_again_and_again(broker: Any, archivist: Any, lake: Lake, seed: int) -> None:
    """Two real processes at a time, killed at random moments, while more is archived."""
    rng = random.Random(seed)
    broker.topics[TOPIC] = []
    broker.tables = [policy(lake)]
    words = [
        "spark",
        "follow-iceberg",
        "--catalog",
        lake.catalog,
        "--admin-url",
        broker.url,
        "--interval",
        "0.1",
    ]
    words += ["--allow-warehouse", lake.warehouse] if lake.warehouse else []
    words += [word for pair in lake.options.items() for word in ("--catalog-option", "=".join(pair))]
    workers: list[subprocess.Popen[bytes]] = []
    try:
        for number in range(8):
            segment = broker.segment(3 + number, entries(20 * number, 20))
            archivist.archive(segment)
            broker.topics[TOPIC].append(segment)
            while len(workers) < 2:
                workers.append(subprocess.Popen([sys.executable, "-m", "quire", *words], env=os.environ))
            time.sleep(rng.uniform(0.5, 2.5))
            if number % 3:
                one = workers.pop(rng.randrange(2))
                one.send_signal(signal.SIGKILL)
                one.wait()
        assert follower(broker, lake).round().errors == []
    finally:
        for one in workers:
            one.kill()
            one.wait()
    assert lake.numbers() == list(range(160))


def test_from_a_real_server(tmp_path: Path) -> None:
    lines, lake = tmp_path / "lines", Lake(str(tmp_path / "lake"), {})
    lines.write_text("".join(f"{i}\n" for i in range(100)))
    with standalone(tmp_path, "--archive-sidecars", "false") as server:
        url = ("--admin-url", server.http_url)
        assert quire("produce", "t", str(lines), "--service-url", server.service_url).code == 0
        assert "no table" in quire("topics", "get-iceberg", "t", *url).out
        refused = quire("topics", "set-iceberg", "t", "--catalog", "lake", *url)
        assert refused.code == 2 and "absolute directory" in refused.err
        assert (
            quire("topics", "set-iceberg", "t", "--catalog", lake.catalog, "--table", "lines", *url).code == 0
        )
        assert quire("topics", "get-iceberg", "t", "--json", *url).json["table"] == "lines"
        assert quire("topics", "get-iceberg", "t", "--applied", "--json", *url).json["table"] == "lines"
        assert quire("archive", "run", "--seal", *url).code == 0
        done = quire("spark", "follow-iceberg", "--catalog", lake.catalog, "--once", "--json", *url)
        assert done.json == {"topics": 1, "commits": 1, "rows": 100, "errors": []}
        assert lake.numbers("public_default.lines") == list(range(100))
        table = ("public_default.lines", "--catalog", lake.catalog)
        assert "has 100 rows" in quire("spark", "iceberg", "t", *table, "--status", *url).out
        assert quire("topics", "remove-iceberg", "t", *url).code == 0
        assert "no table" in quire("topics", "get-iceberg", "t", *url).out
        done = quire("spark", "follow-iceberg", "--catalog", lake.catalog, "--once", "--json", *url)
        assert done.json["topics"] == 0
