"""S3 server process for tests: versitygw over a directory if it is installed, else moto in memory.

    store = S3(folder, port)
    child = Child("store", "store", store.command(), log, store.answers)
    store.url("127.0.0.1:4711")        # through a proxy

versitygw can be killed and restarted, because its objects are files. moto's objects are lost with its process.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import urllib.error
import urllib.request
from pathlib import Path

from tests import moto_store

BUCKET = "quire"
ACCESS_KEY, SECRET_KEY = "test", "test-secret"
VERSITYGW = "github.com/versity/versitygw/cmd/versitygw@v1.8.0"


def versitygw() -> str | None:
    """Return the program from the PATH, or from Go's directory; None with `QUIRE_TEST_S3=moto`."""
    if os.environ.get("QUIRE_TEST_S3") == "moto":
        return None
    return shutil.which("versitygw") or shutil.which("versitygw", path=str(Path.home() / "go/bin"))


class S3:
    """S3 server for the objects in `folder`, with one bucket."""

    def __init__(self, folder: Path, port: int) -> None:
        self._folder = folder
        self.port = port
        self._program = versitygw()
        self.keeps = self._program is not None
        """True if objects survive the end of the process."""

    def command(self) -> list[str]:
        (self._folder / BUCKET).mkdir(parents=True)
        if self._program is None:
            return [sys.executable, moto_store.__file__, "--host", "127.0.0.1", "--port", str(self.port)]
        keys = ("--access", ACCESS_KEY, "--secret", SECRET_KEY)
        return [
            self._program,
            *keys,
            "--port",
            f"127.0.0.1:{self.port}",
            "--quiet",
            "posix",
            str(self._folder),
        ]

    async def answers(self) -> bool:
        """Return whether the server is up and has the bucket."""
        return await asyncio.to_thread(self._look)

    def _look(self) -> bool:
        method = "GET" if self.keeps else "PUT"  # moto accepts unsigned requests, and so creates the bucket
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/{BUCKET}", method=method)
        try:
            with urllib.request.urlopen(request, timeout=5):
                return True
        except urllib.error.HTTPError:
            return True
        except OSError:
            return False

    def url(self, address: str, prefix: str = "cluster") -> str:
        """Return the URL of the store at `address`."""
        return f"s3://{BUCKET}/{prefix}?endpoint=http://{address}&access_key={ACCESS_KEY}&secret_key={SECRET_KEY}"
