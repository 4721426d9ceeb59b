"""The commands against a real server: what they print, in both forms, and how they fail."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pulsar
import pytest

from quire.cli.main import SUBCOMMANDS
from quire.cli.output import FAILED, NOT_FOUND, TRY_AGAIN, WRONG_USE
from tests.cli.running import Ran, Server, quire, standalone


@pytest.fixture(autouse=True)
def address(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUIRE_ADMIN_URL", server.http_url)


def publish(server: Server, topic: str, count: int) -> None:
    client = pulsar.Client(server.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    client.subscribe(topic, "audit").close()
    producer = client.create_producer(topic)
    for i in range(count):
        producer.send(b"%d" % i)
    client.close()


def refused(ran: Ran, code: int, *words: str) -> None:
    """It failed with that code and one sentence that has these words."""
    assert ran.code == code, ran
    assert ran.out == "" and ran.err.count("\n") == 1 and ran.err.startswith("quire: "), ran.err
    assert all(word in ran.err for word in words), ran.err


def test_a_topic_from_its_creation_to_its_end() -> None:
    created = quire("topics", "create", "tour", "--partitions", "3", "--json").json
    assert created == {"topic": "tour", "created": True, "partitions": 3}
    assert "persistent://public/default/tour  3 partitions" in quire("topics", "list").out.splitlines()
    assert quire("topics", "partitions", "tour").out == "3\n"
    assert quire("topics", "update", "tour", "--partitions", "4").code == 0
    assert quire("topics", "partitions", "tour", "--json").json == {"partitions": 4}
    assert quire("topics", "delete", "tour").out == "deleted tour\n"
    assert "tour" not in quire("topics", "list").out


def test_stats_for_people_and_for_programs(server: Server) -> None:
    publish(server, "counted", 5)
    shown = quire("topics", "stats", "counted")
    assert shown.code == 0 and "messages in" in shown.out
    assert ["audit", "Exclusive", "5", "0", "0"] in [line.split() for line in shown.out.splitlines()]
    assert quire("topics", "stats", "counted", "--json").json["msgInCounter"] == 5
    internal = quire("topics", "internal-stats", "counted")
    assert "active" in internal.out and "cursor audit" in internal.out
    (ledger,) = quire("topics", "internal-stats", "counted", "--json").json["ledgers"]
    assert ledger["entries"] == 5
    assert quire("topics", "lookup", "counted").out.strip() == server.service_url


def test_limits_of_a_namespace_and_of_a_topic() -> None:
    topic = "persistent://public/default/bounded"
    assert quire("topics", "create", topic).code == 0
    assert quire("limits", "get", topic).out == f"{topic} has no limits of its own\n"
    said = quire("limits", "set", topic, "--producers", "1", "--consumers-per-subscription", "0").out
    assert said == f"limits of {topic}: 1 producers, any number of consumers-per-subscription\n"
    found = {"producers": 1, "consumers-per-subscription": 0}
    assert quire("limits", "get", topic, "--json").json == found
    assert quire("limits", "set", "public/default", "--topics", "10000").code == 0
    assert quire("limits", "get", "public/default").out.split() == ["topics", "10000"]
    for where in (topic, "public/default"):
        assert quire("limits", "remove", where).code == 0
        assert quire("limits", "get", where, "--json").json == {}
    refused(quire("limits", "set", topic, "--topics", "5"), WRONG_USE, "no limit of topics")
    refused(quire("limits", "set", topic), WRONG_USE, "at least one limit")
    refused(quire("limits", "get", "bounded"), WRONG_USE, "neither a namespace")


def test_a_subscription_from_its_creation_to_its_end(server: Server) -> None:
    assert (
        quire("subscriptions", "create", "watched", "s", "--from", "earliest", "--create-topic").out
        == "created s of watched\n"
    )
    publish(server, "watched", 5)
    assert quire("subscriptions", "list", "watched").out == "audit\ns\n"
    assert quire("subscriptions", "list", "watched", "--json").json == ["audit", "s"]
    shown = quire("subscriptions", "stats", "watched", "s").out.splitlines()
    assert shown[1].split()[:5] == ["watched", "Exclusive", "5", "0", "0"]
    assert quire("subscriptions", "skip", "watched", "s", "--count", "2").code == 0
    assert quire("subscriptions", "stats", "watched", "s", "--json").json["msgBacklog"] == 3
    peeked = quire("subscriptions", "peek", "watched", "s", "--count", "9", "--json").json
    assert [one["payload"] for one in peeked] == ["2", "3", "4"]
    assert quire("subscriptions", "peek", "watched", "s").out.split()[-1] == "2"
    assert quire("subscriptions", "seek", "watched", "s", "--to", peeked[-1]["id"]).code == 0
    assert quire("subscriptions", "stats", "watched", "s", "--json").json["msgBacklog"] == 1
    for to, backlog in (("2020-01-01", 5), ("latest", 0), ("earliest", 5), ("2999-01-01T00:00:00+02:00", 0)):
        assert quire("subscriptions", "seek", "watched", "s", "--to", to).code == 0
        assert quire("subscriptions", "stats", "watched", "s", "--json").json["msgBacklog"] == backlog
    assert quire("subscriptions", "skip", "watched", "audit").out == "audit of watched skipped all messages\n"
    peeked_nothing = quire("subscriptions", "peek", "watched", "audit")
    assert peeked_nothing == Ran(0, "", "audit of watched has no unacknowledged messages\n")
    assert quire("subscriptions", "delete", "watched", "s").out == "deleted s of watched\n"
    assert quire("subscriptions", "list", "watched").out == "audit\n"


def test_subscriptions_of_partitions_and_of_batches(server: Server) -> None:
    quire("topics", "create", "parted", "--partitions", "2")
    assert quire("subscriptions", "create", "parted", "s", "--from", "earliest").code == 0
    client = pulsar.Client(server.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    producer = client.create_producer("parted-partition-1", batching_enabled=True)
    for i in range(3):
        producer.send_async(b"\xff%d" % i, None)
    producer.flush()
    client.close()
    found = quire("subscriptions", "stats", "parted", "s", "--json").json
    assert {part: one["msgBacklog"] for part, one in found.items()} == {
        "parted-partition-0": 0, "parted-partition-1": 3
    }  # fmt: skip
    peeked = quire("subscriptions", "peek", "parted", "s", "--count", "2", "--json").json
    assert [one["payload_base64"] for one in peeked] == ["/zA=", "/zE="]
    assert [one["id"].split(":")[-1] for one in peeked] == ["0", "1"]
    assert quire("subscriptions", "delete", "parted", "s").code == 0
    assert quire("subscriptions", "list", "parted").out == ""


def test_a_partitioned_topic_grows_is_shown_and_ends_as_one(server: Server) -> None:
    quire("topics", "create", "grown", "--partitions", "1")
    quire("subscriptions", "create", "grown", "s")
    assert quire("topics", "update", "grown", "--partitions", "2").out == "grown has 2 partitions now\n"
    absent = quire("topics", "update", "never-made", "--partitions", "2")
    refused(absent, NOT_FOUND, "topic persistent://public/default/never-made does not exist")
    found = quire("subscriptions", "stats", "grown", "s", "--json").json
    assert list(found) == ["grown-partition-0", "grown-partition-1"]
    shown = quire("topics", "internal-stats", "grown").out
    assert "grown-partition-0" in shown and "grown-partition-1" in shown
    seek = ("subscriptions", "seek", "grown", "s", "--to")
    assert quire(*seek, "earliest").code == 0
    refused(quire(*seek, "1:1"), WRONG_USE, "partition")
    assert quire("topics", "terminate", "grown").out == "terminated grown, all its 2 partitions\n"
    assert quire("topics", "delete", "grown").code == 0
    refused(quire("topics", "terminate", "grown"), NOT_FOUND, "grown")


def test_what_cannot_be_done_to_a_subscription(server: Server) -> None:
    publish(server, "plain", 1)
    refused(quire("subscriptions", "stats", "plain", "none"), NOT_FOUND, "no subscription none")
    refused(quire("subscriptions", "peek", "plain", "none"), NOT_FOUND, "no subscription none")
    refused(quire("subscriptions", "seek", "plain", "audit", "--to", "nowhere"), WRONG_USE, "LEDGER:ENTRY")
    refused(quire("subscriptions", "seek", "plain", "audit", "--to", "20-20"), WRONG_USE, "12:00:00", "15m")
    refused(quire("subscriptions", "create", "plain", "audit"), FAILED, "already exists")


def test_schemas(tmp_path: Path) -> None:
    def avsc(name: str, *fields: str) -> str:
        made = [{"name": one, "type": "int"} for one in fields]
        (tmp_path / name).write_text(json.dumps({"type": "record", "name": "Order", "fields": made}))
        return str(tmp_path / name)

    first, more = avsc("first.avsc", "a"), avsc("more.avsc", "a", "b")
    refused(quire("schemas", "show", "typed"), NOT_FOUND, "has no schema")
    assert quire("schemas", "add", "typed", first).out == "version 0 of typed\n"
    assert quire("schemas", "check", "typed", first).out == "it goes with the schema of typed (FULL)\n"
    refused(quire("schemas", "check", "typed", more), FAILED, "would refuse", "field 'b' is not written")
    checked = quire("schemas", "check", "typed", more, "--json")
    assert checked.code == FAILED and json.loads(checked.out)["compatibility"] is False
    refused(quire("schemas", "add", "typed", more), FAILED, "is incompatible with version 0")
    refused(quire("schemas", "add", "typed", "--type", "poem"), WRONG_USE, "invalid schema type")
    assert json.loads(quire("schemas", "show", "typed").out)["name"] == "Order"
    assert quire("schemas", "delete", "typed").code == 0
    assert quire("schemas", "add", "typed", "--type", "string", "--json").json == {
        "topic": "typed",
        "version": 2,
    }
    assert [line.split()[:2] for line in quire("schemas", "list", "typed").out.splitlines()[1:]] == [
        ["2", "STRING"]
    ]
    assert quire("schemas", "show", "typed", "--version", "0", "--json").json["type"] == "AVRO"
    refused(quire("schemas", "list", "non-persistent://public/default/typed"), WRONG_USE, "persistent topic")


def test_why_segments_are_still_here(server: Server) -> None:
    publish(server, "explained", 5)
    shown = quire("topics", "explain", "explained").out
    assert "explained: one segment\n" in shown and "5 messages" in shown
    assert (
        "  kept    it is the active segment" in shown
        and "  copies  the bookies' copy is the only one" in shown
    )
    (segment,) = quire("topics", "explain", "explained", "--json").json["segments"]
    assert segment["keptBy"][0]["by"] == "active" and segment["messages"] == 5
    refused(quire("topics", "explain", "explained", "--admin-url", "http://127.0.0.1:1"), TRY_AGAIN)


def test_the_archive_runs_counts_and_verifies(server: Server) -> None:
    publish(server, "kept", 5)
    report = quire("archive", "run", "--seal", "--json").json
    assert report["archived"] >= 1 and report["failed"] == 0
    states = quire("archive", "status", "--json").json["segments"]
    assert states["archived"]["segments"] + states["released"]["segments"] >= 1
    table = quire("archive", "status").out
    assert all(state in table for state in ("active", "sealed", "flushed", "archived", "released"))
    segment = quire("topics", "internal-stats", "kept", "--json").json["ledgers"][0]
    assert segment["archive"]["name"] in quire("topics", "internal-stats", "kept").out
    assert quire("archive", "verify", "--json").json["damaged"] == []
    assert "damaged" not in quire("archive", "verify").out


def test_a_damaged_archive_is_told_of_and_repaired(server: Server) -> None:
    publish(server, "rotten", 5)
    quire("subscriptions", "create", "rotten", "audit", "--from", "earliest")
    quire("archive", "run", "--seal")
    segment = quire("topics", "internal-stats", "rotten", "--json").json["ledgers"][0]
    path = Path(segment["archive"]["store"].removeprefix("file://")) / segment["archive"]["name"]
    path.chmod(0o644)
    path.write_bytes(path.read_bytes()[:-20])
    ran = quire("archive", "verify")
    assert ran.code == 1 and "`quire archive repair`" in ran.err
    for command in (("topics", "stats"), ("topics", "internal-stats"), ("topics", "explain")):
        assert path.name in quire(*command, "rotten").out
    ran = quire("archive", "repair")
    assert (ran.code, ran.err) == (0, "") and ran.out.split()[-2:] == ["repaired", "1"], ran
    assert quire("archive", "verify").code == 0 and not path.exists()
    assert path.name not in quire("topics", "stats", "rotten").out


def test_damage_in_the_archive_fails_the_command(server: Server) -> None:
    publish(server, "damaged", 5)
    quire("archive", "run", "--seal")
    segment = quire("topics", "internal-stats", "damaged", "--json").json["ledgers"][0]
    path = Path(segment["archive"]["store"].removeprefix("file://")) / segment["archive"]["name"]
    sound = path.read_bytes()
    path.chmod(0o644)
    path.write_bytes(sound[:100] + bytes([sound[100] ^ 1]) + sound[101:])
    ran = quire("archive", "verify")
    path.write_bytes(sound)
    assert ran.code == FAILED and "damaged: " in ran.out and "one archived segment is damaged" in ran.err
    assert quire("archive", "verify").code == 0


def test_termination_is_for_good(server: Server) -> None:
    publish(server, "ended", 2)
    assert quire("topics", "terminate", "ended", "--json").json["last"]["entryId"] == 1
    assert quire("topics", "unload", "ended").code == 0
    assert quire("topics", "internal-stats", "ended", "--json").json["state"] == "Terminated"


def test_a_ledger_is_recovered_by_hand(server: Server) -> None:
    publish(server, "recovered", 2)
    ledger = quire("topics", "internal-stats", "recovered", "--json").json["ledgers"][0]["ledgerId"]
    quire("topics", "unload", "recovered")
    assert quire("ledgers", "recover", str(ledger), "--json").json["lastEntry"] == 1
    refused(quire("ledgers", "recover", "987654"), NOT_FOUND, "ledger 987654 does not exist")


def test_what_is_not_there_is_exit_code_3() -> None:
    for verb in ("stats", "internal-stats", "partitions", "terminate", "delete"):
        refused(quire("topics", verb, "nowhere"), NOT_FOUND, "persistent://public/default/nowhere")
    refused(quire("topics", "list", "no/where"), NOT_FOUND, "there is no namespace no/where")


def test_what_failed_is_exit_code_1() -> None:
    quire("topics", "create", "twice")
    refused(quire("topics", "create", "twice"), FAILED, "already exists")


def test_wrong_use_is_exit_code_2(server: Server) -> None:
    refused(quire("topics", "stats", "a/b"), WRONG_USE, "'a/b' is not a topic")
    refused(quire("topics", "list", "alone"), WRONG_USE, "'alone' is not a namespace")
    refused(quire("topics", "list", "--admin-url", "localhost:8080"), WRONG_USE, "HTTP address")
    refused(quire("standalone", "--segment-bytes-max", "huge"), WRONG_USE, "segment_bytes_max", "64MiB")
    assert quire("topics", "create").code == WRONG_USE
    assert quire("topics", "create", "x", "--partitions", "0").code == WRONG_USE
    assert quire("nonsense").code == WRONG_USE
    assert "Did you mean 'topics'?" in quire("topic", "list").err
    refused(quire("standalone", "--write-quorum", "2"), WRONG_USE, "write_quorum", "one bookie")
    clients_port = server.service_url.replace("pulsar://", "http://")
    refused(quire("topics", "list", "--admin-url", clients_port), WRONG_USE, "the port of Pulsar clients")
    client = pulsar.Client(server.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    client.subscribe("used", "audit")
    refused(quire("topics", "delete", "used"), WRONG_USE, "force")
    assert quire("topics", "delete", "used", "--force").code == 0
    client.close()


def test_a_broker_that_is_not_there_is_exit_code_4() -> None:
    refused(quire("topics", "list", "--admin-url", "http://127.0.0.1:1"), TRY_AGAIN, "no broker answers")


def test_effective_settings_name_their_source(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "quire.toml"
    file.write_text('segment_bytes_max = "8MiB"\n')
    monkeypatch.setenv("QUIRE_CLUSTER", "mine")
    shown = quire("config", "show", "--config", str(file), "--keep-alive-ms", "5s", "--json").json
    assert shown["segment_bytes_max"] == {"value": "8MiB", "source": "file"}
    assert shown["cluster"] == {"value": "mine", "source": "environment"}
    assert shown["keep_alive_ms"] == {"value": "5s", "source": "flag"}
    assert shown["write_quorum"] == {"value": "1", "source": "default"}
    shown_here = quire("config", "show")
    assert "segment_bytes_max" in shown_here.out and "not those of a running server" in shown_here.err
    hidden = quire("config", "show", "--archive", "s3://b/p?secret_key=hush&region=eu", "--json").json
    assert hidden["archive"]["value"] == "s3://b/p?secret_key=…&region=eu"


@pytest.mark.parametrize("name", SUBCOMMANDS)
def test_every_command_has_help(name: str) -> None:
    ran = quire(name, "--help")
    assert ran.code == 0 and f"Usage: quire {name}" in ran.out
    assert "Example" in ran.out


def test_help_is_cheap() -> None:
    """`quire --help` imports click and nothing heavy."""
    heavy = "aiohttp uvloop numpy rich lmdb google pulsar pyspark".split()
    script = (
        "import sys; sys.argv=['quire','--help']\n"
        "from quire.cli.main import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        f"print([m for m in {heavy} if m in sys.modules], file=sys.stderr)"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ran.stderr.strip() == "[]"


def test_a_server_says_one_line_what_to_do_first_and_stops_within_5_s(tmp_path: Path) -> None:
    with standalone(tmp_path) as running:
        with urllib.request.urlopen(f"{running.http_url}/health", timeout=5) as answer:
            assert json.load(answer)["ready"]
        with urllib.request.urlopen(f"{running.http_url}/metrics", timeout=5) as answer:
            assert b"quire_bookie_journal_groups_total" in answer.read()
        hint = [line.strip() for line in running.log.read_text().splitlines() if line.startswith("    ")]
        ran = [
            subprocess.run(["sh", "-c", line], capture_output=True, text=True, timeout=30) for line in hint
        ]
        assert [one.returncode for one in ran] == [0, 0], [one.stderr for one in ran]
        assert ran[1].stdout == "Hello, Quire\n"
        began = time.monotonic()
        running.process.terminate()
        rest, _ = running.process.communicate(timeout=30)
        assert time.monotonic() - began < 5.0
        assert rest == "" and running.process.returncode == 0


def test_permissions_without_a_security_file_are_explained_in_one_sentence() -> None:
    quire("topics", "create", "open")
    topic = "persistent://public/default/open"
    said = "authorization is disabled, so every role may do everything"
    explained = quire("permissions", "explain", "app", topic)
    assert explained == Ran(0, f"app may do everything on {topic}: {said}\n", "")
    found = quire("permissions", "explain", "app", topic, "--json").json
    assert found["authorization"] is False and found["produce"] == {"allowed": True, "why": said}


def test_repair_shows_numbers_and_no_empty_lists() -> None:
    shown = quire("bookies", "repair")
    assert shown.code == 0 and "{" not in shown.out and "()" not in shown.out and "[]" not in shown.out
    rows = dict(line.split(maxsplit=1) for line in shown.out.splitlines())
    assert rows["failed"] == "0" and "error" not in shown.out
    assert quire("bookies", "repair", "--json").json["left"] == {}


def test_a_broker_says_whether_it_is_ready(server: Server) -> None:
    assert quire("brokers", "healthcheck").out == "ok\n"
    assert quire("brokers", "healthcheck", "--json").json == {"url": server.http_url, "healthy": True}
    refused(quire("brokers", "healthcheck", "--admin-url", "http://127.0.0.1:1"), TRY_AGAIN)
    assert "segment_bytes_max" in quire("brokers", "config", "list", "--runtime").out


def test_the_openapi_document_is_printed_as_json_in_both_forms() -> None:
    shown, printed = quire("brokers", "openapi"), quire("brokers", "openapi", "--json")
    document = json.loads(shown.out)
    assert document == printed.json
    assert "/admin/v2/tenants" in document["paths"]


@pytest.mark.parametrize("verb", ["create", "delete", "skip", "peek", "seek"])
def test_an_empty_name_of_a_subscription_is_not_the_topic(server: Server, verb: str) -> None:
    """The path of a subscription without its name is the path of the topic, which `delete` would delete."""
    url = ("--admin-url", server.http_url)
    assert quire("topics", "create", f"kept-{verb}", *url).code == 0
    more = {"delete": ["--force"], "seek": ["--to", "earliest"], "create": ["--create-topic"]}.get(verb, [])
    ran = quire("subscriptions", verb, f"kept-{verb}", "", *more, *url)
    assert ran.code == WRONG_USE and "the name of the subscription is empty" in ran.err, ran
    assert quire("topics", "stats", f"kept-{verb}", *url).code == 0
