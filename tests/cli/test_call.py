"""`stentor call`: any operation by its name, against a service and without one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from stentor.bootstrap.operations import OPERATIONS
from stentor.cli.commands.call import CALLABLE, print_operation_help
from stentor.cli.output import EXIT_REFUSED
from tests.cli.program import Program
from tests.conftest import Service


@pytest.fixture(scope="module")
def program(serve_module: Callable[..., Service]) -> Program:
    service = serve_module()
    return Program(service.data_dir, {"SERVICE_CLIENT_KEY": service.key})


def test_an_operation_takes_its_parameters_and_its_body(program: Program, tmp_path: Path) -> None:
    body = {"name": "caller", "capabilities": ["echo"], "runtime": {"kind": "worker"}}
    agent = program("call", "agents.register", "--body", json.dumps(body)).json
    assert program("call", "agents.get", f"agent_id={agent['agent_id']}").json["name"] == "caller"
    file = tmp_path / "task.json"
    file.write_text(json.dumps({"type": "echo", "input": 1, "required_capabilities": ["echo"]}))
    task = program("call", "tasks.submit", "--body", f"@{file}").json
    listed = program("call", "tasks.list", "status=queued", "limit=1").json
    assert (listed["tasks"][0]["task_id"], listed["limit"]) == (task["task_id"], 1)
    assert program("call", "tasks.list", "status=failed").json["tasks"] == []


def test_all_operations_are_listed(program: Program) -> None:
    text = program("call").out
    assert all(operation.name in text for operation in OPERATIONS if not operation.has_own_route)


def test_the_help_of_an_operation_has_a_command_to_copy_and_its_fields(program: Program) -> None:
    text = program("call", "agents.clear_violations", "--help").out
    assert 'stentor call agents.clear_violations agent_id=... --body \'{"override_tier":' in text
    assert "auto, monitored, human" in text
    assert "The agent's id." in text
    assert "Name of the operation; without it" in program("call", "--help").out


def test_every_operation_has_a_help(program: Program) -> None:
    for operation in CALLABLE.values():
        print_operation_help(operation)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nonsense"], "There is no operation"),
        (["nonsense", "--help"], "There is no operation"),
        (["tasks.lst"], "There is no operation 'tasks.lst'. Did you mean 'tasks.list'?"),
        (["agents.get"], "needs agent_id=VALUE"),
        (["agents.get", "agent_id="], "needs agent_id=VALUE"),
        (["agents.get", "agent_id"], "is not NAME=VALUE"),
        (["tasks.list", "colour=red"], "Parameters: status"),
        (["tasks.submit", "--body", "{"], "not valid JSON"),
        (["tasks.submit", "--body", "@/nowhere"], "cannot be read"),
        (["tasks.submit", "--body", '"\udcff"'], "UTF-8"),
        (["agents.get", "agent_id=\udcff"], "UTF-8"),
        (["tasks.list", "status=\udcff"], "UTF-8"),
    ],
)
def test_wrong_usage_says_what_is_wrong(program: Program, words: list[str], said: str) -> None:
    done = program("call", *words)
    assert done.code == 2
    assert said in done.out + done.err


def test_what_the_service_rejects_is_told_with_its_code(program: Program) -> None:
    done = program("call", "tasks.get", "task_id=none")
    assert done.code == EXIT_REFUSED
    assert "NOT_FOUND" in done.out + done.err
