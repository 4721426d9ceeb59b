"""`quire zookeeper`: one ZooKeeper server from PySpark's jars, for clusters that have none.

The process becomes Java's: what is sent to it, SIGTERM or SIGKILL, ZooKeeper gets. Installations that must survive
the loss of a machine run an ensemble of three of ZooKeeper's own distribution and name it with `--metadata zk://…`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from quire.cli.settings import SECURITY, Given, check_file, settings_options
from quire.runtime.errors import ConfigurationError
from quire.runtime.settings import parse_address, setting
from quire.runtime.tls import read_pem
from quire.security.configuration import load as load_security
from quire.security.tls import files_inside
from quire.testing.zookeeper_server import JARS, TLS_JARS, ServerTls, write_config
from quire.testing.zookeeper_server import command as java_command


@dataclass(frozen=True)
class ZooKeeperSettings:
    """One server of its own."""

    data: str = setting("zookeeper", "Directory for the tree.")
    listen: str = setting("127.0.0.1:2181", "Address that brokers and bookies connect to.")
    listen_tls: str = setting(
        "", "Address for those that show a certificate of the authority in the security file; empty: none."
    )
    security: str = setting("", SECURITY)

    def validate(self) -> None:
        """Raises `ConfigurationError`."""
        if not self.data:
            raise ConfigurationError("data must name a directory")
        if parse_address(self.listen)[1] == 0:
            raise ConfigurationError("listen must name a port, for clients have to find it again")
        if bool(self.listen_tls) != bool(self.security):
            raise ConfigurationError("listen_tls needs a security file, and the security file listen_tls")
        if self.listen_tls and parse_address(self.listen_tls)[1] == 0:
            raise ConfigurationError("listen_tls must name a port, for clients have to find it again")


@click.command("zookeeper")
@settings_options(ZooKeeperSettings)
def command(config: Path | None, **flags: Any) -> None:
    """Run one ZooKeeper server. Needs Java and PySpark, whose jars it is made of.

    \b
    Example:
      quire zookeeper --data /var/lib/zookeeper --listen 0.0.0.0:2181
      quire zookeeper --security security.toml --listen-tls 0.0.0.0:2281
    """
    check_file(config, ZooKeeperSettings)
    settings = Given(flags, config).load(ZooKeeperSettings).values
    directory = Path(settings.data).absolute()
    host, port = parse_address(settings.listen)
    tls = _tls(settings, directory)
    argv = java_command(write_config(directory, port, host, tls), JARS if tls is None else (*JARS, *TLS_JARS))
    os.chdir(directory)
    os.execv(argv[0], argv)


def _tls(settings: ZooKeeperSettings, directory: Path) -> ServerTls | None:
    """The port with TLS. ZooKeeper wants certificate and key in one file. Raises `ConfigurationError`."""
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
