"""ZooKeeper server as a child process, from the jars that PySpark contains.

`quire local` and the tests need a ZooKeeper server. Where Java and PySpark are installed, no download is necessary:
PySpark contains ZooKeeper's server and its dependencies. This is one server for one machine; for an ensemble of three,
use ZooKeeper's own distribution.

The directory keeps the tree between runs. After a stop or a kill, the server starts again on the same port with all
acknowledged changes. Sessions survive, too, if their clients reconnect in time.

`start` blocks its caller for about a third of a second.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from random import randrange
from typing import Final

from quire.runtime.errors import ConfigurationError, Unavailable
from quire.runtime.installation import pip_install

MAIN_CLASS: Final = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
JARS: Final = (
    "zookeeper-3*.jar",
    "zookeeper-jute-*.jar",
    "slf4j-api-*.jar",
    "metrics-core-*.jar",
    "snappy-java-*.jar",
    "netty-common-*.jar",
    "netty-buffer-*.jar",
    "netty-transport-4*.jar",
    "netty-resolver-*.jar",
    "netty-handler-4*.jar",
    "netty-codec-*.jar",
)
"""Jars that the server loads. PySpark's hundreds of other jars would only delay the start."""

TLS_JARS: Final = (
    "netty-transport-classes-epoll-*.jar",
    "netty-transport-native-unix-common-*.jar",
    "netty-tcnative-classes-*.jar",
)
"""Additional jars for ports with TLS."""

JAVA_OPTIONS: Final = (
    "-Xmx256m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Dzookeeper.preAllocSize=4096",  # KiB of log written ahead; the default of 64 MiB is for large servers
    "-Dzookeeper.globalOutstandingLimit=100000",  # else the server throttles a client that sends much at once
)
_FREE_PORTS: Final = (15_000, 32_000)
"""Range below the ephemeral ports, which systems assign to outgoing connections."""

TICK_MS: Final = 500
"""ZooKeeper's tick. The minimum session time-out is two ticks, and a session expires up to one tick late."""

START_TIMEOUT_S: Final = 60.0
POLL_INTERVAL_S: Final = 0.02


def classpath(patterns: Sequence[str] = JARS) -> str:
    """Return the class path of the server. Raises `ConfigurationError` if PySpark's jars are not installed."""
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise ConfigurationError(
            f"a ZooKeeper server of our own needs PySpark's jars: {pip_install('spark')}, or name a server with zk://…"
        )
    folder = Path(spec.origin).parent / "jars"
    jars = [str(jar) for pattern in patterns for jar in sorted(folder.glob(pattern))]
    if not any("/zookeeper-3" in jar for jar in jars):
        raise ConfigurationError(f"{folder} holds no ZooKeeper; name a server with zk://…")
    return os.pathsep.join(jars)


def java() -> str:
    """Return the Java command of `JAVA_HOME`, or else the first one on the PATH. Raises `ConfigurationError`."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which(f"{home}/bin/java" if home else "java")
    if found is None:
        raise ConfigurationError(
            "a ZooKeeper server of our own needs Java; install it, or name a server with zk://…"
        )
    return found


@dataclass(frozen=True)
class ServerTls:
    """Additional TLS port, for clients with a certificate of the authority. The paths are of PEM files."""

    port: int
    certificate_and_key: Path
    authority: Path
    host: str = "127.0.0.1"

    def lines(self) -> tuple[str, ...]:
        return (
            f"secureClientPort={self.port}",
            f"secureClientPortAddress={self.host}",
            "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory",
            f"ssl.keyStore.location={self.certificate_and_key}",
            "ssl.keyStore.type=PEM",
            f"ssl.trustStore.location={self.authority}",
            "ssl.trustStore.type=PEM",
        )


def write_config(directory: Path, port: int, host: str = "127.0.0.1", tls: ServerTls | None = None) -> Path:
    """Write the server's configuration file into `directory` and return its path."""
    data = directory / "data"
    data.mkdir(parents=True, exist_ok=True)
    lines = (
        f"dataDir={data}",
        f"clientPort={port}",
        f"clientPortAddress={host}",
        f"tickTime={TICK_MS}",
        "maxSessionTimeout=600000",
        "maxClientCnxns=0",
        "admin.enableServer=false",
        "autopurge.snapRetainCount=3",
        "autopurge.purgeInterval=1",
        "4lw.commands.whitelist=*",
        *(() if tls is None else tls.lines()),
    )
    config = directory / "zookeeper.cfg"
    config.write_text("".join(f"{line}\n" for line in lines))
    return config


def command(config: Path, jars: Sequence[str] = JARS) -> list[str]:
    """Build the command line that runs a server. Raises `ConfigurationError`."""
    return [java(), *JAVA_OPTIONS, "-cp", classpath(jars), MAIN_CLASS, str(config)]


def free_port() -> int:
    """Return a free port that the system will not assign to an outgoing connection before the server binds it."""
    while True:
        port = randrange(*_FREE_PORTS)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def assert_free(port: int) -> None:
    """Raise `ConfigurationError` if a process listens on `port`, because it could be mistaken for this server."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise ConfigurationError(
                f"port {port} for ZooKeeper is in use; stop what listens there or take another port"
            ) from error


class ZooKeeperServer:
    """Server on 127.0.0.1, whose tree (in `directory`) and port survive restarts. Port 0 means any free port."""

    def __init__(self, directory: Path, port: int = 0, tls: ServerTls | None = None) -> None:
        self._directory = directory
        self._port = port or free_port()
        self._tls = tls
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """URL for `open_store`: `zk://127.0.0.1:PORT`."""
        return f"zk://127.0.0.1:{self._port}"

    @property
    def port(self) -> int:
        return self._port

    @property
    def pid(self) -> int:
        assert self._process is not None, "not started"
        return self._process.pid

    def start(self) -> None:
        """Start the server and wait until it answers. Raises `ConfigurationError`, `Unavailable`."""
        assert self._process is None, "started already"
        assert_free(self._port)
        jars = JARS if self._tls is None else (*JARS, *TLS_JARS)
        arguments = command(write_config(self._directory, self._port, tls=self._tls), jars)
        with (self._directory / "zookeeper.out").open("ab") as output:
            self._process = subprocess.Popen(
                arguments, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=self._directory
            )
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise Unavailable(
                    f"ZooKeeper did not start on port {self._port}; see {self._directory}/zookeeper.out"
                )
            time.sleep(POLL_INTERVAL_S)

    def stop(self) -> None:
        """Stop the server with SIGTERM."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the server with SIGKILL, as in a crash."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Kill the server and start it again, with all acknowledged changes."""
        self.kill()
        self.start()

    def pause(self) -> None:
        """Suspend the process with SIGSTOP, so that the server hangs for its clients."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def ask(self, word: str) -> str:
        """Send one of ZooKeeper's four-letter words, and return the response. Raises `OSError`."""
        with socket.create_connection(("127.0.0.1", self._port), timeout=5.0) as connection:
            connection.sendall(word.encode())
            parts = iter(lambda: connection.recv(65536), b"")
            return b"".join(parts).decode()

    def _answers(self) -> bool:
        try:
            return "Mode: " in self.ask("srvr")  # `ruok` is answered before the tree is loaded
        except OSError:
            return False

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(signal.SIGCONT)  # a suspended process handles no SIGTERM
        process.send_signal(how)
        process.wait()
