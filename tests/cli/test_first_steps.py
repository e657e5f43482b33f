"""The commands that the overview of a new installation shows work as they stand there."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from itertools import takewhile
from typing import Any

from stentor.auth.api_keys import admin_key_file
from stentor.surfaces.dashboard.pages.overview.overview import STEPS
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


@requirement("http.auth-key-file")
def test_a_start_names_the_key_file_also_if_the_one_that_made_it_was_refused(program: Program) -> None:
    program.environ.update(SERVICE_MEMORY="0", SERVICE_DASHBOARD="0", SERVICE_LLM_BUDGETS="x")
    assert program("serve", "--gateway-port", "0").code == 3
    del program.environ["SERVICE_LLM_BUDGETS"]
    named = f"Key file: {admin_key_file(program.data_dir)} (readable only by you).\n"
    with program.start("serve", "--gateway-port", "0") as process:
        assert process.stdout is not None
        assert named in takewhile(lambda line: "Press Ctrl-C" not in line, process.stdout)
        process.terminate()
        process.communicate(timeout=200)


def test_a_start_with_an_embedding_model_that_is_not_there_warns(serve: Callable[..., Any]) -> None:
    (warning,) = serve(SERVICE_EMBEDDING_MODEL="nothere", SERVICE_MEMORY="1").ready["warnings"]
    assert warning.startswith("SERVICE_EMBEDDING_MODEL: The embedding model's file nothere/model.safetensors does not")
    assert warning.endswith("Until then the memory is searched by words, not by meaning.")
