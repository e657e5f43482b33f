"""The commands that the overview of a new installation shows work as they stand there."""

from __future__ import annotations

import shlex
from typing import Any

from stentor.surfaces.dashboard.presenters.first_steps import STEPS
from tests.cli.program import Program
from tests.requirements import requirement


@requirement("dashboard.first-steps")
def test_the_commands_of_the_first_steps_work(served: tuple[Program, Any]) -> None:
    program, service = served
    commands = {step.name: shlex.split(step.command) for step in STEPS}
    assert commands.pop("model")[1:] == ["stentor", "serve"]
    for name in ("task", "agent", "key"):
        done = program(*commands[name][1:])
        assert (done.code, commands[name][0]) == (0, "stentor"), done.err
    with service.client() as http:
        task_id = http.get("/api/v1/tasks", params={"status": "completed"}).json()["tasks"][0]["task_id"]
    grade = [task_id if word == "TASK" else word for word in commands["grade"][1:]]
    assert program(*grade).code == 0
