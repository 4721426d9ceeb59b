"""`python -m tests.simulation`: run histories, print a timeline, make a failing one smaller, run under a mutation.

python -m tests.simulation --histories 10000 --first 0    many, two in three of ledgers, the others halved
python -m tests.simulation --seeds 0:2000                 so many of each kind
python -m tests.simulation --kind ledger --seed 17 --trace one history as a timeline
python -m tests.simulation --plan FILE --trace            one history from a plan, as `--seed` prints it
python -m tests.simulation --mutation NAME                seeds until the mistake is found
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from functools import partial
from pathlib import Path

import click

from .mutations import MUTATIONS
from .plan import Plan, draw
from .runner import HISTORIES, PROCESSES, Outcome, run, run_many
from .shrink import shrink

SHARES = {"ledger": 4, "cluster": 1, "wal": 1, "restored": 1}
"""Shares of the kinds of histories.

One cluster history takes as long as three ledger histories, which find more in that time. A WAL history takes a third
of a ledger history.
"""

TELL_S = 15.0


@click.command(help=__doc__)
@click.option("--kind", type=click.Choice([*HISTORIES, "all"]), default="all")
@click.option("--seed", type=int, help="One history.")
@click.option("--seeds", default="0:200", help="FIRST:BEHIND; of each kind.")
@click.option("--histories", type=int, help="So many altogether, each kind from --first on.")
@click.option("--first", default=0, help="The first seed of each kind, for runs that are divided.")
@click.option("--plan", type=click.Path(path_type=Path, exists=True), help="One history from a file.")
@click.option("--trace", is_flag=True, help="Print the timeline.")
@click.option("--no-shrink", is_flag=True, help="Leave a failing plan as it is.")
@click.option("--mutation", type=click.Choice(list(MUTATIONS)), default=None)
@click.option("--processes", default=PROCESSES)
def main(
    kind: str,
    seed: int | None,
    seeds: str,
    histories: int | None,
    first: int,
    plan: Path | None,
    trace: bool,
    no_shrink: bool,
    mutation: str | None,
    processes: int,
) -> None:
    if plan is not None or seed is not None:
        one = Plan.parse(plan.read_text()) if plan is not None else draw(seed or 0, _one_kind(kind))
        sys.exit(show(run(one, timeline=trace, mutation=mutation or "")))
    kinds = [*HISTORIES] if kind == "all" else [kind]
    begin, failed, told = time.monotonic(), 0, []
    for each, some in _division(kinds, seeds, histories, first).items():
        failed += sweep(each, some, processes, mutation or "", not no_shrink)
        told.append(f"{each} seeds {some.start} to {some.stop - 1}")
    seconds = time.monotonic() - begin
    click.echo(f"{_commit()}: {' and '.join(told)}, {failed} failed, in {seconds:.0f} s")
    sys.exit(bool(failed))


def _division(kinds: list[str], seeds: str, histories: int | None, first: int) -> dict[str, range]:
    """Return the seeds of each kind of history."""
    if histories is None:
        start, _, behind = seeds.partition(":")
        return {kind: range(int(start), int(behind)) for kind in kinds}
    whole = sum(SHARES[kind] for kind in kinds)
    return {kind: range(first, first + histories * SHARES[kind] // whole) for kind in kinds}


def _commit() -> str:
    """Return the checked-out commit, and whether the working tree differs from it."""
    command = ["git", "describe", "--always", "--dirty"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    return f"commit {answer.stdout.strip() or 'unknown'}"


def _one_kind(kind: str) -> str:
    return "ledger" if kind == "all" else kind


def show(outcome: Outcome) -> bool:
    """Print the outcome of one history. Return True if an invariant was violated."""
    for line in outcome.lines:
        click.echo(line)
    click.echo(outcome.plan)
    click.echo(outcome.detail or f"all invariants hold; trace {outcome.hash:08x}")
    return bool(outcome.rule)


def _breaks(rule: str, plan: Plan) -> bool:
    return run(plan).rule == rule


def sweep(kind: str, seeds: range, processes: int, mutation: str, shrinks: bool) -> int:
    """Run seeds, shrink and print failures, and return their number. Under a mutation, stop at the first failure."""
    begin, cpu_s, virtual_s = time.monotonic(), 0.0, 0.0
    seen: Counter[str] = Counter()
    failed: list[Outcome] = []
    told_at = begin
    for done, outcome in enumerate(run_many(kind, seeds, processes=processes, mutation=mutation)):
        if time.monotonic() > told_at + TELL_S:
            told_at = time.monotonic()
            click.echo(
                f"{kind}: {done} of {len(seeds)}, {len(failed)} failed, {told_at - begin:.0f} s", err=True
            )
        cpu_s += outcome.cpu_s
        virtual_s += outcome.seconds
        seen.update(outcome.seen)
        if outcome.rule:
            click.echo(f"{kind} seed {outcome.plan.seed}: {outcome.detail}")
            failed.append(outcome)
            if mutation:
                break
    for outcome in failed[:3] if shrinks and not mutation else ():
        rule = outcome.rule
        smaller = shrink(outcome.plan, partial(_breaks, rule))
        click.echo(f"{kind} seed {outcome.plan.seed} made smaller; {rule} breaks with\n{smaller}")
    click.echo(
        f"{kind}: {len(seeds)} seeds, {len(failed)} failed, {time.monotonic() - begin:.0f} s, {cpu_s:.0f} s of CPU, "
        f"{virtual_s:.0f} s of virtual time ({virtual_s / max(cpu_s, 0.001):.0f} times as fast)"
    )
    for what, count in sorted(seen.items()):
        click.echo(f"    {count:8}  {what}")
    return len(failed)


if __name__ == "__main__":
    main()
