"""Quire as somebody installs it: an sdist, the wheel that is built from it, and environments that know no clone.

An environment has the wheel and what the wheel's metadata name for the extras that are asked for, and nothing else: the
distributions are linked from the environment of the tests, so a dependency that is used and not named is missing there,
and no network is needed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
from collections.abc import Iterator
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
NOT_SOURCE = shutil.ignore_patterns(
    ".*", "build", "dist", "*.egg-info", "__pycache__", "tests", "bench", "data"
)


def build(folder: Path) -> tuple[Path, Path]:
    """The sdist of a copy of the clone, and the wheel of what was unpacked from it."""
    clone, unpacked = folder / "clone", folder / "unpacked"
    shutil.copytree(ROOT, clone, ignore=NOT_SOURCE)
    sdist = _built("sdist", clone, folder)
    with tarfile.open(sdist) as packed:
        packed.extractall(unpacked, filter="data")
    (source,) = unpacked.iterdir()
    return sdist, _built("wheel", source, folder)


def _built(kind: str, source: Path, into: Path) -> Path:
    script = f"from setuptools import build_meta; print(build_meta.build_{kind}({str(into)!r}))"
    words = [sys.executable, "-c", script]
    done = subprocess.run(words, cwd=source, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return into / done.stdout.split()[-1]


def install(wheel: Path, environment: Path, *extras: str) -> Path:
    """`pip install quire[extras]` into a new environment; its folder of programs.

    Where a path of modules shows the clone, pip finds Quire there and installs nothing: so it is told of none.
    """
    venv.create(environment)
    python = environment / "bin" / "python"
    words = ["--python", str(python), "install", "--quiet", "--no-deps", "--no-index", str(wheel)]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    subprocess.run([sys.executable, "-m", "pip", *words], cwd=environment, env=kept, check=True)
    (packages,) = environment.glob("lib/python*/site-packages")
    (info,) = packages.glob("quire-*.dist-info")
    for needed in _needed(Distribution.at(info), extras):
        _link(needed, packages)
    return python.parent


def _needed(of: Distribution, extras: tuple[str, ...]) -> Iterator[Distribution]:
    """What it needs with these extras, and what those need."""
    waiting, seen = [(of, frozenset(extras))], set()
    while waiting:
        one, wanted = waiting.pop()
        for requirement in map(Requirement, one.requires or ()):
            marker = requirement.marker
            if marker is not None and not any(marker.evaluate({"extra": extra}) for extra in wanted or {""}):
                continue
            more = (requirement.name, frozenset(requirement.extras))
            if more in seen:
                continue
            seen.add(more)
            if requirement.name == "quire":  # one extra that takes in another one
                waiting.append((of, more[1]))
                continue
            found = distribution(requirement.name)
            waiting.append((found, more[1]))
            yield found


def _link(one: Distribution, packages: Path) -> None:
    own = Path(sysconfig.get_path("purelib"))
    for name in {file.parts[0] for file in one.files or () if file.parts[0] not in ("..", "__pycache__")}:
        if not (packages / name).exists():
            (packages / name).symlink_to(own / name)
