"""The compose file says only what the command line takes, and keeps its promises about scaling and safety."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import socket
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from cryptography import x509

from quire.cli.main import SUBCOMMANDS, cli
from quire.runtime.clock import SystemClock
from quire.security.configuration import load
from quire.security.identity import Presented
from quire.security.security import make_security
from quire.security.tls import between_processes
from quire.serving.settings import BrokerSettings

ROOT = Path(__file__).parents[1]
PACKAGES = [link for link in (ROOT / "quire").iterdir() if link.is_symlink()]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]
OF_QUIRE = [name for name, one in SERVICES.items() if (one.get("command") or [""])[0] in SUBCOMMANDS]
SCALED = ("broker", "bookie")
MONITORING = [name for name, one in SERVICES.items() if one.get("profiles") == ["monitoring"]]
"""Made by others: `healthy` and a build of ours are not in their images, and they read files of the clone."""


def options_of(subcommand: str) -> set[str]:
    command = cli.get_command(click.Context(cli), subcommand)
    assert command is not None
    return {name for parameter in command.params for name in parameter.opts}


def test_every_process_of_a_cluster_is_there() -> None:
    assert {"zookeeper", "bookie", "broker", "gateway"} == set(OF_QUIRE)
    assert {"s3", "spark"} <= set(SERVICES)


@pytest.mark.parametrize("name", OF_QUIRE)
def test_every_command_is_one_that_the_command_line_takes(name: str) -> None:
    subcommand, *words = SERVICES[name]["command"]
    flags, values = words[::2], words[1::2]
    assert len(flags) == len(values) and not [value for value in values if value.startswith("--")]
    assert set(flags) <= options_of(subcommand)


@pytest.mark.parametrize("name", OF_QUIRE)
def test_every_quire_variable_is_a_setting_of_that_process(name: str) -> None:
    known = {f"QUIRE_{option[2:].replace('-', '_').upper()}" for option in options_of(name)}
    given = {variable for variable in SERVICES[name].get("environment", {}) if variable.startswith("QUIRE_")}
    assert given <= known


def test_the_variables_of_the_entry_point_are_settings() -> None:
    script = (ROOT / "deploy" / "entrypoint.sh").read_text()
    for name in ("QUIRE_ADVERTISE", "QUIRE_JOURNAL", "QUIRE_ENTRY_LOG"):
        assert f"{name}=" in script
        assert f"--{name.removeprefix('QUIRE_').replace('_', '-').lower()}" in options_of("bookie")
    assert "--advertise" in options_of("broker")


@pytest.mark.parametrize("name", SCALED)
def test_scaled_services_have_no_name_or_port_of_their_own(name: str) -> None:
    service = SERVICES[name]
    assert not service.keys() & {"container_name", "ports", "hostname"}
    assert service["deploy"]["replicas"] >= 2
    assert "--advertise" not in service["command"]


def test_the_example_of_listeners_names_the_ports_that_it_publishes() -> None:
    text = (ROOT / "deploy" / "README.md").read_text().split("```yaml\n")[1].split("```")[0]
    for service in yaml.safe_load(text)["services"].values():
        listeners = service["environment"]["QUIRE_ADVERTISED_LISTENERS"]
        (published,) = service["ports"]
        settings = BrokerSettings(listen="0.0.0.0:6650", advertised_listeners=listeners)
        assert settings.listeners == {"outside": f"pulsar://localhost:{published.split(':')[0]}"}


@pytest.mark.parametrize("name", SERVICES)
def test_every_container_is_unprivileged_and_writes_to_volumes_only(name: str) -> None:
    service = SERVICES[name]
    assert service["user"].split(":")[0] != "0"
    assert service["read_only"] and service["cap_drop"] == ["ALL"]
    for volume in service.get("volumes", []):
        source, _, access = volume.split(":") if volume.endswith(":ro") else (*volume.split(":"), "rw")
        if access == "ro" and name in MONITORING:
            assert (ROOT / source).is_file(), "what is mounted is there"
        else:
            assert source in COMPOSE["volumes"], "only named volumes are written"


def test_prometheus_asks_services_that_are_there_at_their_ports() -> None:
    config = yaml.safe_load((ROOT / "deploy/monitoring/prometheus.yml").read_text())
    for job in config["scrape_configs"]:
        (found,) = job["dns_sd_configs"]
        (name,) = found["names"]
        assert job["job_name"] == f"quire-{name}" and f"0.0.0.0:{found['port']}" in SERVICES[name]["command"]
    assert sorted(MONITORING) == ["grafana", "prometheus"]


def test_a_bookie_has_two_volumes() -> None:
    assert len(SERVICES["bookie"]["volumes"]) == 2


@pytest.mark.parametrize("name", [name for name in SERVICES if name != "spark"])
def test_every_server_is_checked_and_started_again(name: str) -> None:
    asks = "wget" if name in MONITORING else "healthy"
    assert SERVICES[name]["healthcheck"]["test"][:2] == ["CMD", asks]
    assert SERVICES[name]["restart"] == "unless-stopped"


def test_services_start_when_what_they_need_is_well() -> None:
    order = {
        "bookie": {"zookeeper"},
        "broker": {"zookeeper", "bookie", "s3"},
        "gateway": {"broker"},
        "spark": {"gateway"},
    }
    for name, needs in order.items():
        found = SERVICES[name]["depends_on"]
        assert set(found) == needs
        assert all(one == {"condition": "service_healthy"} for one in found.values())


# -- without bookies ---------------------------------------------------------------------------------------

DISKLESS: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.diskless.yml").read_text())["services"]


def test_without_bookies_a_broker_is_as_with_them_but_for_where_it_keeps_messages() -> None:
    broker, usual = DISKLESS["broker"], SERVICES["broker"]
    differing = {"command", "environment", "depends_on"}
    assert {**broker, **dict.fromkeys(differing)} == {**usual, **dict.fromkeys(differing)}
    subcommand, *words = broker["command"]
    assert set(words[::2]) <= options_of(subcommand)
    given = {name for name in broker["environment"] if name.startswith("QUIRE_")}
    assert given == {"QUIRE_METADATA", "QUIRE_WAL", "QUIRE_ARCHIVE"}
    assert {f"--{name.removeprefix('QUIRE_').lower()}" for name in given} <= options_of(subcommand)
    assert set(broker["depends_on"]) <= set(DISKLESS)


def test_without_bookies_all_else_is_the_usual_cluster_s_and_needs_no_bookie() -> None:
    for name in DISKLESS.keys() - {"broker"}:
        assert DISKLESS[name] == SERVICES[name]
        assert set(SERVICES[name].get("depends_on", {})) <= set(DISKLESS)


def test_no_file_extends_a_service_which_docker_compose_1_29_refuses() -> None:
    files = sorted(ROOT.glob("docker-compose*.yml"))
    assert len(files) == 3
    for file in files:
        services = yaml.safe_load(file.read_text())["services"]
        assert not [name for name, one in services.items() if "extends" in one], file.name


# -- secured -----------------------------------------------------------------------------------------------

SECURE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.secure.yml").read_text())["services"]


@pytest.mark.parametrize("name", [name for name in SECURE if name != "s3"])
def test_every_secured_process_has_the_security_file_and_takes_its_flags(name: str) -> None:
    service = SECURE[name]
    subcommand, *words = service["command"]
    assert set(words[::2]) <= options_of(subcommand)
    known = {f"QUIRE_{option[2:].replace('-', '_').upper()}" for option in options_of(subcommand)}
    given = service["environment"]
    assert {one for one in given if one.startswith("QUIRE_")} <= known
    assert given["QUIRE_SECURITY"] == "/security/security.toml"
    assert given.get("QUIRE_METADATA", "zk+ssl://").startswith("zk+ssl://")
    assert service["volumes"][0].endswith(":/security:ro")


@pytest.mark.parametrize("name", SECURE)
def test_every_secured_container_is_as_closed_as_the_others(name: str) -> None:
    service = SECURE[name]
    assert service["user"].split(":")[0] != "0"
    assert service["read_only"] and service["cap_drop"] == ["ALL"] and service["restart"] == "unless-stopped"
    assert service["healthcheck"]["test"][:2] == ["CMD", "healthy"]
    assert service["healthcheck"]["test"][2].startswith("https://localhost:") or name == "zookeeper"


@pytest.mark.filterwarnings("ignore::joserfc.errors.SecurityWarning")
async def test_the_commands_of_the_readme_make_all_that_the_secured_cluster_reads(tmp_path: Path) -> None:
    text = (ROOT / "deploy" / "README.md").read_text().split("## Containers, secured")[1]
    lines = text.split("```sh\n")[1].split("```")[0].splitlines()
    done = [line for line in lines if not line.startswith(("sudo ", "docker ", "export "))]
    (tmp_path / "deploy").symlink_to(ROOT / "deploy")
    quire = f'quire() {{ "{sys.executable}" -m quire "$@"; }}\n'
    words = ["bash", "-euc", quire + "\n".join(done)]
    await asyncio.to_thread(subprocess.run, words, cwd=tmp_path, check=True)
    secured = tmp_path / "secured"
    configuration = load(str(secured / "security.toml"))
    assert configuration.tls is not None and not configuration.tls.plain
    inside = between_processes(configuration)
    assert inside is not None and inside.required
    made = make_security(configuration, SystemClock())
    assert made.credentials.method == "token" and configuration.metadata.login.data().startswith(b"quire:")
    assert not {"authority-key.pem", "private.pem"} & {one.name for one in secured.iterdir()}
    certificate = x509.load_pem_x509_certificate((secured / "node.pem").read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert {*SECURE, "localhost"} <= set(names.get_values_for_type(x509.DNSName))
    for role in ("admin", "app"):
        presented = (tmp_path / "secrets" / f"{role}.token").read_bytes().strip()
        assert made.authentication is not None
        assert (await made.authentication.authenticate(Presented("token", presented))).role == role


def test_the_images_copy_what_the_build_context_holds() -> None:
    """A room that is missing in .dockerignore's list would be missing in the image."""
    listed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert {"quire", *(link.name for link in PACKAGES)} <= listed
    for name in SERVICES.keys() - set(MONITORING):
        assert (ROOT / SERVICES[name]["build"]["dockerfile"]).is_file()


def test_requirements_are_those_of_the_project() -> None:
    lines = subprocess.run(
        ["python3", "deploy/requirements.py", "s3"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert lines == project["dependencies"] + project["optional-dependencies"]["s3"]


def test_the_catch_up_read_takes_its_arguments() -> None:
    spec = importlib.util.find_spec("pyspark")
    if spec is None:
        pytest.skip("PySpark is not installed")
    script = (ROOT / "deploy" / "catch_up.py").read_text()
    for flag in SERVICES["spark"]["command"][::2]:
        assert f'"{flag}"' in script


def test_scripts_may_be_run() -> None:
    for name in ("entrypoint.sh", "healthy.py", "catch_up.py", "stop_bookie.py"):
        assert os.access(ROOT / "deploy" / name, os.X_OK)


def entrypoint(tmp_path: Path, *words: str, hold: bool = False) -> subprocess.Popen[str]:
    """The entry point with its volumes below `tmp_path` and a `quire` that says what it was told."""
    (tmp_path / "bin").mkdir(exist_ok=True)
    quire = tmp_path / "bin" / "quire"
    wait = "read _" if hold else ""
    quire.write_text(f'#!/bin/sh\necho "$*" "$QUIRE_ADVERTISE" "$QUIRE_JOURNAL" "$QUIRE_ENTRY_LOG"\n{wait}\n')
    quire.chmod(0o755)
    script = tmp_path / "entrypoint.sh"
    text = (ROOT / "deploy" / "entrypoint.sh").read_text()
    text = text.replace("/journal/", f"{tmp_path}/journal/").replace("/entries/", f"{tmp_path}/entries/")
    script.write_text(text)
    return subprocess.Popen(
        ["sh", str(script), *words],
        env={"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_two_bookies_never_share_a_directory_and_a_new_one_takes_over_that_of_one_that_is_gone(
    tmp_path: Path,
) -> None:
    def said(process: subprocess.Popen[str]) -> list[str]:
        assert process.stdout is not None
        return process.stdout.readline().split()

    first, second = (entrypoint(tmp_path, "bookie", hold=True) for _ in range(2))
    journals = {said(first)[2], said(second)[2]}
    assert journals == {f"{tmp_path}/journal/{number}/journal" for number in (1, 2)}
    first.communicate("\n")
    third = entrypoint(tmp_path, "bookie", hold=True)
    freed = said(third)
    assert freed[2] in journals
    assert freed[3] == freed[2].replace("/journal/", "/entries/", 1).removesuffix("/journal")
    assert freed[1].endswith(":3181")
    second.communicate("\n")
    third.communicate("\n")


def test_a_broker_is_told_where_its_container_is_reached(tmp_path: Path) -> None:
    said, _ = entrypoint(tmp_path, "broker").communicate()
    url = said.split()[1]
    BrokerSettings(listen="0.0.0.0:6650", advertise=url).validate()
    assert url == f"pulsar://{socket.gethostname()}:6650"
