"""What is wrong after a run: between the programs, the world outside, the journals and the run log."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

from tests.faults.checker import Rows, check, query, read_only
from tests.faults.journal.programs import Node, check_effects, expected
from tests.faults.kills.ledger import Ledger


def judge(database: Path | str, programs: dict[str, list[Node]], ledger: Ledger) -> list[str]:
    """Return all that is wrong, in sentences."""
    wrong = [*ledger.wrong]
    for name, program in programs.items():
        wrong += [f"{name}: {sentence}" for sentence in check_effects(program, ledger.sent)]
    with closing(read_only(database)) as connection:
        rows = partial(query, connection)
        wrong += [*_results(rows, programs), *_journals(rows), *_lost_records(rows, ledger)]
    return wrong + check(database)


def _results(rows: Rows, programs: dict[str, list[Node]]) -> Iterator[str]:
    tasks = {row["task_id"]: row for row in rows("select task_id, status, result, error from tasks")}
    for name, program in programs.items():
        if name not in tasks:
            yield f"{name} is lost"
        elif (tasks[name]["status"], json.loads(tasks[name]["result"] or "0")) != ("completed", expected(program)):
            yield f"{name} is {tasks[name]}, not {expected(program)}"
    for name, task in tasks.items():
        if task["status"] != "completed":
            yield f"{name} is {task['status']} at the end: {task['error']}"


def _journals(rows: Rows) -> Iterator[str]:
    """The journals and the run log say the same, and nothing is open."""
    steps = rows("select task_id, key, state from task_steps")
    for step in steps:
        if step["state"] == "started":
            yield f"{step['task_id']}: the step {step['key']} is open at the end"
    events = rows("select task_id, metadata from events where event_type = 'step_completed'")
    told = Counter((event["task_id"], json.loads(event["metadata"])["key"]) for event in events)
    recorded = Counter((step["task_id"], step["key"]) for step in steps if step["state"] == "completed")
    for task_id, key in (told - recorded) + (recorded - told):
        times = f"{recorded[task_id, key]} times in the journal and {told[task_id, key]} times in the run log"
        yield f"{task_id}: the step {key} is {times}"


def _lost_records(rows: Rows, ledger: Ledger) -> Iterator[str]:
    """Each step that a worker has got the value of is recorded."""
    query = "select count(*) as n from task_steps where kind = 'step' and state = 'completed' and name = 'step'"
    (recorded,) = (row["n"] for row in rows(query))
    if recorded != len(ledger.acknowledged):
        yield f"{len(ledger.acknowledged)} steps were acknowledged, and {recorded} are recorded"
