"""`python -m tests.simulation`: run histories, print a timeline, make a failing one smaller, run under a mutation.

python -m tests.simulation --seeds 0:2000                 many histories of both kinds
python -m tests.simulation --kind ledger --seed 17 --trace one history as a timeline
python -m tests.simulation --plan FILE --trace            one history from a plan, as `--seed` prints it
python -m tests.simulation --mutation NAME                seeds until the mistake is found
"""

from __future__ import annotations

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


@click.command(help=__doc__)
@click.option("--kind", type=click.Choice([*HISTORIES, "both"]), default="both")
@click.option("--seed", type=int, help="One history.")
@click.option("--seeds", default="0:200", help="FIRST:BEHIND; of each kind.")
@click.option("--plan", type=click.Path(path_type=Path, exists=True), help="One history from a file.")
@click.option("--trace", is_flag=True, help="Print the timeline.")
@click.option("--no-shrink", is_flag=True, help="Leave a failing plan as it is.")
@click.option("--mutation", type=click.Choice(list(MUTATIONS)), default=None)
@click.option("--processes", default=PROCESSES)
def main(
    kind: str,
    seed: int | None,
    seeds: str,
    plan: Path | None,
    trace: bool,
    no_shrink: bool,
    mutation: str | None,
    processes: int,
) -> None:
    if plan is not None or seed is not None:
        one = Plan.parse(plan.read_text()) if plan is not None else draw(seed or 0, _one_kind(kind))
        sys.exit(show(run(one, timeline=trace, mutation=mutation or "")))
    first, _, behind = seeds.partition(":")
    failed = 0
    for each in HISTORIES if kind == "both" else [kind]:
        failed += sweep(each, range(int(first), int(behind)), processes, mutation or "", not no_shrink)
    sys.exit(bool(failed))


def _one_kind(kind: str) -> str:
    return "ledger" if kind == "both" else kind


def show(outcome: Outcome) -> bool:
    """Print one history; True when an invariant broke."""
    for line in outcome.lines:
        click.echo(line)
    click.echo(outcome.plan)
    click.echo(outcome.detail or f"all invariants hold; trace {outcome.hash:08x}")
    return bool(outcome.rule)


def _breaks(rule: str, plan: Plan) -> bool:
    return run(plan).rule == rule


def sweep(kind: str, seeds: range, processes: int, mutation: str, shrinks: bool) -> int:
    """Run seeds; print what failed, smaller. Answers how many failed. Under a mutation the first one is enough."""
    begin, cpu_s, virtual_s = time.monotonic(), 0.0, 0.0
    seen: Counter[str] = Counter()
    failed: list[Outcome] = []
    for outcome in run_many(kind, seeds, processes=processes, mutation=mutation):
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
