"""`quire broker`: runs one broker of a cluster until SIGTERM or SIGINT.

When ready, it prints this line for programs to standard output: `ready pulsar://HOST:PORT http://HOST:PORT`. The line
contains the addresses that clients connect to, first those without TLS, then those with TLS.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from quire.cli.settings import settings_options
from quire.process import broker
from quire.process.settings import Given
from quire.process.until_signal import ready, run_process


@click.command("broker")
@settings_options(*broker.KINDS, defaults=broker.DEFAULTS)
def command(config: Path | None, **flags: Any) -> None:
    """Run one broker of a cluster.

    Messages are stored by bookies, or with --wal in an object store.

    Stop it with SIGTERM: its topics move to other brokers within moments. Killing it loses no messages, but
    its topics are served again only after its session has expired.

    \b
    Example:
      quire broker --metadata zk://zookeeper:2181/quire --archive s3://bucket/prefix \\
                   --listen 0.0.0.0:6650 --advertise pulsar://broker-1:6650 --http 0.0.0.0:8080
      quire broker --metadata zk://zookeeper:2181/quire --wal s3://bucket/prefix --archive s3://bucket/prefix \\
                   --new-cluster true
    """
    settings = broker.load(Given(flags, config))
    run_process(settings, broker.broker(settings), lambda running: ready(*running.addresses.all))
