"""The command that runs the program of a language, built when it has to be.

Results lie in `build/clients/LANGUAGE-HASH`, by a hash of what they are built from, so a change builds anew and
nothing else does. A fetch that failed is remembered the same way for a day, so that a machine without network does
not wait for it again and again; removing `build/clients` tries at once.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

HERE = Path(__file__).parent
BUILT = HERE.parents[1] / "build" / "clients"
FETCH_S = 240
REMEMBERED_S = 86_400


def python() -> list[str]:
    return [sys.executable, str(HERE / "python" / "program.py")]


def quire() -> list[str]:
    return [sys.executable, str(HERE / "quire" / "program.py")]


def go() -> list[str]:
    _need("go")
    target = _target("go", "program.go", "scenarios.go", "go.mod", "go.sum")
    program = target / "program"
    if not program.exists():
        _build(target, ["go", "build", "-o", str(program), "."], cwd=HERE / "go", GOFLAGS="-mod=readonly")
    return [str(program)]


def java() -> list[str]:
    for tool in ("java", "mvn"):
        _need(tool)
    target = _target("java", "pom.xml", "src/Program.java", "src/World.java", "src/Schemas.java")
    jars = target / "jars"
    if not jars.exists():
        _build(target, _maven(target), cwd=HERE / "java")
    return ["java", "-XX:TieredStopAtLevel=1", "-cp", f"{target / 'classes'}:{jars}/*", "Program"]


def _maven(target: Path) -> list[str]:
    """From the local repository when the client was fetched before; else from the network."""
    client = Path.home() / ".m2" / "repository" / "org" / "apache" / "pulsar" / "pulsar-client"
    return [
        "mvn", "-q", "-B", *(["-o"] if client.exists() else []), f"-Dbuilt={target}",
        "compile", "dependency:copy-dependencies", f"-DoutputDirectory={target / 'jars'}",
    ]  # fmt: skip


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
