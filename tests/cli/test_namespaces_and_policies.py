"""`quire tenants`, `namespaces`, `policies`, `version` and `help` against a real server."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete

from quire import __version__
from quire.cli import policy_values
from quire.cli.main import cli
from quire.cli.output import FAILED, NOT_FOUND, TRY_AGAIN, WRONG_USE
from quire.cli.policies import policies
from quire.metadata.records import Policies, decode
from quire.serving.admin.policy_json import namespace_policies_shown
from tests.cli.running import Ran, Server, quire
from tests.serving.admin.test_policy_json import KEPT


@pytest.fixture(autouse=True)
def address(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUIRE_ADMIN_URL", server.http_url)


@pytest.fixture
def namespace(address: None, request: pytest.FixtureRequest) -> Iterator[str]:
    """A namespace of its own for a test, deleted with its topics afterwards."""
    name = f"public/{request.node.name.removeprefix('test_')[:40]}"
    assert quire("namespaces", "create", name).code == 0
    yield name
    assert quire("namespaces", "delete", name, "--force").code == 0


def refused(ran: Ran, code: int, *words: str) -> None:
    """It failed with that code and one sentence that has these words."""
    assert ran.code == code, ran
    assert ran.out == "" and ran.err.count("\n") == 1 and ran.err.startswith("quire: "), ran.err
    assert all(word in ran.err for word in words), ran.err


def test_a_tenant_from_its_creation_to_its_end() -> None:
    assert quire("tenants", "create", "shop").out == "created tenant shop\n"
    assert {"public", "shop"} <= set(quire("tenants", "list").out.split())
    found = quire("tenants", "show", "shop", "--json").json
    assert found["adminRoles"] == [] and len(found["allowedClusters"]) == 1 and found["namespaces"] == []
    (cluster,) = found["allowedClusters"]
    assert quire("tenants", "update", "shop", "--allowed-clusters", f"{cluster},other").code == 0
    assert f"allowed clusters  {cluster}, other" in quire("tenants", "show", "shop").out
    quire("namespaces", "create", "shop/orders")
    refused(quire("tenants", "delete", "shop"), FAILED, "still has namespaces")
    assert "shop/orders" in quire("tenants", "show", "shop").out
    quire("namespaces", "delete", "shop/orders")
    assert quire("tenants", "delete", "shop", "--json").json == {"tenant": "shop", "deleted": True}
    refused(quire("tenants", "show", "shop"), NOT_FOUND, "no tenant shop")


def test_a_tenant_that_cannot_be() -> None:
    refused(quire("tenants", "create", "public"), FAILED, "already exists")
    refused(quire("tenants", "create", "a b"), WRONG_USE, "'a b'")
    refused(quire("tenants", "create", "roles", "--admin-roles", "alice"), WRONG_USE, "authorization")
    refused(quire("tenants", "update", "public"), WRONG_USE, "--admin-roles")
    refused(quire("tenants", "update", "nowhere", "--admin-roles", ""), NOT_FOUND, "nowhere")
    refused(quire("tenants", "list", "--admin-url", "http://127.0.0.1:1"), TRY_AGAIN, "no broker answers")


def test_a_namespace_from_its_creation_to_its_end() -> None:
    assert (
        quire("namespaces", "create", "public/tour", "--bundles", "4").out
        == "created namespace public/tour\n"
    )
    assert "public/tour" in quire("namespaces", "list", "public").out.splitlines()
    assert "public/tour" in quire("namespaces", "list", "--json").json
    bundles = quire("namespaces", "bundles", "public/tour").out.splitlines()
    assert len(bundles) == 4 and bundles[0] == "public/tour/00000000_40000000"
    assert quire("policies", "set", "public/tour", "message-ttl", "1d").code == 0
    assert quire("permissions", "grant", "app", "public/tour", "produce").code == 0
    shown = quire("namespaces", "show", "public/tour").out
    assert "bundles       4" in shown and "messageTTL" in shown and "app: produce" in shown
    assert quire("namespaces", "show", "public/tour", "--json").json["messageTTL"] == 86_400
    assert quire("namespaces", "unload", "public/tour").out == "unloaded public/tour\n"
    assert quire("namespaces", "delete", "public/tour").out == "deleted namespace public/tour\n"
    refused(quire("namespaces", "show", "public/tour"), NOT_FOUND, "public/tour")


def test_a_namespace_that_cannot_be() -> None:
    refused(quire("namespaces", "create", "nowhere/x"), NOT_FOUND, "nowhere")
    refused(quire("namespaces", "create", "public/default"), FAILED, "already exists")
    refused(quire("namespaces", "list", "nowhere"), NOT_FOUND, "nowhere")
    for verb in ("show", "delete", "topics", "bundles", "unload", "clear-backlog", "subscriptions"):
        refused(quire("namespaces", verb, "alone"), WRONG_USE, "'alone' is not a namespace")
        if verb not in ("unload", "clear-backlog"):
            refused(quire("namespaces", verb, "public/nowhere"), NOT_FOUND, "public/nowhere")
    assert quire("namespaces", "create", "public/x", "--bundles", "0").code == WRONG_USE


def test_topics_and_subscriptions_of_a_namespace(namespace: str, server: Server, tmp_path: Path) -> None:
    file = tmp_path / "lines"
    file.write_text("first\nsecond\n")
    parted, single = f"persistent://{namespace}/parted", f"persistent://{namespace}/single"
    quire("topics", "create", parted, "--partitions", "2")
    quire("topics", "create", single)
    quire("topics", "create", f"non-persistent://{namespace}/fleeting", "--partitions", "1")
    assert quire("namespaces", "topics", namespace).out.splitlines() == [parted, single]
    every = quire("namespaces", "topics", namespace, "--domain", "all", "--json").json
    assert every == [parted, single, f"non-persistent://{namespace}/fleeting"]
    assert f"{parted}-partition-1" in quire("namespaces", "topics", namespace, "--partitions").out.split()
    for topic in (parted, single):
        assert quire("subscriptions", "create", topic, "audit", "--from", "earliest").code == 0
    found = quire("namespaces", "subscriptions", namespace)
    assert ["audit", "2", parted] in [line.split() for line in found.out.splitlines()]
    assert quire("produce", single, str(file), "--service-url", server.service_url).code == 0
    assert quire("subscriptions", "stats", single, "audit", "--json").json["msgBacklog"] > 0
    said = quire("namespaces", "clear-backlog", namespace, "--subscription", "audit").out
    assert said == f"{namespace}: audit skipped all messages\n"
    assert quire("subscriptions", "stats", single, "audit", "--json").json["msgBacklog"] == 0
    assert quire("namespaces", "clear-backlog", namespace).code == 0
    assert quire("namespaces", "unsubscribe", namespace, "audit").code == 0
    assert quire("namespaces", "subscriptions", namespace, "--json").json == {}
    refused(quire("namespaces", "delete", namespace), FAILED, "still has topics")
    deleted = quire("namespaces", "delete", namespace, "--force", "--json").json
    assert deleted == {"namespace": namespace, "deleted": True, "topics": 3}
    assert quire("namespaces", "create", namespace).code == 0


def test_every_policy_is_set_as_it_is_shown_and_removed(namespace: str) -> None:
    topic = f"persistent://{namespace}/t"
    assert quire("topics", "create", topic).code == 0
    values = namespace_policies_shown(decode(Policies, KEPT, "namespace"))
    for where in (namespace, topic):
        names = [one.name for one in policies().values() if one.row.topic_word or where == namespace]
        for name in names:
            policy = policies()[name]
            said = policy_values.show(policy.row, policy.of(values, namespace))
            ran = quire("policies", "set", where, name, *shlex.split(said))
            assert ran.out == f"{name} of {where}: {said}\n", ran
        found = quire("policies", "get", where, "--json").json
        level = "namespace" if where == namespace else "topic"
        assert {name: one["source"] for name, one in found.items()} == dict.fromkeys(names, level)
        for name, one in found.items():
            assert one["own"] == one["effective"] == policies()[name].of(values, namespace), name
    for where in (topic, namespace):
        for name in policies():
            if policies()[name].row.topic_word or where == namespace:
                assert quire("policies", "remove", where, name).out == f"removed {name} of {where}\n"
        assert {one["own"] for one in quire("policies", "get", where, "--json").json.values()} == {None}


def test_a_policy_comes_from_the_topic_the_namespace_or_the_broker(namespace: str) -> None:
    topic = f"persistent://{namespace}/levels"
    quire("topics", "create", topic)
    assert quire("policies", "get", topic, "retention", "--json").json["source"] == "broker"
    assert quire("policies", "set", namespace, "retention", "time=7d", "size=unlimited").code == 0
    shown = quire("policies", "get", topic, "retention").out.splitlines()
    assert [line.split() for line in shown] == [
        ["own"], ["effective", "time=7d", "size=unlimited"], ["from", "namespace"]
    ]  # fmt: skip
    assert quire("policies", "set", topic, "retention", "time=unlimited", "size=10GiB").code == 0
    lines = {line.split()[0]: line.split()[1:] for line in quire("policies", "get", topic).out.splitlines()}
    assert lines["retention"] == ["topic", "time=unlimited", "size=10GiB"]
    assert lines["message-ttl"] == ["broker", "off"]
    assert quire("policies", "set", topic, "backlog-quota-message-age", "limit-time=1h").code == 0
    found = quire("policies", "get", topic, "--json").json
    assert found["backlog-quota-message-age"]["effective"]["limitTime"] == 3600
    assert found["backlog-quota"]["source"] == "broker"
    assert quire("policies", "get", namespace, "auto-topic-creation", "--json").json["effective"] == {
        "allowAutoTopicCreation": True, "topicType": "non-partitioned"
    }  # fmt: skip


def test_what_is_no_policy_or_no_value_is_wrong_use_and_changes_nothing(namespace: str) -> None:
    topic = f"persistent://{namespace}/unchanged"
    quire("topics", "create", topic)
    set_ = ("policies", "set", namespace)
    refused(quire(*set_, "retenton", "7d"), WRONG_USE, "did you mean retention?")
    refused(quire(*set_, "message-ttl", "soon"), WRONG_USE, "'soon'", "TIME|off", "count as acknowledged")
    refused(quire(*set_, "message-ttl", "-1"), WRONG_USE, "'-1'", "a number of seconds")
    refused(quire(*set_, "max-message-size", "10GiB"), WRONG_USE, "SIZE|unlimited")
    refused(quire("policies", "set", topic, "max-topics-per-namespace", "5"), WRONG_USE, "its namespace")
    assert "No such option '--jsonn'" in quire(*set_, "message-ttl", "--jsonn").err
    assert quire(*set_, "message-ttl").code == WRONG_USE
    for where in ("orders", "a/b/c", f"non-persistent://{namespace}/x"):
        refused(quire("policies", "get", where), WRONG_USE, where)
    for absent in ("public/nowhere", f"persistent://{namespace}/absent"):
        refused(quire("policies", "get", absent), NOT_FOUND, "absent" if "://" in absent else absent)
        refused(quire("policies", "set", absent, "message-ttl", "1d"), NOT_FOUND)
    assert {one["own"] for one in quire("policies", "get", namespace, "--json").json.values()} == {None}
    assert quire("namespaces", "topics", namespace).out.split() == [topic]


def test_policies_explain_themselves() -> None:
    shown = quire("policies", "list").out
    assert all(f"{name}  (" in shown for name in policies())
    one = quire("policies", "list", "retention").out.splitlines()
    assert one[0] == "retention  (namespace, topic)"
    assert (
        one[2]
        == "  value  time=TIME|unlimited size=SIZE|unlimited; plain numbers: time in minutes, size in MiB"
    )
    (listed,) = quire("policies", "list", "subscriptionExpirationTime", "--json").json
    assert listed["name"] == "subscription-expiration-time" and listed["topic"] == ""


def test_limits_are_policies_too(namespace: str) -> None:
    assert quire("limits", "set", namespace, "--producers", "3").code == 0
    assert quire("policies", "get", namespace, "max-producers-per-topic").out.split()[:2] == ["own", "3"]
    assert quire("policies", "set", namespace, "max-producers-per-topic", "unlimited").code == 0
    assert quire("limits", "get", namespace, "--json").json == {"producers": 0}


def completed(*words: str) -> list[str]:
    """Return what the shell offers for the last of `words`."""
    shell = ShellComplete(cli, {}, "quire", "_QUIRE_COMPLETE")
    return [one.value for one in shell.get_completions(list(words[:-1]), words[-1])]


def test_the_tab_key_completes_tenants_namespaces_and_policies(namespace: str) -> None:
    topic = f"persistent://{namespace}/tabbed"
    quire("topics", "create", topic)
    assert completed("tenants", "show", "pub") == ["public"]
    assert completed("namespaces", "list", "pub") == ["public"]
    assert completed("namespaces", "show", namespace[:-1]) == [namespace]
    assert completed("policies", "get", namespace[:-1]) == [namespace]
    assert completed("permissions", "list", f"persistent://{namespace[:-1]}") == [
        f"persistent://{namespace}/"
    ]
    assert completed("limits", "get", topic[:-1]) == [topic]
    assert completed("policies", "set", namespace, "subscription-e") == ["subscription-expiration-time"]
    assert completed("policies", "set", topic, "subscription-e") == []
    assert completed("policies", "list", "reten") == ["retention"]
    assert completed("policies", "set", topic, "retention", "time=") == ["time=unlimited"]
    assert completed("policies", "set", topic, "schema-compatibility-strategy", "FULL") == [
        "FULL",
        "FULL_TRANSITIVE",
    ]
    assert completed("policies", "set", topic, "nonsense", "") == []


def test_the_tab_key_offers_nothing_without_a_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUIRE_ADMIN_URL", "http://127.0.0.1:1")
    assert completed("tenants", "show", "pub") == completed("policies", "get", "pub") == []


def test_version_and_help() -> None:
    assert quire("version").out.startswith(f"quire {__version__} (Python ")
    assert quire("version", "--json").json["version"] == __version__
    assert quire("help").out.startswith("Usage: quire [OPTIONS] COMMAND")
    assert quire("help", "tenants", "create").out == quire("tenants", "create", "--help").out
    assert "did you mean 'tenants'" in quire("help", "tenant").err.lower()
    assert quire("help", "version", "more").code == WRONG_USE
    assert quire("help", "tenants", "nonsense").code == WRONG_USE


def test_only_the_commands_of_policies_import_their_rows_and_none_imports_a_server() -> None:
    script = (
        "import sys, quire.cli.main, quire.cli.tenants, quire.cli.namespaces, quire.cli.limits\n"
        "print(*sys.modules)\n"
        "import quire.cli.policies\n"
        "print(*sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    others, found = (set(line.split()) for line in ran.stdout.splitlines())
    assert not [name for name in others if name.startswith("quire.serving")]
    assert "quire.serving.admin.policy_json" in found and not found & {"aiohttp", "quire.serving.broker"}
