"""`quire`: finds its subcommands by name and imports only the one that is called.

A subcommand lives in `quire.cli.NAME` as the click command `command`, with `_` for `-`. So `quire --help` costs the
import of click and nothing else.
"""

from __future__ import annotations

import gc
import importlib
from difflib import get_close_matches

import click

import quire
from quire.cli.output import exit_with_one_sentence

SUBCOMMANDS = {
    "standalone": "Run everything in one process: broker, bookie, metadata, archive.",
    "broker": "Run one broker of a cluster.",
    "bookie": "Run one storage node of a cluster.",
    "gateway": "One address for clients that cannot reach brokers by name.",
    "zookeeper": "Run one ZooKeeper server, from PySpark's jars.",
    "local": "Run a cluster on this machine as processes that may be killed.",
    "brokers": "Who is there, who owns what and why; move a bundle.",
    "topics": "Create, list, look into and delete topics.",
    "subscriptions": "List, look into, create, move and delete subscriptions.",
    "schemas": "The schemas of topics and their versions.",
    "permissions": "Grant and revoke what roles may do, and see why.",
    "limits": "Bound what a namespace or a topic may have.",
    "login": "Remember where the brokers are, and which files have the credentials.",
    "tokens": "Make keys and the tokens that they sign, and try them.",
    "produce": "Publish lines from files or standard input.",
    "consume": "Print messages of a topic.",
    "check": "Publish while you kill what you like, and prove that nothing is lost.",
    "archive": "Move sealed segments to the archive, and verify it.",
    "spark": "Copy a topic's whole history into Parquet files, once.",
    "demo": "Publish, kill, recover, archive and read back with Spark: a tour, with a proof.",
    "certs": "An authority and certificates of your own, for TLS.",
    "doctor": "Say what is wrong with the machines, the processes and the cluster, and what to change.",
    "support-bundle": "Write one file with what helps to find out what is wrong; without secrets.",
    "config": "Show the effective settings and where each came from.",
    "bookies": "See the cluster's bookies, drain one, and follow repair.",
    "ledgers": "Recover a ledger by hand.",
    "rescue": "Rebuild a lost metadata store from bookies and archive.",
    "wal": "See and verify write-ahead logs on object storage.",
}


class _LazyGroup(click.Group):
    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            close = get_close_matches(args[0], SUBCOMMANDS, n=1)
            if not close:
                raise
            raise click.UsageError(f"{error.message} Did you mean '{close[0]}'?", ctx) from None

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(SUBCOMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in SUBCOMMANDS:
            return None
        command: click.Command = importlib.import_module(f"quire.cli.{cmd_name.replace('-', '_')}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(SUBCOMMANDS.items()))


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(quire.__version__, prog_name="quire")
def cli() -> None:
    """Quire: a pub-sub log with compute and storage apart. Stock Pulsar clients in, Spark out."""


def main() -> None:
    """The console script: errors become one sentence on standard error and an exit code."""
    # What is imported stays: looking through it again and again is a twentieth of a start.
    gc.set_threshold(100_000)
    with exit_with_one_sentence():
        cli(prog_name="quire", standalone_mode=False)
