"""python -m tests.faults.soak [FILE of the report]; SOAK_SECONDS, SOAK_TASKS, SOAK_SEED, SOAK_DATABASES."""

from __future__ import annotations

import os
import platform
import random
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

from tests.faults.soak import report
from tests.faults.soak.runs import Plan, Result, on_postgresql, on_sqlite

SECONDS, TASKS = 600, 10_000
RUNS = {"postgresql": (on_postgresql, 0.65), "sqlite": (on_sqlite, 0.35)}
"""And the share of the time and of the tasks that each has."""


def main() -> int:
    """0 when nothing was violated."""
    chosen = os.environ.get("SOAK_DATABASES", ",".join(RUNS)).split(",")
    whole = sum(RUNS[name][1] for name in chosen)
    seconds, tasks = float(os.environ.get("SOAK_SECONDS", SECONDS)), int(os.environ.get("SOAK_TASKS", TASKS))
    seed = int(os.environ.get("SOAK_SEED") or random.randrange(10**6))
    results: list[Result] = []
    for name in chosen:
        run, share = RUNS[name]
        plan = Plan(seconds * share / whole, round(tasks * share / whole), seed)
        say = Timed()
        _say(f"{name}: {plan.tasks} tasks in {plan.seconds:.0f} s, seed {seed}")
        results.append(run(plan, say))
        _say(f"{name}: {len(results[-1].found)} violations")
    machine = f"{os.cpu_count()} cores, {platform.system()}, Python {platform.python_version()}"
    text = "\n".join(report.lines(results, datetime.now(UTC).strftime("%Y-%m-%d"), machine)) + "\n"
    _say(text)
    if sys.argv[1:]:
        Path(sys.argv[1]).write_text(text)
    return int(any(result.found for result in results))


class Timed:
    """Says something with the seconds since it was made."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    def __call__(self, text: str) -> None:
        _say(f"{time.monotonic() - self._began:6.0f} s  {text}")


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
