"""The `quire` command, which finds its subcommands by name and imports only the subcommand that is run.

A subcommand is the click command `command` in the module `quire.cli.NAME`, with `_` for `-`. So `quire --help` imports
only click.
"""

from __future__ import annotations

import gc
import importlib

import click

import quire
from quire.cli import profile
from quire.cli.output import exit_with_one_sentence

SUBCOMMANDS = {
    "standalone": "Run a broker, a bookie, the metadata store and the archive in one process.",
    "broker": "Run one broker of a cluster.",
    "bookie": "Run one storage node of a cluster.",
    "gateway": "Run a proxy for clients that cannot reach brokers by name.",
    "zookeeper": "Run one ZooKeeper server, from PySpark's jars.",
    "local": "Run a cluster on this machine, each server as a process.",
    "brokers": "Show brokers and the owner of each bundle; unload or split a bundle.",
    "tenants": "List, show, create, change and delete tenants.",
    "namespaces": "List, show, create and delete namespaces; unload them, clear their backlogs.",
    "policies": "Explain, show, set and remove policies of namespaces and topics.",
    "topics": "Create, list, show and delete topics.",
    "subscriptions": "List, show, create, move and delete subscriptions.",
    "schemas": "List, add and delete schemas of topics.",
    "permissions": "Grant, revoke and explain permissions of roles.",
    "limits": "Limit the resources of a namespace or topic.",
    "login": "Store the brokers' addresses and the paths of credential files.",
    "contexts": "List the contexts that `quire login` stored, choose the current one, or remove one.",
    "tokens": "Create keys, sign tokens with them, and validate tokens.",
    "produce": "Publish lines from files or standard input.",
    "consume": "Print messages of a topic.",
    "check": "Publish while processes are killed, and check that no acknowledged message is lost.",
    "bench": "Measure rates and latencies of a server.",
    "archive": "Archive sealed segments now; verify and repair the archive.",
    "spark": "Run jobs over the whole history of a topic, such as a copy to Parquet files.",
    "demo": "Publish and consume real data, kill the server, archive, and read back with Spark.",
    "certs": "Create a certificate authority and sign certificates, for TLS.",
    "doctor": "Check the machines, processes and the cluster, and suggest fixes.",
    "support-bundle": "Write a file with the cluster's state for troubleshooting, without secrets.",
    "config": "Show the effective settings and the source of each.",
    "bookies": "List the cluster's bookies, drain or recover one, and follow repair.",
    "ledgers": "List lost entries, and recover a ledger manually.",
    "rescue": "Rebuild a lost metadata store from bookies and archive.",
    "wal": "List and verify write-ahead logs on object storage.",
    "stores": "List the object stores of a cluster, and adopt another one.",
    "version": "Print the version of this command.",
    "help": "Print the help of a command.",
}

ON_STORES = ("rescue", "wal", "stores")
"""Commands without settings or a broker that take the addresses of stores from the environment."""


class _LazyGroup(click.Group):
    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            from difflib import get_close_matches

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
@profile.context_option
@click.pass_context
def cli(context: click.Context) -> None:
    """Run and administer Quire, a pub-sub system with separate compute and storage, for Pulsar clients and Spark.

    \b
    Examples:
      quire standalone
      quire topics --help
      quire --context prod topics list
    """
    if context.invoked_subcommand in ON_STORES:
        from quire.cli.variables import refuse_unknown_variables

        refuse_unknown_variables()


def main() -> None:
    """Run the console script; errors are printed as one sentence on standard error, with an exit code."""
    # Imported objects are never garbage; examining them repeatedly would take 5 % of the start-up time.
    gc.set_threshold(100_000)
    with exit_with_one_sentence():
        cli(prog_name="quire", standalone_mode=False)
