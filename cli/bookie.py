"""`quire bookie`: runs one storage node of a cluster until SIGTERM or SIGINT.

When ready, it prints this line for programs to standard output: `ready bookie://HOST:PORT`, followed by the HTTP
address if HTTP is enabled.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from quire.cli.settings import settings_options
from quire.process import bookie
from quire.process.settings import Given
from quire.process.until_signal import run_process, say_ready, told_to_stop, until_cancelled


@click.command("bookie")
@settings_options(*bookie.KINDS)
def command(config: Path | None, **flags: Any) -> None:
    """Run one storage node of a cluster.

    Stop it with SIGTERM; killing it loses nothing either. To be rid of it for good, drain it first with
    `quire bookies decommission`. The first bookies of a cluster begin it with `--new-cluster true`.

    \b
    Example:
      quire bookie --journal /disk1/journal --entry-log /disk2/entries --new-cluster true \\
                   --metadata zk://zookeeper:2181/quire --listen 0.0.0.0:3181 --advertise bookie-1:3181
    """
    settings = Given(flags, config).load_all(bookie.KINDS)
    drain_ms = settings[bookie.BookieProcessSettings].drain_on_stop_ms

    async def serve(running: bookie.Bookie) -> None:
        say_ready(f"bookie://{running.address}", running.http_url)
        if drain_ms:
            await told_to_stop()
            await running.drain.run(drain_ms / 1000)
        else:
            await until_cancelled()

    run_process(settings, bookie.bookie(settings), serve)
