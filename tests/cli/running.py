"""A real `quire standalone` process for tests, and the `quire` command run inside this one."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

from quire.cli.main import main


class Server(NamedTuple):
    process: subprocess.Popen[str]
    service_url: str
    http_url: str
    log: Path


@contextmanager
def standalone(directory: Path, *flags: str) -> Iterator[Server]:
    """A server on free ports with its data in `directory`, stopped at the end."""
    log = directory / "server.log"
    loopback = "127.0.0.1:0"
    command = [sys.executable, "-m", "quire", "standalone", "--data", str(directory / "data")]
    with log.open("w") as errors:
        process = subprocess.Popen(
            [*command, "--listen", loopback, "--http", loopback, *flags],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    assert process.stdout is not None
    words = process.stdout.readline().split()
    assert len(words) == 3 and words[0] == "ready", log.read_text()
    try:
        yield Server(process, words[1], words[2], log)
    finally:
        process.terminate()
        process.communicate(timeout=30)


class Ran(NamedTuple):
    """What a command did. `code` 0: done."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        assert self.code == 0, self.err
        return json.loads(self.out)


def quire(*words: str) -> Ran:
    """`quire WORDS…` as the console script runs it, without the cost of a process."""
    out, err = io.StringIO(), io.StringIO()
    code: Any = 0
    with redirect_stdout(out), redirect_stderr(err), patch.object(sys, "argv", ["quire", *words]):
        try:
            main()
        except SystemExit as end:
            code = end.code
    return Ran(int(code or 0), out.getvalue(), err.getvalue())
