"""`quire bookie` and `quire standalone` by themselves: directories that are refused, and a disk that is full."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from quire.bookie.identity import COOKIE, LAYOUT
from quire.runtime.tls import ClientTls
from quire.security.certs import Authority

from .running import standalone

SMALL = (
    *("--journal-segment-bytes", "16MiB", "--journal-group-bytes-max", "8MiB"),
    *("--memtable-bytes", "16MiB", "--entry-log-bytes", "32MiB", "--disk-reserve-bytes", "1MiB"),
)


def words(root: Path, name: str, *flags: str) -> list[str]:
    """A bookie of the cluster in `root`, whose metadata is a file."""
    folder = root / name
    return [
        *(sys.executable, "-m", "quire", "bookie", "--metadata", f"sqlite://{root}/metadata.db"),
        *("--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--new-cluster", "true"),
        *("--journal", str(folder / "journal"), "--entry-log", str(folder / "entries"), *SMALL, *flags),
    ]


@contextmanager
def bookie(root: Path, name: str, *flags: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A running one and its HTTP address."""
    process = subprocess.Popen(
        words(root, name, *flags), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None and process.stderr is not None
        said = process.stdout.readline().split()
        assert said[:1] == ["ready"], process.stderr.read()
        yield process, said[2]
    finally:
        process.kill()
        process.communicate()


def refused(root: Path, name: str, *flags: str) -> str:
    """The one sentence that a bookie says instead of starting."""
    done = subprocess.run(words(root, name, *flags), capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    return done.stderr.splitlines()[-1].removeprefix("quire: ")


def get(url: str) -> tuple[int, Any]:
    try:
        with urlopen(url, timeout=10) as answer:
            return answer.status, json.load(answer)
    except HTTPError as error:
        return error.code, json.load(error)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directories of two bookies that were stopped; tests copy them."""
    root = tmp_path_factory.mktemp("cluster")
    for name in ("a", "b"):
        with bookie(root, name) as (process, _):
            process.terminate()
            assert process.wait(30) == 0
    return root


@pytest.fixture
def root(cluster: Path, tmp_path: Path) -> Path:
    shutil.copytree(cluster, tmp_path / "cluster")
    return tmp_path / "cluster"


def test_directories_of_two_bookies_are_refused(root: Path) -> None:
    shutil.rmtree(root / "a" / "entries")
    shutil.copytree(root / "b" / "entries", root / "a" / "entries")
    sentence = refused(root, "a")
    assert f"{root}/a/journal belongs to bookie" in sentence
    assert sentence.endswith("give each bookie its own two directories")


def test_a_newer_layout_is_refused(root: Path) -> None:
    cookie = root / "a" / "entries" / COOKIE
    cookie.write_text(cookie.read_text().replace(f'"layout": {LAYOUT}', f'"layout": {LAYOUT + 1}'))
    assert refused(root, "a") == (
        f"{root}/a/entries was written by a newer Quire (layout {LAYOUT + 1}, "
        f"this version supports {LAYOUT}); start the newer version"
    )


def test_a_wrong_store_is_refused_whether_it_is_empty_or_another_clusters(root: Path) -> None:
    (root / "metadata.db").unlink()
    nothing = f"there is no cluster at sqlite://{root}/metadata.db: use the same address and chroot as"
    assert refused(root, "a").startswith(nothing), "it belongs to a cluster, so it begins none"
    assert refused(root, "new", "--new-cluster", "false").startswith(nothing)
    with bookie(root, "new"):
        pass
    sentence = refused(root, "a")
    assert "belongs to cluster" in sentence
    assert sentence.endswith("correct the address and chroot, or start with empty directories")


def test_sigint_stops_at_once_whatever_sigterm_does(root: Path) -> None:
    with bookie(root, "a", "--drain-on-stop-ms", "1min") as (process, _):
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
        assert process.stderr is not None and "waiting until other bookies" not in process.stderr.read()


def test_a_full_disk_of_a_bookie_shows_in_its_health(root: Path) -> None:
    with bookie(root, "a") as (_, http):
        assert get(f"{http}/health/ready") == (200, {"ready": True, "reasons": []})
        with urlopen(f"{http}/metrics") as answer:
            counts = [
                line for line in answer.read().decode().splitlines() if line.startswith("quire_metadata_")
            ]
        assert any(
            line.startswith("quire_metadata_changes_total") and float(line.split()[1]) > 0 for line in counts
        )
    with bookie(root, "b", "--disk-reserve-bytes", "900TiB") as (_, http):
        code, health = get(f"{http}/health/ready")
        assert (code, health["ready"]) == (503, False)
        assert health["reasons"] == [
            f"the disk of {root}/b/entries is full and accepts no new messages; delete topics or free some space"
        ]
        assert get(f"{http}/health/live")[0] == 200


def test_a_full_disk_of_a_standalone_shows_in_its_health(tmp_path: Path) -> None:
    with standalone(tmp_path, "--disk-reserve-bytes", "900TiB") as server:
        code, health = get(f"{server.http_url}/health/ready")
        assert (
            code == 503
            and "is full and accepts no new messages; delete topics or free some space"
            in health["reasons"][0]
        )


# -- with a security file ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certs")
    Authority.make(folder).sign_process("node", ["127.0.0.1"], 1)
    (folder / "secret.key").write_bytes(b"k" * 32)
    (folder / "tokens.toml").write_text('[authentication.token]\nsecret_key = "secret.key"\n')
    tls = '[tls]\ncertificate = "node.pem"\nkey = "node-key.pem"\nauthority = "authority.pem"\n'
    (folder / "both.toml").write_text(tls)
    (folder / "closed.toml").write_text(f"{tls}plain = false\n[internal]\nrequired = true\n")
    return folder


def test_a_bookie_with_tokens_alone_is_not_open_to_its_network(tmp_path: Path, certs: Path) -> None:
    security = ("--security", str(certs / "tokens.toml"))
    everywhere = ("--listen", "0.0.0.0:0", "--advertise", "127.0.0.1:3181")
    sentence = refused(tmp_path, "a", *security, *everywhere)
    assert "any client that reaches 0.0.0.0:0 could read and write" in sentence and "[internal]" in sentence
    assert not (tmp_path / "a").exists()
    with bookie(tmp_path, "a", *security) as (_, http):
        assert get(f"{http}/health/ready")[0] == 200, "loopback is its own machine's"


def test_a_bookie_that_takes_plain_connections_as_well_says_so(tmp_path: Path, certs: Path) -> None:
    flags = ("--security", str(certs / "both.toml"), "--listen", "0.0.0.0:0", "--advertise", "127.0.0.1:3181")
    with bookie(tmp_path, "a", *flags) as (process, http):
        assert http.startswith("http://") and get(f"{http}/health/ready")[0] == 200
        process.terminate()
        assert process.stderr is not None
        assert "takes connections without TLS as well" in process.stderr.read()


def test_a_bookies_http_port_is_by_tls_where_plain_ports_are_closed(tmp_path: Path, certs: Path) -> None:
    flags = (
        "--security",
        str(certs / "closed.toml"),
        "--listen",
        "0.0.0.0:0",
        "--advertise",
        "127.0.0.1:3181",
    )
    trusted = ClientTls(str(certs / "authority.pem")).context()
    with bookie(tmp_path, "a", *flags) as (process, https):
        assert https.startswith("https://127.0.0.1:")
        for path, word in (("/health/ready", b"true"), ("/metrics", b"quire_bookie_")):
            with urlopen(f"{https}{path}", timeout=10, context=trusted) as answer:
                assert word in answer.read()
        with pytest.raises((OSError, HTTPException)):
            urlopen(https.replace("https://", "http://") + "/health", timeout=10)
        process.terminate()
        assert process.wait(30) == 0
