"""`quire zookeeper`: runs one ZooKeeper server from PySpark's jars, for clusters without another ZooKeeper.

The command replaces its process by the Java process, so ZooKeeper receives the signals, such as SIGTERM. Installations
that must survive the loss of a machine run an ensemble of three servers from ZooKeeper's own distribution, and name it
with `--metadata zk://…`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from quire.cli.settings import settings_options
from quire.process.settings import SECURITY, Given
from quire.runtime.errors import ConfigurationError
from quire.runtime.settings import parse_address, setting
from quire.runtime.tls import read_pem
from quire.security.configuration import load as load_security
from quire.security.tls import files_inside
from quire.testing.zookeeper_server import JARS, TLS_JARS, ServerTls, write_config
from quire.testing.zookeeper_server import command as java_command


@dataclass(frozen=True)
class ZooKeeperSettings:
    """Settings of one ZooKeeper server."""

    data: str = setting("zookeeper", "Directory for the tree.")
    listen: str = setting("127.0.0.1:2181", "Address that brokers and bookies connect to.")
    listen_tls: str = setting(
        "", "Address for those that show a certificate of the authority in the security file; empty: none."
    )
    security: str = setting("", SECURITY)

    def validate(self) -> None:
        """Check the settings. Raises `ConfigurationError`."""
        if not self.data:
            raise ConfigurationError("data must be the path of a directory")
        if parse_address(self.listen)[1] == 0:
            raise ConfigurationError(
                "listen must have a fixed port, so that clients can reconnect after a restart"
            )
        if bool(self.listen_tls) != bool(self.security):
            raise ConfigurationError("listen_tls and a security file require each other")
        if self.listen_tls and parse_address(self.listen_tls)[1] == 0:
            raise ConfigurationError(
                "listen_tls must have a fixed port, so that clients can reconnect after a restart"
            )


@click.command("zookeeper")
@settings_options(ZooKeeperSettings)
def command(config: Path | None, **flags: Any) -> None:
    """Run one ZooKeeper server. It needs Java, and PySpark for its ZooKeeper jars.

    \b
    Example:
      quire zookeeper --data /var/lib/zookeeper --listen 0.0.0.0:2181
      quire zookeeper --security security.toml --listen-tls 0.0.0.0:2281
    """
    settings = Given(flags, config).load_all((ZooKeeperSettings,))[ZooKeeperSettings]
    directory = Path(settings.data).absolute()
    host, port = parse_address(settings.listen)
    tls = _tls(settings, directory)
    argv = java_command(write_config(directory, port, host, tls), JARS if tls is None else (*JARS, *TLS_JARS))
    os.chdir(directory)
    os.execv(argv[0], argv)


def _tls(settings: ZooKeeperSettings, directory: Path) -> ServerTls | None:
    """Return the configuration of the port with TLS, or None. Raises `ConfigurationError`.

    Writes the certificate and its key into one file, as ZooKeeper requires.
    """
    if not settings.listen_tls:
        return None
    files = files_inside(load_security(settings.security))
    if not files.authority or not files.certificate:
        raise ConfigurationError(
            f"the security file {settings.security} has no certificate, key and authority for processes: name them "
            "under [internal]"
        )
    both = directory / "tls.pem"
    directory.mkdir(parents=True, exist_ok=True)
    both.unlink(missing_ok=True)
    both.touch(0o600)
    both.write_text(read_pem(files.certificate, "the certificate") + read_pem(files.key, "the key"))
    host, port = parse_address(settings.listen_tls)
    return ServerTls(port, both, Path(files.authority), host)
