"""Runs a program with its faults, and says what is wrong with what came of it."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

from stentor.core import jsontext
from stentor.core.db import Sql, Tx
from tests.faults.journal.commits import FAULTS, Fault
from tests.faults.journal.installation import Installation
from tests.faults.journal.programs import Node, Outside, all_nodes, check_effects, expected, make_program

MAX_ROUNDS = 200
_TASK = "tenant = 'default' and task_id = :task_id"
_RESULT = Sql(f"select status, result, error from tasks where {_TASK}")
_STEPS = Sql(f"select key, kind, state from task_steps where {_TASK}")
_EVENTS = Sql(f"select event_id, parent_id, event_type, metadata from events where {_TASK} order by event_id")


class Case:
    """A program with faults at some of the commits that are made for it, or at some of those that change a table."""

    def __init__(self, seed: int, program: list[Node], faults: dict[int, Fault], table: str | None = None) -> None:
        self.seed, self.program, self.faults, self._table = seed, program, faults, table
        self.outside = Outside()
        self.task_id = ""

    async def run(self, installation: Installation) -> list[str]:
        """Run it to its end; return what is wrong, in sentences."""
        self._deaths_before = installation.deaths
        installation.plan.begin(dict(self.faults), self._table)
        body = {"type": "program", "input": self.program, "required_capabilities": ["program"]}
        # With an id of its own, so that a request that is repeated gives one task.
        _, task = await installation.send("POST", "/tasks", body | {"id": f"case-{random.getrandbits(64):016x}"})
        self.task_id = task["task_id"]
        for node in self.program:
            if node["kind"] == "early":
                await installation.signal(self.task_id, f"signal {node['id']}")
        for _ in range(MAX_ROUNDS):
            while await installation.work(self.outside):
                pass
            row = await installation.look(self._read_result)
            if row is None:
                return [f"{self}: the task is lost"]
            status, result, error = row
            if status == "completed":
                break
            await installation.go_on(self.outside)
        else:
            return [f"{self}: it is still {status}, with the error {error}"]
        self.commits = installation.plan.commits
        self.deaths = installation.deaths - self._deaths_before
        installation.plan.begin({})
        wrong = [*self._result(jsontext.load(result)), *self._outside(), *await installation.look(self._journal)]
        return [f"{self}: {sentence}" for sentence in wrong]

    def __str__(self) -> str:
        return f"seed {self.seed}, faults {self.faults}"

    def _read_result(self, tx: Tx) -> Any:
        return tx.row(_RESULT, task_id=self.task_id)

    def _result(self, result: Any) -> Iterator[str]:
        if result != expected(self.program):
            yield f"the result is {result}, not {expected(self.program)}"

    def _outside(self) -> Iterator[str]:
        yield from check_effects(self.program, self.outside.sent)
        yield from (f"the step {node_id} ran after its record was acknowledged" for node_id in self.outside.again)
        for node in all_nodes(self.program):
            node_id, kind = node["id"], node["kind"]
            runs = self.outside.runs[node_id]
            if kind == "step" and not 1 <= runs <= 1 + self.deaths:
                yield f"the step {node_id} ran {runs} times, and the worker died {self.deaths} times"

    def _journal(self, tx: Tx) -> list[str]:
        wrong: list[str] = []
        steps = tx.rows(_STEPS, task_id=self.task_id)
        events = tx.rows(_EVENTS, task_id=self.task_id)
        wrong += [f"the step {key} is {state}" for key, _, state in steps if state == "started"]
        ended = Counter(jsontext.load(meta)["key"] for _, _, kind, meta in events if kind in ("step_completed",))
        recorded = Counter(key for key, _, state in steps if state == "completed")
        if ended != recorded:
            wrong.append(f"the run log has {ended - recorded} more than the journal, and {recorded - ended} less")
        known = {event_id for event_id, *_ in events}
        wrong += [f"the event {event_id} follows none" for event_id, parent, *_ in events[1:] if parent not in known]
        return wrong


async def run_each_fault(installation: Installation, seed: int, limit: int) -> tuple[int, list[str]]:
    """Run a program once without faults, then with each fault at each commit; return how often, and what is wrong.

    Stops at the first wrong run, and after `limit` ones.
    """
    program = make_program(random.Random(seed))
    first = Case(seed, program, {})
    wrong = await first.run(installation)
    count = 0
    for commit in range(1, first.commits + 1) if not wrong else ():
        for fault in FAULTS:
            wrong += await Case(seed, program, {commit: fault}).run(installation)
            count += 1
            if wrong or count == limit:
                return count, wrong
    return count, wrong


async def run_random_faults(installation: Installation, seed: int) -> list[str]:
    """Run a program with many faults, also in what follows one: up to one in three commits fails."""
    dice = random.Random(seed)
    program, share = make_program(dice, size=8), dice.choice((0.03, 0.1, 0.2, 0.33))
    faults = {commit: dice.choice(FAULTS) for commit in range(1, 3_000) if dice.random() < share}
    return await Case(seed, program, faults).run(installation)
