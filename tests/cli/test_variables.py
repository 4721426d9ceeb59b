"""A misspelt variable `QUIRE_…` is refused by each command, and every variable that this repository uses is known."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from quire.cli.output import WRONG_USE
from quire.cli.variables import OF_COMMANDS, all_settings, refuse_unknown_variables
from quire.runtime.errors import ConfigurationError
from tests.cli.running import quire

ROOT = Path(__file__).parents[2]
FOLDERS = ("tests", "bench", "deploy", "docs", ".ci", ".github")
TEXTS = {"", *".conf .Dockerfile .go .java .json .md .py .service .sh .toml .tpl .yaml .yml".split()}
EXAMPLES = {"QUIRE_WAIT_MS", "QUIRE_ROOM_BYTES", "QUIRE_NAME"}
"""Names in examples of how a setting's variable is called, which no process has."""


def test_every_variable_that_this_repository_uses_is_known() -> None:
    files = [file for folder in FOLDERS for file in (ROOT / folder).rglob("*") if file.is_file()]
    files += [*ROOT.glob("*.md"), *ROOT.glob("docker-compose*.yml"), ROOT / "Makefile"]
    found: set[str] = set()
    for file in files:
        if (
            not {"__pycache__", "target"} & set(file.parts)
            and file.suffix in TEXTS
            and file != Path(__file__)
        ):
            found |= set(re.findall(r"(?<!_)\bQUIRE_[A-Z0-9_]+\b", file.read_text(errors="ignore")))
    assert {"QUIRE_METADATA", "QUIRE_CHAOS_SEED", "QUIRE_JAVA_IMAGE"} <= found
    refuse_unknown_variables(environment=dict.fromkeys(found - EXAMPLES, ""))


@pytest.mark.parametrize(
    "command",
    [
        "standalone",
        "broker",
        "bookie",
        "gateway",
        "local",
        "zookeeper",
        "config show",
        "rescue metadata --metadata sqlite:///m.db",
        "wal list --metadata sqlite:///m.db --wal file:///w",
        "stores list --metadata sqlite:///m.db",
        "topics list",
        "check",
    ],
)
def test_a_misspelt_variable_is_refused_before_anything_happens(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("QUIRE_METDATA", "zk://127.0.0.1:1/quire")
    ran = quire(*command.split())
    assert (ran.code, ran.out) == (WRONG_USE, "")
    assert (
        ran.err.count("\n") == 1 and "QUIRE_METDATA" in ran.err and "did you mean QUIRE_METADATA?" in ran.err
    )
    assert not list(tmp_path.iterdir())


def test_all_unknown_variables_are_named_with_the_nearest_known_ones() -> None:
    environment = {"QUIRE_TOKN_FILE": "", "QUIRE_ZZZZ": "", "QUIRE_TOKEN": "", "HOME": "/"}
    with pytest.raises(ConfigurationError) as refused:
        refuse_unknown_variables(environment=environment)
    said = str(refused.value)
    assert "QUIRE_TOKN_FILE, which nothing reads (did you mean QUIRE_TOKEN_FILE?), QUIRE_ZZZZ, which" in said
    assert said.count("did you mean") == 1 and "HOME" not in said


def test_services_of_kubernetes_add_variables_that_are_ignored() -> None:
    added = "SERVICE_HOST SERVICE_PORT SERVICE_PORT_HTTP PORT PORT_6650_TCP PORT_6650_TCP_PROTO PORT_6650_TCP_ADDR"
    services = ("QUIRE", "QUIRE_BROKER", "QUIRE_GATEWAY")
    refuse_unknown_variables(environment={f"{one}_{name}": "" for one in services for name in added.split()})


def test_settings_of_each_process_and_options_of_commands_are_known() -> None:
    some = {"QUIRE_NEW_CLUSTER", "QUIRE_ZOOKEEPER", "QUIRE_LISTEN_TLS", "QUIRE_DRAIN_ON_STOP_MS", "QUIRE_WAL"}
    assert some | {"QUIRE_SEND_TIMEOUT_MS", "QUIRE_METADATA"} <= all_settings()
    refuse_unknown_variables(environment=dict.fromkeys(all_settings() | OF_COMMANDS, ""))
