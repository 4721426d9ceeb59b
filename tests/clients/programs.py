"""The command that runs the program of a language, built if necessary.

Results lie in `~/.cache/quire-tests/clients/LANGUAGE-HASH`, by a hash of their sources: all clones and runs share them,
and a change builds again. A failed fetch is remembered the same way for a day, so that a machine without network does
not wait for it again and again; removing the folder tries at once. Of tests that run side by side, one builds.
`python -m tests.clients.programs` builds all of them.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

HERE = Path(__file__).parent
BUILT = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "quire-tests" / "clients"
FETCH_S = 400
REMEMBERED_S = 86_400
KEPT_S = 30 * 86_400
"""A program that no run of any clone has used for so long is deleted."""


@contextmanager
def alone(tool: str) -> Iterator[None]:
    """Within, no other process builds with this tool: caches of Go and Maven do not compile or fetch a thing twice."""
    BUILT.mkdir(parents=True, exist_ok=True)
    with BUILT.joinpath(f"{tool}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def python() -> list[str]:
    return [sys.executable, str(HERE / "python" / "program.py")]


def quire() -> list[str]:
    return [sys.executable, str(HERE / "quire" / "program.py")]


@alone("go")
def go(program: str = "clients") -> list[str]:
    """`clients`, or `secured`."""
    _need("go")
    target = _target("go", "program.go", "scenarios.go", "secured/program.go", "go.mod", "go.sum")
    build(
        target,
        lambda place: ["go", "build", "-o", f"{place}/", ".", "./secured"],
        cwd=HERE / "go",
        GOFLAGS="-mod=readonly",
    )
    return [str(target / program)]


@alone("mvn")
def java(program: str = "Program") -> list[str]:
    """`Program`, or `Secured`."""
    sources = ("Program.java", "World.java", "Schemas.java", "Secured.java")
    return [*_java("java", "pulsar/pulsar-client", *sources)[:-1], program]


@alone("mvn")
def iceberg_catalog() -> list[str]:
    """A server: see `iceberg/src/Catalog.java`."""
    return _java("iceberg", "iceberg/iceberg-core", "Catalog.java")


@alone("mvn")
def java_admin(program: str) -> list[str]:
    """`Walk` or `Sweep`: see `admin/src`."""
    *command, _ = _java("admin", "pulsar/pulsar-client-admin", "Walk.java", "Sweep.java")
    return [*command, program]


def _java(folder: str, needs: str, *sources: str) -> list[str]:
    """The first of the sources has the class that is run."""
    for tool in ("java", "mvn"):
        _need(tool)
    target = _target(folder, "pom.xml", *(f"src/{name}" for name in sources))
    build(target, lambda place: _maven(place, needs), cwd=HERE / folder)
    return [
        "java", "-XX:TieredStopAtLevel=1", "-cp", f"{target / 'classes'}:{target / 'jars'}/*",
        sources[0].removesuffix(".java"),
    ]  # fmt: skip


def _maven(place: Path, needs: str) -> list[str]:
    """From the local repository when what is needed was fetched before; else from the network."""
    fetched = Path.home() / ".m2" / "repository" / "org" / "apache" / needs
    return [
        "mvn", "-q", "-B", *(["-o"] if fetched.exists() else []), f"-Dbuilt={place}",
        "compile", "dependency:copy-dependencies", f"-DoutputDirectory={place / 'jars'}",
    ]  # fmt: skip


@alone("npm")
def node() -> list[str]:
    for tool in ("node", "npm"):
        _need(tool)
    target = _target("node", "package.json", "program.js")

    def install(place: Path) -> list[str]:
        for name in ("package.json", "program.js"):
            shutil.copy(HERE / "node" / name, place)
        return ["npm", "install", "--no-audit", "--no-fund"]

    build(target, install)
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
    return BUILT / f"{language}-{seal.hexdigest()[:12]}"


def build(
    target: Path, command: Callable[[Path], list[str]], cwd: Path | None = None, **environment: str
) -> None:
    """Let a command build into a folder, there by default, that becomes `target` when it is whole.

    Skips when what is needed cannot be fetched; a program that does not compile is a failure.
    """
    if target.exists():
        os.utime(target)
        return
    failed, place = target.with_suffix(".failed"), target.with_suffix(".new")
    if failed.exists() and time.time() - failed.stat().st_mtime < REMEMBERED_S:
        pytest.skip(failed.read_text())
    for old in BUILT.iterdir():
        if old.is_dir() and time.time() - old.stat().st_mtime > KEPT_S:
            shutil.rmtree(old)
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    words = command(place)
    try:
        done = subprocess.run(
            words, cwd=cwd or place, env={**os.environ, **environment},
            capture_output=True, text=True, timeout=FETCH_S,
        )  # fmt: skip
        said, good = done.stdout + done.stderr, done.returncode == 0
    except subprocess.TimeoutExpired:
        said, good = "took too long", False
    if good:
        place.rename(target)
        return
    if _does_not_compile(said):
        pytest.fail(said[-3000:])
    why = f"{words[0]} could not fetch or build the client: {' '.join(said.split())[-300:]}"
    failed.write_text(why)
    pytest.skip(why)


def _does_not_compile(said: str) -> bool:
    return "COMPILATION ERROR" in said or (".go:" in said and "./" in said)


def build_all() -> None:
    """Build every program that this machine has the tools for; a test says why one is missing."""
    every: tuple[Callable[[], object], ...] = (
        go, java, node, iceberg_catalog, lambda: java_admin("Walk"),
    )  # fmt: skip
    for build in every:
        try:
            build()
        except (pytest.skip.Exception, pytest.fail.Exception) as why:
            print(why, file=sys.stderr)


if __name__ == "__main__":
    build_all()
