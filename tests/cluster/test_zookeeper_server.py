"""The ZooKeeper of our own: it starts, answers, hangs, dies and comes back on its port."""

from __future__ import annotations

from pathlib import Path

import pytest

from quire.runtime.errors import ConfigurationError, Unavailable
from quire.testing import zookeeper_server
from quire.testing.zookeeper_server import ZooKeeperServer, classpath, java
from tests.cluster.zookeeper import own_zookeeper


def test_it_comes_back_on_its_port(tmp_path: Path) -> None:
    with own_zookeeper(tmp_path) as server:
        url, pid = server.url, server.pid
        assert server.ask("ruok") == "imok"
        server.restart()
        assert (server.url, server.ask("ruok")) == (url, "imok")
        assert server.pid != pid


def test_a_taken_port_is_said_in_one_sentence(tmp_path: Path) -> None:
    with own_zookeeper(tmp_path) as server:
        other = ZooKeeperServer(tmp_path / "other", server.port)
        with pytest.raises(ConfigurationError, match="is in use; stop what listens there"):
            other.start()
        assert server.ask("ruok") == "imok"


def test_a_server_that_cannot_start_is_unavailable(tmp_path: Path) -> None:
    with own_zookeeper(tmp_path) as server:
        server.kill()
        (tmp_path / "zookeeper" / "data" / "version-2").rename(tmp_path / "aside")
        (tmp_path / "zookeeper" / "data" / "version-2").write_text("no directory")
        with pytest.raises(Unavailable, match=r"did not start on port \d+; see .*zookeeper.out"):
            server.start()


def test_without_java_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ConfigurationError, match="needs Java; install it"):
        java()


def test_without_pyspark_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zookeeper_server, "find_spec", lambda _: None)
    with pytest.raises(ConfigurationError, match=r"pip install .*\[spark\]"):
        classpath()
