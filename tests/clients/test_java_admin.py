"""The stock Java admin client against a real `quire standalone`: `Walk.java` does the work of an operator, refusals
included, and `Sweep.java` calls every method that the client has. Skipped without Java, Maven or their network.
"""

from __future__ import annotations

import base64
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote_plus

import pulsar
import pytest

from tests.cli.running import Server, standalone
from tests.clients import programs
from tests.serving.security import SECRET, token

CLUSTER = "standalone"
PARTS = (
    "tenants",
    "namespaces",
    "permissions",
    "topics",
    "stored topics",
    "cluster",
    "partitions",
    "subscriptions",
    "odd names",
    "on partitions",
    "policies of namespaces",
    "policies of topics",
    "end",
)
SECURITY = """
[authentication.token]
secret_key = "data:;base64,{}"

[authorization]
superusers = ["admin"]
"""
NO_ROUTE = re.compile(r"no resource at (\S+):|(/\S+) supports .*, but not ")
OF_THE_FIRST_VERSION = {
    "Namespaces.getNamespaces(String,String)",
    "Namespaces.getAntiAffinityNamespaces(String,String,String)",
}
"""Methods that ask a Pulsar of version 1, before `/admin/v2`."""


class Helper:
    """Does by a client of the protocol what the program asks for."""

    def __init__(self, server: Server) -> None:
        authentication = pulsar.AuthenticationToken(token("admin"))
        quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        self._consumers: dict[str, pulsar.Consumer] = {}
        self._client = pulsar.Client(server.service_url, authentication=authentication, logger=quiet)

    def do(self, what: str, topic: str, argument: str) -> None:
        if what == "publish":
            mode = pulsar.PartitionsRoutingMode.RoundRobinDistribution
            producer = self._client.create_producer(topic, batching_enabled=False, message_routing_mode=mode)
            for number in range(int(argument)):
                producer.send(b"%d" % number)
            producer.close()
        elif what == "keyed":
            producer = self._client.create_producer(topic, batching_enabled=False)
            producer.send(b"x", partition_key=unquote_plus(argument))
            producer.close()
        elif what == "subscribe":
            self._consumers[argument] = self._client.subscribe(topic, argument)
        else:
            self._consumers.pop(argument).close()

    def close(self) -> None:
        self._client.close()


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[Server]:
    security = tmp_path / "security.toml"
    security.write_text(SECURITY.format(base64.b64encode(SECRET).decode()))
    security.chmod(0o600)
    with standalone(tmp_path, "--security", str(security)) as made:
        yield made


def test_an_operators_work_and_what_is_refused(secured: Server) -> None:
    words = [*programs.java_admin("Walk"), secured.http_url, CLUSTER, token("admin"), token("app")]
    helper, told = Helper(secured), []
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        try:
            for line in process.stdout:
                told.append(line.rstrip())
                if told[-1].startswith("please: "):
                    helper.do(*told[-1].removeprefix("please: ").split())
                    process.stdin.write("done\n")
                    process.stdin.flush()
        finally:
            process.kill()
    helper.close()
    assert [line for line in told if line.startswith("done")] == [f"done: {one}" for one in PARTS], "\n".join(
        told
    )


def test_every_method_of_the_client_has_an_answer(tmp_path: Path) -> None:
    """A route for each, and none that fails or that the client cannot read."""
    words = programs.java_admin("Sweep")
    with standalone(tmp_path) as server:
        done = subprocess.run([*words, server.http_url, CLUSTER], capture_output=True, text=True, timeout=240)
    rows = [line.split(" ", 2) for line in done.stdout.splitlines()]
    assert done.returncode == 0 and len(rows) > 450, done.stdout[-1000:] + done.stderr[-2000:]
    wrong = [
        " ".join(row)
        for row in rows
        if row[0] not in OF_THE_FIRST_VERSION
        and (row[1] in ("0", "500") or (len(row) > 2 and NO_ROUTE.search(row[2])))
    ]
    assert not wrong, "\n".join(wrong)
