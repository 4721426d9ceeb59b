"""`quire stores`: adopting an object store, and what a store with a typing error in its URL gets."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos.server import Server

QUIRE = [sys.executable, "-m", "quire"]


def quire(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*QUIRE, *words], capture_output=True, text=True, timeout=60, check=False)


async def test_an_archive_with_a_typing_error_is_refused_until_it_is_adopted(tmp_path: Path) -> None:
    server = Server(tmp_path)
    await server.start()
    assert await server.stop() == 0
    metadata, typo = f"sqlite://{server.data}/metadata.db", f"file://{tmp_path}/acrhive"
    ports = ("--listen", "127.0.0.1:0", "--http", "127.0.0.1:0")
    refused = quire("standalone", "--data", str(server.data), *ports, "--archive", typo)
    assert refused.returncode == 2
    assert "has never used" in refused.stderr
    assert "quire stores adopt archive" in refused.stderr

    listed = json.loads(quire("stores", "list", "--metadata", metadata, "--json").stdout)
    [archive] = listed["stores"]
    assert archive == {
        "role": "archive",
        "store": f"file://{server.data}/archive",
        "marker": listed["cluster"],
    }
    adopted = quire("stores", "adopt", "archive", typo, "--metadata", metadata)
    assert adopted.returncode == 0, adopted.stderr
    server.settings["archive"] = typo
    await server.start()
    assert await server.stop() == 0


async def test_a_store_of_another_cluster_cannot_be_adopted(tmp_path: Path) -> None:
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        server = Server(tmp_path / name)
        await server.start()
        assert await server.stop() == 0
    metadata = f"sqlite://{server.data}/metadata.db"
    theirs = f"file://{tmp_path / 'one' / server.data.name}/archive"
    refused = quire("stores", "adopt", "archive", theirs, "--metadata", metadata)
    assert refused.returncode == 2
    assert "belongs to cluster" in refused.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("stores", "list"),
        ("stores", "adopt", "archive", "file://{at}/archive"),
        ("wal", "scrub", "--wal", "file://{at}/bucket"),
        ("rescue", "accept-older", "--archive", "file://{at}/archive"),
        ("doctor",),
    ],
    ids=lambda words: words[0],
)
def test_a_typing_error_in_the_metadata_file_creates_no_file(tmp_path: Path, words: tuple[str, ...]) -> None:
    ran = quire(
        *(word.format(at=tmp_path) for word in words), "--metadata", f"sqlite://{tmp_path}/data/typo.db"
    )
    assert ran.returncode != 0
    assert "typo.db does not exist: correct the metadata URL" in ran.stderr + ran.stdout
    assert not (tmp_path / "data").exists()


def test_a_restored_copy_with_a_typing_error_is_not_created(tmp_path: Path) -> None:
    ran = quire(
        *("rescue", "metadata", "--metadata", f"sqlite://{tmp_path}/new.db"),
        *("--copy", f"sqlite://{tmp_path}/typo.db"),
    )
    assert ran.returncode == 2
    assert "typo.db does not exist: correct the metadata URL" in ran.stderr
    assert not (tmp_path / "typo.db").exists()
