"""`python -m tests.fuzz TARGET SECONDS [libFuzzer's flags]`: search with atheris, guided by coverage.

New inputs gather in `build/fuzz/TARGET`; at the end those that reach something new are kept in `corpus/TARGET`, small
ones first. An input that fails lies in `build/fuzz` and is named; put it into the corpus with the repair.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

from tests.fuzz.targets import CORPUS, TARGETS, seeds

BUILD = Path("build/fuzz")
INPUT_BYTES_MAX = 16 << 10
MEMORY_MIB = 1024
CORPUS_BYTES_MAX = 60 << 10
"""Of each target."""


def _begin(name: str) -> Path:
    """The folder of a search, with what is known to be good in it."""
    folder = BUILD / name
    folder.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(seeds(name)):
        (folder / f"seed-{number}").write_bytes(seed)
    return folder


def _launcher(name: str) -> Path:
    """A merge runs the program it is part of again, by its file."""
    file = BUILD / f"{name}.sh"
    file.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m tests.fuzz {name} 0 --here "$@"\n')
    file.chmod(0o755)
    return file.absolute()


def _prune(kept: Path) -> None:
    """Leave the smallest inputs, as many as the corpus has room for."""
    room = CORPUS_BYTES_MAX
    for file in sorted(kept.iterdir(), key=lambda file: file.stat().st_size):
        room -= file.stat().st_size
        if room < 0:
            file.unlink()


def _fuzz(name: str, flags: list[str]) -> None:
    import atheris  # type: ignore[import-not-found,import-untyped,unused-ignore]

    with atheris.instrument_imports(include=["quire"]):
        for module in [each for each in sys.modules if each.startswith(("quire.", "tests.fuzz."))]:
            del sys.modules[module]
        from tests.fuzz.targets import TARGETS as instrumented
    atheris.Setup([str(_launcher(name)), *flags], instrumented[name])
    atheris.Fuzz()


def main(arguments: list[str]) -> int:
    if importlib.util.find_spec("atheris") is None:
        print("atheris is not installed: pip install atheris (there are wheels for Linux; others build it)")
        return 1
    if len(arguments) < 2 or arguments[0] not in TARGETS or not arguments[1].isdecimal():
        print(f"usage: make fuzz TARGET=({'|'.join(TARGETS)}) SECONDS=n")
        return 2
    name, seconds, *more = arguments
    if more[:1] == ["--here"]:
        _fuzz(name, more[1:])
        return 0
    folder, kept = _begin(name), CORPUS / name
    kept.mkdir(parents=True, exist_ok=True)
    limits = [
        f"-max_len={INPUT_BYTES_MAX}",
        f"-rss_limit_mb={MEMORY_MIB}",
        f"-artifact_prefix={BUILD}/{name}-",
    ]
    here = [sys.executable, "-m", "tests.fuzz", name, seconds, "--here", *limits]
    search = subprocess.run(
        [*here, f"-max_total_time={seconds}", "-print_final_stats=1", "-verbosity=0", *more, folder, kept]
    )
    if search.returncode == 0:
        subprocess.run(
            [*here, "-merge=1", "-verbosity=0", kept, folder], check=True, stderr=subprocess.DEVNULL
        )
        _prune(kept)
    return search.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
