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

from quire.cli.settings import Given, check_file, settings_options
from quire.runtime.errors import ConfigurationError
from quire.runtime.settings import parse_address, setting
from quire.testing.zookeeper_server import command as java_command
from quire.testing.zookeeper_server import write_config


@dataclass(frozen=True)
class ZooKeeperSettings:
    """One server of its own."""

    data: str = setting("zookeeper", "Directory for the tree.")
    listen: str = setting("127.0.0.1:2181", "Address that brokers and bookies connect to.")

    def validate(self) -> None:
        """Raises `ConfigurationError`."""
        if not self.data:
            raise ConfigurationError("data must name a directory")
        if parse_address(self.listen)[1] == 0:
            raise ConfigurationError("listen must name a port, for clients have to find it again")


@click.command("zookeeper")
@settings_options(ZooKeeperSettings)
def command(config: Path | None, **flags: Any) -> None:
    """Run one ZooKeeper server. Needs Java and PySpark, whose jars it is made of.

    \b
    Example:
      quire zookeeper --data /var/lib/zookeeper --listen 0.0.0.0:2181
    """
    check_file(config, ZooKeeperSettings)
    settings = Given(flags, config).load(ZooKeeperSettings).values
    directory = Path(settings.data).absolute()
    host, port = parse_address(settings.listen)
    argv = java_command(write_config(directory, port, host))
    os.chdir(directory)
    os.execv(argv[0], argv)
