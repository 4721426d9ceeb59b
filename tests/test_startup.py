"""What a start refuses: one clear sentence on standard error, exit code 2, and nothing changed on disk.

And what it imports before it serves, for that is most of its time.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from .chaos.server import Server
from .mounted import mounted

QUIRE = [sys.executable, "-m", "quire"]


def standalone(data: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    """Try to start on `data`. A start that is not refused hangs, and fails the test."""
    ports = ["--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"]
    command = [*QUIRE, "standalone", "--data", str(data), *ports, *flags]
    return subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)


def tree(root: Path) -> dict[str, str]:
    """Every file below `root` and a digest of it; every directory. Lock files are empty and mean nothing."""
    found = {}
    for path in sorted(root.rglob("*")):
        if path.name != "lock":
            content = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "directory"
            found[str(path.relative_to(root))] = content
    return found


def assert_refused(tried: subprocess.CompletedProcess[str], *words: str) -> None:
    """Exit code 2 and one sentence that has all of `words`."""
    assert tried.returncode == 2, tried.stderr
    assert tried.stdout == ""
    lines = tried.stderr.strip().splitlines()
    assert len(lines) == 1, tried.stderr
    for word in words:
        assert word in lines[0]


@pytest.fixture
async def used(tmp_path: Path) -> Path:
    """The data directory of a node that ran and was stopped."""
    server = Server(tmp_path)
    await server.start()
    assert await server.stop() == 0
    return server.data


# -- directories -----------------------------------------------------------------------------------------


async def test_another_nodes_journal(used: Path, tmp_path: Path) -> None:
    other = Server(tmp_path / "other")
    (tmp_path / "other").mkdir()
    await other.start()
    await other.stop()
    shutil.rmtree(used / "journal")
    shutil.copytree(other.data / "journal", used / "journal")
    before = tree(tmp_path)
    assert_refused(standalone(used), "belongs to bookie", str(used / "journal"), str(used / "entries"))
    assert tree(tmp_path) == before


@pytest.mark.parametrize("lost", ["journal", "entries"])
async def test_a_lost_disk(used: Path, lost: str) -> None:
    shutil.rmtree(used / lost)
    before = tree(used)
    assert_refused(standalone(used), str(used / lost), "mount the right disk")
    after = tree(used)
    after.pop(lost, None)
    assert after == before


async def test_swapped_disks(used: Path) -> None:
    (used / "journal").rename(used / "aside")
    (used / "entries").rename(used / "journal")
    (used / "aside").rename(used / "entries")
    before = tree(used)
    assert_refused(standalone(used), "swap")
    assert tree(used) == before


async def test_a_lost_metadata_store(tmp_path: Path) -> None:
    """Another one would give ids of ledgers once more that the bookie has blocks of."""
    server = Server(tmp_path)
    await server.start()
    assert await server.stop() == 0
    kept = {file.name: file.read_bytes() for file in server.data.glob("metadata.db*")}
    for name in kept:
        (server.data / name).unlink()
    refused = standalone(server.data)
    assert refused.returncode == 2 and refused.stdout == ""
    assert "restore the metadata store that belongs to them" in refused.stderr.splitlines()[-1]
    for name in [file.name for file in server.data.glob("metadata.db*")]:
        (server.data / name).unlink()
    for name, content in kept.items():
        (server.data / name).write_bytes(content)
    await server.start()
    assert await server.stop() == 0


async def test_a_data_directory_in_use(tmp_path: Path) -> None:
    server = Server(tmp_path)
    await server.start()
    try:
        before = tree(server.data)
        assert_refused(standalone(server.data), "in use by another process", str(server.data))
        assert tree(server.data) == before
    finally:
        await server.stop()


def test_a_file_where_the_data_directory_should_be(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("not a directory")
    before = tree(tmp_path)
    assert_refused(standalone(tmp_path / "data"), str(tmp_path / "data"))
    assert_refused(standalone(tmp_path / "data" / "below"), str(tmp_path / "data"))
    assert tree(tmp_path) == before


@pytest.mark.parametrize("part", ["journal", "entries", "archive"])
def test_a_file_where_a_part_should_be(tmp_path: Path, part: str) -> None:
    (tmp_path / part).write_text("not a directory")
    before = tree(tmp_path)
    assert_refused(standalone(tmp_path), str(tmp_path / part))
    after = tree(tmp_path)
    assert {name: after[name] for name in before} == before


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    with mounted(tmp_path / "read-only", "ro") as place:
        yield place


def test_a_directory_that_cannot_be_written(read_only: Path) -> None:
    for data in (read_only, read_only / "data"):
        assert_refused(standalone(data), str(read_only), "is not writable")
        archive = ["--archive", f"file://{read_only.parent}/archive"]
        assert_refused(standalone(data, *archive), str(read_only), "Read-only file system")


# -- URLs and ports --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flag", "value", "word"),
    [
        ("--metadata", "mysql://host/base", "mysql://host/base"),
        ("--metadata", "sqlite://relative.db", "sqlite:///"),
        ("--metadata", "nonsense", "nonsense"),
        ("--metadata", "sqlite:///dev/null/metadata.db", "/dev/null"),
        ("--archive", "ftp://host/path", "ftp://host/path"),
        ("--archive", "file://host/path", "file:///"),
        ("--archive", "s3://", "s3://"),
        ("--archive", "nonsense", "nonsense"),
        ("--archive", "file:///dev/null/archive", "/dev/null"),
        ("--advertise", "http://host:1", "advertise"),
        ("--listen", "127.0.0.1", "listen"),
        ("--listen", "127.0.0.1:notaport", "listen"),
        ("--http", "127.0.0.1:70000", "http"),
        ("--listen", "203.0.113.1:6650", "203.0.113.1:6650"),
    ],
)
def test_a_wrong_address(tmp_path: Path, flag: str, value: str, word: str) -> None:
    data = tmp_path / "data"
    assert_refused(standalone(data, flag, value), word)
    assert not data.exists()


def test_metadata_that_is_something_else(tmp_path: Path) -> None:
    (tmp_path / "other.db").write_text("somebody's diary, not a database at all" * 100)
    before = tree(tmp_path)
    assert_refused(standalone(tmp_path / "data", "--metadata", f"sqlite://{tmp_path}/other.db"), "other.db")
    assert tree(tmp_path) == before


@pytest.mark.parametrize("flag", ["--listen", "--http"])
def test_a_busy_port(tmp_path: Path, flag: str) -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        address = f"127.0.0.1:{sock.getsockname()[1]}"
        assert_refused(standalone(tmp_path / "data", flag, address), address, "in use")
    assert not (tmp_path / "data").exists()


# -- settings --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "word"),
    [
        (["--memtable-bytes", "much"], "memtable_bytes"),
        (["--memtable-bytes", "1MiB"], "memtable_bytes"),
        (["--write-quorum", "1", "--ack-quorum", "2"], "ack_quorum"),
        (["--log-level", "loud"], "log_level"),
        (["--connections-max", "0"], "connections_max"),
    ],
)
def test_a_setting_that_cannot_be(tmp_path: Path, flags: list[str], word: str) -> None:
    assert_refused(standalone(tmp_path / "data", *flags), word)
    assert not (tmp_path / "data").exists()


def test_an_unknown_flag(tmp_path: Path) -> None:
    tried = standalone(tmp_path / "data", "--fsync", "never")
    assert tried.returncode == 2 and tried.stdout == "" and "--fsync" in tried.stderr
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("content", "word"),
    [
        ("fsync = 'never'", "fsync"),
        ("memtable_bytes = [1]", "memtable_bytes"),
        ("this is no TOML", "quire.toml"),
        ("\x00\xff", "quire.toml"),
    ],
)
def test_a_bad_configuration_file(tmp_path: Path, content: str, word: str) -> None:
    file = tmp_path / "quire.toml"
    file.write_bytes(content.encode("latin-1"))
    assert_refused(standalone(tmp_path / "data", "--config", str(file)), word)
    assert_refused(standalone(tmp_path / "data", "--config", str(tmp_path / "missing.toml")), "missing.toml")
    assert not (tmp_path / "data").exists()


# -- imports ---------------------------------------------------------------------------------------------

NEVER = {
    "boto3",
    "opentelemetry",
    "pyarrow",
    "numpy",
    "pyspark",
    "rich",
    "quire.client",
    "quire.spark_source.sidecar.worker",
}
NEVER |= {"argparse", "email", "importlib.metadata", "tomllib", "zipfile", "quire.wire.avro"}
HTTP = {"aiohttp", "attr", "yarl", "http.client", "urllib.request", "quire.runtime.rest"}
HTTP |= {"quire.serving.admin", "quire.runtime.probes"}
BROKER = {"quire.serving.broker", "quire.serving.session", "quire.serving.topic", "google.protobuf"}
ON_REQUEST = {"quire.wal.directory", "quire.security.authentication", "joserfc", "quire.ledger.bookie_client"}


def imported(script: str) -> set[str]:
    """The names of all modules that a fresh interpreter has after `script`."""
    script += "\nimport sys; print(*sys.modules)"
    ran = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    return set(ran.stdout.split())


def test_the_disks_are_opened_before_the_broker_is_imported() -> None:
    assert not imported("import quire.cli.standalone") & (NEVER | HTTP | BROKER | ON_REQUEST)


def test_messages_are_served_before_http_is_imported() -> None:
    found = imported("import quire.cli.standalone, quire.process.broker_parts")
    assert found >= BROKER
    assert not found & (NEVER | HTTP | {"quire.wal.directory", "joserfc"})


def test_http_that_cannot_be_imported_ends_the_process(tmp_path: Path) -> None:
    (tmp_path / "aiohttp.py").write_text("raise ImportError('half an installation')")
    command = [
        *QUIRE,
        "standalone",
        "--data",
        str(tmp_path / "data"),
        "--listen",
        "127.0.0.1:0",
        "--http",
        "127.0.0.1:0",
    ]
    ran = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    assert ran.stdout.startswith("ready ") and ran.returncode not in (0, 2)
    assert "half an installation" in ran.stderr


# -- help ------------------------------------------------------------------------------------------------


def test_help_imports_nothing_heavy() -> None:
    script = (
        "import sys; sys.argv = ['quire', '--help']\n"
        "from quire.cli.main import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "heavy = {'aiohttp', 'uvloop', 'numpy', 'asyncio', 'google.protobuf', 'boto3', 'rich', 'lmdb'}\n"
        "sys.exit(','.join(sorted(heavy & set(sys.modules))) or 0)\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=20, check=False
    )
    assert ran.returncode == 0, f"imported: {ran.stderr}"
    assert "standalone" in ran.stdout
