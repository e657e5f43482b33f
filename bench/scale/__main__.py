"""`python -m bench.scale`: the model alone, on costs that were kept, for an installation of one's own."""

from __future__ import annotations

import argparse
from pathlib import Path

from bench.figures import number
from bench.scale import model, report
from bench.scale.costs import kept, measure
from bench.scale.installation import Installation
from bench.scale.plan import REMEDIES
from bench.scale.remedies import stages
from bench.sizes import Scale


def main() -> None:
    options = _options()
    if options.measure:
        kept.save(options.costs, measure.measured(Scale(options.quick)))
    units = model.values(kept.load(options.costs))
    one = Installation(
        gateways=options.gateways,
        working=min(options.working or options.gateways, options.gateways),
        agents=options.agents,
        tasks_per_hour=options.tasks,
        watched=options.watched,
        tenants=options.tenants,
    )
    if options.markdown:
        print(report.page(one, units), end="")
        return
    for part in model.parts(one, units):
        print(f"{number(100 * part.utilisation):>8} %  {part.name}")
        for cause, share in model.shares(part):
            if share >= 0.005 and len(part.loads) > 1:
                print(f"{number(100 * share):>12} %  {cause}")
    for stage in stages(one, units, REMEDIES):
        carries = f"{stage.limit:.2f} times as much, or {number(stage.tasks_per_hour)} tasks an hour"
        print(f"\n{stage.remedy.name if stage.remedy else 'as it is'}: carries {carries}")
        print(f"  fullest: {stage.first.name}, {stage.first.heaviest.cause}")


def _options() -> argparse.Namespace:
    target = report.TARGET
    parser = argparse.ArgumentParser(prog="python -m bench.scale", description="Which part gives out first.")
    parser.add_argument("--gateways", type=int, default=target.gateways, help="processes on the database")
    parser.add_argument("--working", type=int, help="those with the role worker; all of them when it is left out")
    parser.add_argument("--agents", type=int, default=target.agents)
    parser.add_argument("--tasks", type=float, default=target.tasks_per_hour, help="tasks an hour")
    parser.add_argument(
        "--watched", type=float, default=target.watched, help="share of the tasks that somebody follows"
    )
    parser.add_argument("--tenants", type=int, default=target.tenants)
    parser.add_argument("--markdown", action="store_true", help="the tables of docs/scale.md")
    parser.add_argument("--costs", type=Path, default=kept.KEPT, help="file with the measured costs")
    parser.add_argument("--measure", action="store_true", help="measure them first, and write that file")
    parser.add_argument("--quick", action="store_true", help="with --measure: small sizes")
    return parser.parse_args()


if __name__ == "__main__":
    main()
