"""The command that runs the program of a language, built when it has to be.

Results lie in `build/clients/LANGUAGE-HASH`, by a hash of what they are built from, so a change builds anew and
nothing else does. A fetch that failed is remembered the same way for a day, so that a machine without network does
not wait for it again and again; removing `build/clients` tries at once. Tests run side by side; one process builds.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

HERE = Path(__file__).parent
BUILT = HERE.parents[1] / "build" / "clients"
FETCH_S = 240
REMEMBERED_S = 86_400


@contextmanager
def _alone() -> Iterator[None]:
    """Within, no other process builds a client."""
    BUILT.mkdir(parents=True, exist_ok=True)
    with BUILT.joinpath("lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def python() -> list[str]:
    return [sys.executable, str(HERE / "python" / "program.py")]


def quire() -> list[str]:
    return [sys.executable, str(HERE / "quire" / "program.py")]


@_alone()
def go(program: str = "clients") -> list[str]:
    """`clients`, or `secured`."""
    _need("go")
    target = _target("go", "program.go", "scenarios.go", "secured/program.go", "go.mod", "go.sum")
    if not (target / program).exists():
        words = ["go", "build", "-o", f"{target}/", ".", "./secured"]
        _build(target, words, cwd=HERE / "go", GOFLAGS="-mod=readonly")
    return [str(target / program)]


@_alone()
def java(program: str = "Program") -> list[str]:
    """`Program`, or `Secured`."""
    sources = ("Program.java", "World.java", "Schemas.java", "Secured.java")
    return [*_java("java", "pulsar/pulsar-client", *sources)[:-1], program]


def iceberg_catalog() -> list[str]:
    """A server: see `iceberg/src/Catalog.java`."""
    return _java("iceberg", "iceberg/iceberg-core", "Catalog.java")


@_alone()
def java_admin(program: str) -> list[str]:
    """`Walk` or `Sweep`: see `admin/src`."""
    *command, _ = _java("admin", "pulsar/pulsar-client-admin", "Walk.java", "Sweep.java")
    return [*command, program]


def _java(folder: str, needs: str, *sources: str) -> list[str]:
    """The first of the sources has the class that is run."""
    for tool in ("java", "mvn"):
        _need(tool)
    target = _target(folder, "pom.xml", *(f"src/{name}" for name in sources))
    jars = target / "jars"
    if not jars.exists():
        _build(target, _maven(target, needs), cwd=HERE / folder)
    return [
        "java", "-XX:TieredStopAtLevel=1", "-cp", f"{target / 'classes'}:{jars}/*", sources[0].removesuffix(".java"),
    ]  # fmt: skip


def _maven(target: Path, needs: str) -> list[str]:
    """From the local repository when what is needed was fetched before; else from the network."""
    fetched = Path.home() / ".m2" / "repository" / "org" / "apache" / needs
    return [
        "mvn", "-q", "-B", *(["-o"] if fetched.exists() else []), f"-Dbuilt={target}",
        "compile", "dependency:copy-dependencies", f"-DoutputDirectory={target / 'jars'}",
    ]  # fmt: skip


@_alone()
def node() -> list[str]:
    for tool in ("node", "npm"):
        _need(tool)
    target = _target("node", "package.json", "program.js")
    if not (target / "program.js").exists():
        shutil.copy(HERE / "node" / "package.json", target)
        _build(target, ["npm", "install", "--no-audit", "--no-fund"], cwd=target)
        shutil.copy(HERE / "node" / "program.js", target)
    return ["node", str(target / "program.js")]


def write_keys(folder: Path) -> None:
    """`public.pem` and `private.pem`, an RSA pair; in the older format, for the Go client knows no other."""
    _need("openssl")
    private, public = str(folder / "private.pem"), str(folder / "public.pem")
    for words in (
        ["genrsa", "-traditional", "-out", private, "2048"],
        ["rsa", "-in", private, "-pubout", "-out", public],
    ):
        subprocess.run(["openssl", *words], check=True, capture_output=True)


def _need(tool: str) -> None:
    if shutil.which(tool) is None:
        pytest.skip(f"there is no {tool} on this machine")


def _target(language: str, *sources: str) -> Path:
    seal = hashlib.sha256(b"\0".join((HERE / language / name).read_bytes() for name in sources))
    target = BUILT / f"{language}-{seal.hexdigest()[:12]}"
    if not target.exists():
        for old in BUILT.glob(f"{language}-*"):
            shutil.rmtree(old)
        target.mkdir(parents=True)
    return target


def _build(target: Path, words: list[str], cwd: Path, **environment: str) -> None:
    """Skips when what is needed cannot be fetched; a program that does not compile is a failure."""
    failed = target / "failed"
    if failed.exists() and time.time() - failed.stat().st_mtime < REMEMBERED_S:
        pytest.skip(failed.read_text())
    try:
        done = subprocess.run(
            words, cwd=cwd, env={**os.environ, **environment}, capture_output=True, text=True, timeout=FETCH_S
        )
        said, good = done.stdout + done.stderr, done.returncode == 0
    except subprocess.TimeoutExpired:
        said, good = "took too long", False
    if good:
        return
    if _does_not_compile(said):
        pytest.fail(said[-3000:])
    why = f"{words[0]} could not fetch or build the client: {' '.join(said.split())[-300:]}"
    failed.write_text(why)
    pytest.skip(why)


def _does_not_compile(said: str) -> bool:
    return "COMPILATION ERROR" in said or (".go:" in said and "./" in said)
