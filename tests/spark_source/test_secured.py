"""Real Spark against a real server that lets in by tokens and by TLS alone: reading, a stream, writing, jobs.

The roles: `app` may produce and consume, `reader` only consume, `stranger` nothing; `admin` is a superuser.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from quire.cli.tokens import command as tokens
from quire.runtime.credentials import Credentials
from quire.runtime.rest import Admin
from quire.runtime.tls import ClientTls
from quire.security.certs import Authority
from tests.cli.running import quire
from tests.cli.secure import Served, running
from tests.spark_source.conftest import at_most

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

TOPIC = "persistent://public/default/orders"
COPY = "persistent://public/default/copies"
PROMPT_S = 100.0
"""What is refused is told well before this: the sink's time-out is two minutes."""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Its plain ports are closed. `orders` has 300 messages in the archive and 200 after them."""
    folder = tmp_path_factory.mktemp("secured")
    authority = Authority.make(folder / "certs")
    certificate, key = authority.sign_process("node", ["localhost", "127.0.0.1"], 1)
    made, secret = CliRunner(), str(folder / "secret.key")
    assert made.invoke(tokens, ["create-key", secret]).exit_code == 0
    for role, expires in (
        ("admin", "1d"),
        ("app", "1d"),
        ("reader", "1d"),
        ("stranger", "1d"),
        ("late", "1s"),
    ):
        text = made.invoke(tokens, ["create", role, "--secret-key", secret, "--expires", expires]).output
        (folder / f"{role}.token").write_text(text)
    (folder / "wrong.token").write_text("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhZG1pbiJ9.AAAA")
    file = folder / "security.toml"
    file.write_text(f"""
[tls]
certificate = "{certificate}"
key = "{key}"
authority = "{folder}/certs/authority.pem"
plain = false
listen = "127.0.0.1:0"
http = "127.0.0.1:0"
[authentication.token]
secret_key = "secret.key"
leeway_s = 0
[authorization]
superusers = ["admin"]
""")
    for found in running(folder, file):
        admin = admin_of(found)
        for topic in (TOPIC, COPY):
            admin.put(f"/admin/v2/{topic.replace('://', '/')}")
            place = f"/admin/v2/{topic.replace('://', '/')}"
            admin.post(f"{place}/deduplicationEnabled", True)
            admin.post(f"{place}/permissions/app", ["produce", "consume"])
            admin.post(f"{place}/permissions/reader", ["consume"])
        publish(found, 0, 300)
        admin.post("/quire/v1/archive/run?seal=true")
        publish(found, 300, 500)
        yield found


def admin_of(served: Served) -> Admin:
    return Admin(
        served.http_url,
        tls=ClientTls(str(served.data / "certs" / "authority.pem")),
        credentials=Credentials(token_file=str(served.data / "admin.token")),
    )


def flags(served: Served, role: str) -> list[str]:
    return [
        *("--tls-trust-certs", str(served.data / "certs" / "authority.pem")),
        *("--token-file", str(served.data / f"{role}.token")),
    ]


def publish(served: Served, first: int, end: int) -> None:
    file = served.data / "lines"
    file.write_text("".join(f"{number}\n" for number in range(first, end)))
    words = ("produce", TOPIC, str(file), "--service-url", served.service_url)
    assert quire(*words, *flags(served, "app")).code == 0


def options(served: Served, role: str, **more: str) -> dict[str, str]:
    return {
        "service_url": served.http_url,
        "topic": TOPIC,
        "tls_trust_certs": str(served.data / "certs" / "authority.pem"),
        "token_file": str(served.data / f"{role}.token"),
        **more,
    }


def numbers(frame: Any) -> list[int]:
    return sorted(int(bytes(row.value)) for row in frame.select("value").collect())


def read(spark: Any, given: dict[str, str]) -> list[int]:
    return numbers(spark.read.format("quire").options(**given).load())


def test_a_batch_reads_the_archive_and_what_is_not_archived_yet(spark: Any, served: Served) -> None:
    for role in ("app", "reader"):
        assert read(spark, options(served, role)) == list(range(500))


def test_a_topic_is_written_by_who_may_produce(spark: Any, served: Served) -> None:
    rows = spark.range(100).selectExpr("cast(id as string) as value").repartition(2)
    rows.write.format("quire").options(**options(served, "app", topic=COPY)).mode("append").save()
    assert read(spark, options(served, "reader", topic=COPY)) == list(range(100))


def test_a_stream_from_topic_to_topic(spark: Any, served: Served, tmp_path: Path) -> None:
    before = len(read(spark, options(served, "reader", topic=COPY)))
    reading = options(served, "reader", stream_name="job", start="earliest", **at_most(rows=300))
    frame = spark.readStream.format("quire").options(**reading).load().select("value")
    writing = frame.writeStream.format("quire").options(**options(served, "app", topic=COPY))
    query = writing.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
    assert query.awaitTermination(120), "it goes on"
    assert query.exception() is None
    assert len(read(spark, options(served, "reader", topic=COPY))) == before + 500


@pytest.mark.parametrize(
    ("role", "sentence"),
    [("wrong", "not signed"), ("late", "expired"), ("stranger", "grant"), ("missing", "cannot read")],
)
def test_who_may_not_read_is_told_at_once(spark: Any, served: Served, role: str, sentence: str) -> None:
    said = promptly(lambda: read(spark, options(served, role)))
    assert sentence in said


@pytest.mark.parametrize(("role", "sentence"), [("wrong", "not signed"), ("reader", "produce")])
@pytest.mark.parametrize("delivery", ["exactly_once", "at_least_once"])
def test_who_may_not_write_is_told_at_once(
    spark: Any, served: Served, role: str, sentence: str, delivery: str
) -> None:
    rows = spark.range(10).selectExpr("cast(id as string) as value")
    given = options(served, role, topic=COPY, delivery=delivery)
    writer = rows.write.format("quire").options(**given).mode("append")
    assert sentence in promptly(writer.save)


def test_a_stream_that_may_not_is_told_at_once(spark: Any, served: Served, tmp_path: Path) -> None:
    frame = spark.readStream.format("quire").options(**options(served, "stranger", stream_name="x")).load()

    def run() -> None:
        writer = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path))
        writer.trigger(availableNow=True).start().awaitTermination(120)

    assert "grant" in promptly(run)


def test_a_server_that_is_not_trusted_is_told_at_once(spark: Any, served: Served) -> None:
    given = {name: one for name, one in options(served, "app").items() if name != "tls_trust_certs"}
    assert "is not trusted" in promptly(lambda: read(spark, given))


def job(served: Served, environment: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    """`quire spark …` where nothing but the environment, or a profile, says how brokers are called."""
    own = {name: one for name, one in os.environ.items() if not name.startswith("QUIRE_")}
    home = {"XDG_CONFIG_HOME": str(served.data / "config")}
    return subprocess.run(
        [sys.executable, "-m", "quire", "spark", *words],
        capture_output=True,
        text=True,
        env={**own, **home, **environment},
        timeout=240,
        check=False,
    )


def test_jobs_present_what_the_environment_says_or_the_profile(served: Served, tmp_path: Path) -> None:
    trusted = {
        "QUIRE_ADMIN_URL": served.http_url,
        "QUIRE_TLS_TRUST_CERTS": str(served.data / "certs" / "authority.pem"),
    }
    token = (served.data / "reader.token").read_text().strip()
    found = job(served, {**trusted, "QUIRE_TOKEN": token}, "audit", TOPIC)
    assert found.returncode == 0 and "500 messages" in found.stdout, found.stderr
    refused = job(served, trusted, "audit", TOPIC)
    assert refused.returncode == 1 and "log in" in refused.stderr and "Traceback" not in refused.stderr

    profile = served.data / "config" / "quire" / "profile.toml"
    profile.parent.mkdir(parents=True)
    lines = {"admin_url": served.http_url, "tls_trust_certs": trusted["QUIRE_TLS_TRUST_CERTS"]}
    lines["token_file"] = str(served.data / "app.token")
    profile.write_text("".join(f'{name} = "{value}"\n' for name, value in lines.items()))
    before = admin_of(served).get(f"/admin/v2/{COPY.replace('://', '/')}/internalStats")["numberOfEntries"]
    found = job(served, {}, "replay", TOPIC, COPY, str(tmp_path), "--json")
    assert found.returncode == 0, found.stderr
    after = admin_of(served).get(f"/admin/v2/{COPY.replace('://', '/')}/internalStats")["numberOfEntries"]
    assert after > before


def promptly(ask: Callable[[], object]) -> str:
    """What it is refused with."""
    began = time.monotonic()
    with pytest.raises(Exception) as refused:
        ask()
    assert time.monotonic() - began < PROMPT_S
    return str(refused.value)
