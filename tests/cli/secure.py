"""A real `quire standalone` process that is called by TLS alone."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from quire.testing.zookeeper_server import free_port


class Served(NamedTuple):
    service_url: str
    http_url: str
    certs: Path
    data: Path


def running(directory: Path, security: Path) -> Iterator[Served]:
    """A server with that security file, whose plain ports are closed."""
    with (directory / "log").open("w") as log:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "quire", "standalone", "--data", str(directory / "data")),
                *("--security", str(security), "--listen", f"127.0.0.1:{free_port()}"),
            ],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    assert process.stdout is not None
    words = process.stdout.readline().split()
    assert words[:1] == ["ready"], (directory / "log").read_text()
    assert len(words) == 3, "the plain ports are closed"
    yield Served(words[1], words[2], security.parent, directory)
    process.terminate()
    process.wait(30)
