"""The figures and the text of the bench: costs, how full each part is, what gives out, and what follows."""

from __future__ import annotations

from collections.abc import Iterator

from bench.figures import Figure, at_least, number
from bench.scale import model
from bench.scale.costs.kept import Costs
from bench.scale.installation import HOUR, Installation
from bench.scale.model import Part, Units
from bench.scale.plan import REMEDIES, TODAY
from bench.scale.remedies import Stage, stages
from bench.scale.simulate import Answer, Simulation, Times, Traffic

TARGET = Installation()
"""1,000 gateways, 100,000 agents, 1,000,000 tasks an hour; every process does everything."""
MACHINE = TARGET.machine
SECONDS, BURST = 120.0, 5.0
TRIPS = 13
"""Round trips of each of a task's three transactions, on average."""
HINT_SECONDS, WORK_SECONDS = model.FLUSH_SECONDS, 2.0


def figures(costs: Costs, seconds: float = SECONDS) -> list[Figure]:
    units = model.values(costs)
    after = list(stages(TARGET, units, REMEDIES))
    found = [Figure(name.replace("_", " "), c.value, c.unit, c.method) for name, c in costs.items()]
    found += [*_checked(units)]
    for title, stage in (("as it is", after[0]), ("set up for it", after[TODAY])):
        found += [_part(title, part) for part in model.parts(stage.installation, units)]
    found += [_stage(stage) for stage in after]
    enough = next((stage for stage in after if stage.limit >= 1), after[-1])
    found += _simulated("as soon as it carries the target", enough, units, seconds)
    return [*found, *_simulated("after all remedies", after[-1], units, seconds)]


def _checked(units: Units) -> Iterator[Figure]:
    """What the model says of the small installation that was measured as a whole."""
    small = Installation(3, 3, 3, units["check_rate"] * HOUR, peak=1.0, watched=0.0, exclusive=0.0)
    how = f"three processes at {number(units['check_rate'])} tasks a second, the model's CPU by the measured one"
    for name, measured in (("CPU of PostgreSQL", "check_pg_cpu"), ("CPU of a process", "check_process_cpu")):
        yield Figure(f"check: {name}", model.named(small, units, name).demand / units[measured], "×", how)


def _part(title: str, part: Part) -> Figure:
    causes = "; ".join(
        f"{cause} {100 * share:.0f} %" for cause, share in list(model.shares(part))[:3] if share >= 0.005
    )
    how = f"{number(part.demand)} of {number(part.capacity)} {part.unit}" + (f": {causes}" if causes else "")
    return Figure(f"{title}: {part.name}", 100 * part.utilisation, "% full", how)


def _stage(stage: Stage) -> Figure:
    name, kind = (stage.remedy.name, f"{stage.remedy.kind}; ") if stage.remedy else ("as it is", "")
    how = f"{kind}with all before it; fullest is then: {stage.first.name} ({stage.first.heaviest.cause})"
    return Figure(f"carries: {name}", stage.limit, "times the target", how, at_least(1))


def simulation(installation: Installation, units: Units, seconds: float) -> Answer | None:
    """Of one database; None when the background work alone leaves the server nothing."""
    one = installation.part
    server = model.named(installation, units, "CPU of PostgreSQL")
    own = one.rate * model.task_cpu(one, units)
    left = 1 - (server.demand - own) / server.capacity
    if left <= 0 or own >= left * server.capacity:
        return None
    traffic = Traffic(one.tasks_per_hour / HOUR, seconds, one.peak, BURST)
    return Simulation(traffic, _times(one, units, left), one.gateways, int(server.capacity)).run()


def _times(one: Installation, units: Units, left: float) -> Times:
    """The three transactions of a task share its CPU by their statements: about 9, 8 and 16 of them."""
    cpu = model.task_cpu(one, units)
    flush = MACHINE.flush + TRIPS * MACHINE.round_trip
    shares = (cpu * 0.27, cpu * 0.24, cpu * 0.49)
    return Times(shares, units["task_process_cpu"] / 3, flush, HINT_SECONDS, WORK_SECONDS, left)


def _simulated(title: str, stage: Stage, units: Units, seconds: float) -> Iterator[Figure]:
    answer = simulation(stage.installation, units, seconds)
    if answer is None:
        return
    came = f"{len(answer.submits):,} tasks of one database in {seconds:.0f} s"
    how = f"{came}, rising to the peak and falling, in bursts of {BURST:.0f}; work of {WORK_SECONDS:.0f} s"
    for name, value in answer.figures().items():
        yield Figure(f"simulated, {title}: {name}", 1000 * value, "ms", how)


def page(one: Installation, units: Units) -> str:
    """The two tables of docs/scale.md: how full each part is, and what each remedy brings."""
    full: list[tuple[str, ...]] = [
        ("part", "as it is", "after all remedies", "what it is mostly"),
        ("---", "---:", "---:", "---"),
    ]
    after = list(stages(one, units, REMEDIES))
    later = {part.name: part for part in model.parts(after[-1].installation, units)}
    for part in model.parts(one, units):
        cause = part.heaviest.cause if len(part.loads) > 1 else ""
        full.append((part.name, _percent(part.utilisation), _percent(later[part.name].utilisation), cause))
    steps: list[tuple[str, ...]] = [
        ("with", "who", "relieves", "then fullest", "carries", "tasks an hour, same processes")
    ]
    steps.append(("---", "---", "---", "---", "---:", "---:"))
    steps += [_step(stage) for stage in after]
    return f"{_table(full)}\n\n{_table(steps)}\n"


def _step(stage: Stage) -> tuple[str, ...]:
    fullest = f"{stage.first.name}, {_percent(stage.first.utilisation)}"
    remedy, (before, after) = stage.remedy, stage.relieved
    what = ("as it is", "", "")
    if remedy is not None:
        what = remedy.name, remedy.kind, f"{remedy.part}: {_percent(before)} to {_percent(after)}"
    return *what, fullest, f"{stage.limit:.2f} ×", _million(stage.tasks_per_hour)


def _million(tasks: float) -> str:
    return f"{tasks / 1e6:.2f} million" if tasks else "none"


def _percent(utilisation: float) -> str:
    return f"{number(100 * utilisation)} %"


def _table(rows: list[tuple[str, ...]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
