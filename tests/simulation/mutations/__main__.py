"""`python -m tests.simulation.mutations`: a table of how many seeds each mistake takes, and what finds it.

python -m tests.simulation.mutations                     all of them, 2,000 seeds at most
python -m tests.simulation.mutations NAME NAME --seeds 100:200
python -m tests.simulation.mutations --pin NAME          look for a small plan and write it down
"""

from __future__ import annotations

import sys

import click

from tests.simulation.runner import PROCESSES

from . import MUTATIONS
from .pinned import pin
from .search import Search, search_all


def row(found: Search) -> str:
    known = MUTATIONS[found.mutation]
    seeds = str(found.seeds) if found.rule else f"> {found.seeds}"
    return f"{known.name:62} {known.rule:10} {known.kind:8} {seeds:>7}  {found.rule or 'NOT FOUND'}"


@click.command(help=__doc__)
@click.argument("names", nargs=-1)
@click.option("--seeds", default="0:2000", help="FIRST:BEHIND; of the kind that is to find it.")
@click.option("--processes", default=PROCESSES)
@click.option("--detail", is_flag=True, help="Print what was found, in its own words.")
@click.option("--pin", "pins", is_flag=True, help="Write a plan for each.")
def main(names: tuple[str, ...], seeds: str, processes: int, detail: bool, pins: bool) -> None:
    unknown = set(names) - MUTATIONS.keys()
    if unknown:
        raise click.UsageError(f"no such mutation: {', '.join(sorted(unknown))}")
    first, _, behind = seeds.partition(":")
    if pins:
        for name in names or MUTATIONS:
            click.echo(f"{name}: {pin(name, range(int(first), int(behind)))}")
        return
    click.echo(f"{'mutation':62} {'rule':10} {'kind':8} {'seeds':>7}  found by")
    missed = 0
    for found in search_all(names or list(MUTATIONS), range(int(first), int(behind)), processes):
        click.echo(row(found) + (f"    {found.detail} ({found.cpu_s:.0f} s)" if detail else ""))
        missed += not found.rule
    sys.exit(bool(missed))


if __name__ == "__main__":
    main()
