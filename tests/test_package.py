"""What `pip install quire[...]` installs runs by itself: from an empty directory, and from inside a clone."""

from __future__ import annotations

import os
import re
import subprocess
import tarfile
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from quire.runtime.errors import ConfigurationError
from quire.testing.zookeeper_server import classpath, java
from tests.installed import ROOT, build, install

READY_S = 90
ANY = "127.0.0.1:0"


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return build(tmp_path_factory.mktemp("packed"))


@pytest.fixture(scope="module")
def programs(packed: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install(packed[1], tmp_path_factory.mktemp("environment"), "s3", "security", "spark")


def test_each_python_that_the_package_names_is_tested() -> None:
    named = re.findall(r'"Programming Language :: Python :: ([\d.]+)"', (ROOT / "pyproject.toml").read_text())
    checks = (ROOT / ".github/workflows/check.yml").read_text()
    assert named and all(f'python: "{one}"' in checks or f'python: ["{one}"]' in checks for one in named)


def test_the_sdist_and_the_wheel_have_every_file_of_every_room_and_no_test(packed: tuple[Path, Path]) -> None:
    sdist, wheel = packed
    links = [link for link in (ROOT / "quire").iterdir() if link.is_symlink()]
    sources = {
        f"quire/{file.relative_to(ROOT)}" for link in links for file in (ROOT / link.name).rglob("*.py")
    }
    with tarfile.open(sdist) as one:
        in_sdist = {name.partition("/")[2] for name in one.getnames()}
    in_wheel = set(zipfile.ZipFile(wheel).namelist())
    assert sources <= in_sdist and {"LICENSE", "README.md", "pyproject.toml"} <= in_sdist
    assert sources | {"quire/py.typed", "quire/wire/pulsar.proto", "pyspark_quire.py"} <= in_wheel
    assert any(name.startswith("quire/serving/console/static/") for name in in_wheel)
    assert not {name for name in in_wheel if name.startswith(("tests", "bench", "docs"))}


@pytest.fixture(params=["an empty directory", "the clone"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Directories in which people may run it: a clone has a folder `quire` as well."""
    return ROOT if request.param == "the clone" else tmp_path


def test_an_installed_standalone_serves_and_so_do_its_children(
    programs: Path, folder: Path, tmp_path: Path
) -> None:
    flags = ("standalone", "--data", str(tmp_path / "data"), "--listen", ANY, "--http", ANY)
    with started(programs, folder, tmp_path / "first.log", *flags) as (server, service, admin):
        through(programs, folder, service)
        run(programs, folder, "archive", "run", "--seal", "--admin-url", admin)
        until_there_is_a_sidecar(tmp_path / "data" / "archive")
        server.kill()
    with started(programs, folder, tmp_path / "second.log", *flags) as (server, service, _):
        server.terminate()  # a process of its own has read the index first, for the former one was killed
    said = (tmp_path / "second.log").read_text()
    assert server.returncode == 0 and "read the index" not in said, said


def test_an_installed_cluster_serves(programs: Path, folder: Path, tmp_path: Path) -> None:
    try:
        java(), classpath()
    except ConfigurationError as why:
        pytest.skip(str(why))
    flags = (
        "--data",
        str(tmp_path / "data"),
        "--listen",
        ANY,
        "--http",
        ANY,
        "--brokers",
        "1",
        "--bookies",
        "1",
    )
    with started(programs, folder, tmp_path / "log", "local", *flags) as (server, service, _):
        through(programs, folder, service)
        server.terminate()
    assert server.returncode == 0, (tmp_path / "log").read_text()


def until_there_is_a_sidecar(archive: Path) -> None:
    deadline = time.monotonic() + READY_S
    while not list(archive.rglob("*.parquet")):
        assert time.monotonic() < deadline, "the child that builds sidecars built none"
        time.sleep(0.1)


class Running(NamedTuple):
    process: subprocess.Popen[str]
    service_url: str
    http_url: str


@contextmanager
def started(programs: Path, folder: Path, log: Path, *words: str) -> Iterator[Running]:
    """A server in `folder`, until whoever uses it has ended it."""
    with log.open("w") as errors:
        server = subprocess.Popen(
            [programs / "quire", *words],
            cwd=folder, env=environment(programs), stdout=subprocess.PIPE, stderr=errors, text=True,
        )  # fmt: skip
    try:
        assert server.stdout is not None
        said = server.stdout.readline().split()
        assert len(said) == 3 and said[0] == "ready", log.read_text()
        yield Running(server, *said[1:])
        server.communicate(timeout=READY_S)
    finally:
        server.kill()
        server.communicate()


def run(programs: Path, folder: Path, *words: str, given: str = "") -> str:
    done = subprocess.run(
        [programs / "quire", *words],
        cwd=folder, env=environment(programs), input=given, capture_output=True, text=True, timeout=READY_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def through(programs: Path, folder: Path, service: str) -> None:
    """A message goes in and comes out."""
    run(programs, folder, "produce", "hello", "--service-url", service, given="Hello, Quire\n")
    words = ("--subscription", "first", "--from", "earliest", "--count", "1", "--service-url", service)
    assert "Hello, Quire" in run(programs, folder, "consume", "hello", *words)


def environment(programs: Path) -> dict[str, str]:
    """As of somebody who has no clone: only its own programs, and none of the tests' settings."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("QUIRE_", "PYTHON"))}
    return {**kept, "PATH": f"{programs}:{kept['PATH']}"}
