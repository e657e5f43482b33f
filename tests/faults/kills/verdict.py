"""What is wrong after a run: between the programs, the world outside, the journals and the run log."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from tests.faults.checker import Rows, check, query, read_only
from tests.faults.journal.programs import Node, check_effects, expected
from tests.faults.kills.coroutines import check_coroutine_effects, is_right
from tests.faults.kills.ledger import Ledger


def judge(database: Path | str, programs: dict[str, list[Node]], ledger: Ledger) -> list[str]:
    """Return all that is wrong, in sentences."""
    wrong = judge_outside(programs, ledger)
    with closing(read_only(database)) as connection:
        rows = partial(query, connection)
        wrong += [*_results(rows, programs), *_journals(rows), *_lost_records(rows, ledger)]
    return wrong + check(database)


def judge_outside(programs: dict[str, list[Node]], ledger: Ledger) -> list[str]:
    """Return what is wrong in the world outside; while programs run, some of their effects have not happened yet."""
    wrong = [*ledger.wrong]
    for name, program in programs.items():
        check_all = check_coroutine_effects if _is_coroutines(name) else check_effects
        wrong += [f"{name}: {sentence}" for sentence in check_all(program, ledger.sent)]
    return wrong


def _results(rows: Rows, programs: dict[str, list[Node]]) -> Iterator[str]:
    tasks = {row["task_id"]: row for row in rows("select task_id, status, result, error from tasks")}
    for name, program in programs.items():
        if name not in tasks:
            yield f"{name} is lost"
        elif tasks[name]["status"] != "completed" or not _is_right(name, program, json.loads(tasks[name]["result"])):
            yield f"{name} is {tasks[name]}, and its program {program}"
    for name, task in tasks.items():
        if task["status"] != "completed":
            yield f"{name} is {task['status']} at the end: {task['error']}"


def _journals(rows: Rows) -> Iterator[str]:
    """The journals and the run log say the same, and nothing is open."""
    steps = rows("select task_id, key, name, state from task_steps")
    for step in steps:
        if step["state"] == "started" and not step["name"].startswith("abandoned"):
            yield f"{step['task_id']}: the step {step['key']} is open at the end"
    events = rows("select task_id, metadata from events where event_type = 'step_completed'")
    told = Counter((event["task_id"], json.loads(event["metadata"])["key"]) for event in events)
    recorded = Counter((step["task_id"], step["key"]) for step in steps if step["state"] == "completed")
    for task_id, key in (told - recorded) + (recorded - told):
        times = f"{recorded[task_id, key]} times in the journal and {told[task_id, key]} times in the run log"
        yield f"{task_id}: the step {key} is {times}"


def _lost_records(rows: Rows, ledger: Ledger) -> Iterator[str]:
    """Each step that a worker has got the value of is recorded."""
    query = "select name from task_steps where kind = 'step' and state = 'completed' and name like 'step%'"
    names = Counter(row["name"] for row in rows(query))
    acknowledged = [f"step {node}" for node in ledger.acknowledged if _is_coroutines(node)]
    yield from (f"the step {name} was acknowledged, and is not recorded" for name in acknowledged if name not in names)
    others = len(ledger.acknowledged) - len(acknowledged)
    if names["step"] != others:
        yield f"{others} steps were acknowledged, and {names['step']} are recorded"


def _is_coroutines(name: str) -> bool:
    return name.startswith("coroutines")


def _is_right(name: str, program: list[Node], result: Any) -> bool:
    return is_right(program, result) if _is_coroutines(name) else bool(result == expected(program))
