"""python -m tests.faults.kills; STENTOR_KILLS, KILLS_DATABASES and KILLS_SEED."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import replace

from tests.faults.kills.run import Outcome, Size, on_postgresql, on_sqlite

RUNS = {"sqlite": on_sqlite, "postgresql": on_postgresql}


def main() -> int:
    """Return 0 when nothing was violated."""
    is_wrong = False
    for name in os.environ.get("KILLS_DATABASES", ",".join(RUNS)).split(","):
        size = Size(int(os.environ.get("STENTOR_KILLS", "1000")))
        if seed := os.environ.get("KILLS_SEED"):
            size = replace(size, seed=int(seed))
        _say(f"{name}: {size}")
        outcome = RUNS[name](size, _say)
        _say(describe(name, outcome))
        is_wrong |= bool(outcome.wrong)
    return int(is_wrong)


def describe(name: str, outcome: Outcome) -> str:
    """Return the report of a run."""
    head = f"{name}: {outcome.kills.total()} kills in {outcome.seconds:.0f} s, {outcome.programs} programs"
    counts = [f"  {count:6} {what}" for what, count in sorted(outcome.kills.items())]
    rest = f"{outcome.steps} steps, {outcome.effects} effects, {dict(outcome.people)}, late {dict(outcome.late)}"
    return "\n".join([head, *counts, rest, f"{len(outcome.wrong)} violations", *outcome.wrong[:40]])


def _say(text: str) -> None:
    sys.stdout.write(f"{time.strftime('%H:%M:%S')} {text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
