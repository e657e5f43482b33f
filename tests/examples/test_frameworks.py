"""The examples for agents of other frameworks: each runs as it stands, and calls its model through the gateway."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conftest import Service
from tests.patience import until
from tests.requirements import requirement
from tests.stub import Answer, Asked, serving

EXAMPLES = Path(__file__).parents[2] / "examples"
SDK = EXAMPLES.parent / "packages" / "stentor-worker" / "src"
FRAMEWORKS = Path(sys.prefix) / "frameworks" / "bin" / "python"
TEXT = "The sea is salty."
ARGUMENTS: dict[str, dict[str, Any]] = {
    "count_words": {"text": TEXT},
    "final_result": {"topic": "refund", "urgent": True},
    "refund": {"order": "A-17"},
}
"""What the scripted model passes to each tool that an example offers."""

SUMMARY = ("summarize-short", "The sea tastes of salt. Rivers carry it there.", TEXT)
TICKET = ("triage", "I want my money back, now!", ARGUMENTS["final_result"])
AGENTS = {
    "langgraph_agent": (*SUMMARY, 2),
    "openai_agent": (*SUMMARY, 2),
    "pydantic_ai_agent": (*TICKET, 1),
    "pydantic_ai_durable": ("refund", "Order A-17 came broken. I want my money back.", TEXT, 2),
    "crewai_agent": (*SUMMARY, 1),
}
"""Example -> capability, input, result, calls of the model."""


def answer_as_model(request: Asked, _count: int) -> Answer:
    """Call the first tool once if there is one, then say the text."""
    body = json.loads(request.body or b"{}")
    tools = [tool["function"]["name"] for tool in body.get("tools", [])]
    message: dict[str, Any] = {"role": "assistant", "content": TEXT}
    if tools and body["messages"][-1]["role"] != "tool":
        function = {"name": tools[0], "arguments": json.dumps(ARGUMENTS[tools[0]])}
        message |= {"content": None, "tool_calls": [{"id": "call_1", "type": "function", "function": function}]}
    finish = "tool_calls" if "tool_calls" in message else "stop"
    choice = {"index": 0, "message": message, "finish_reason": finish}
    usage = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}
    head = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": body.get("model")}
    return Answer(body={**head, "choices": [choice], "usage": usage})


@pytest.mark.parametrize("name", [*sorted(AGENTS), "langgraph_memory", "openai_session"])
@requirement("documentation.frameworks")
def test_an_example_fits_on_a_screen(name: str) -> None:
    lines = (EXAMPLES / f"{name}.py").read_text("utf-8").splitlines()
    assert len(lines) <= 40, "the tutorials promise at most 40 lines"
    assert all(len(line) <= 120 for line in lines)


@pytest.mark.slow
@pytest.mark.skipif(not FRAMEWORKS.exists(), reason="make test-all sets the frameworks up")
@pytest.mark.parametrize("name", sorted(AGENTS))
@requirement("documentation.frameworks")
def test_an_agent_of_a_framework_does_tasks_with_models_of_the_gateway(
    name: str, serve: Callable[..., Service], tmp_path: Path
) -> None:
    capability, text, result, calls = AGENTS[name]
    with serving(answer_as_model, keep_alive=True) as (address, _):
        service = serve(OPENAI_API_KEY="sk-scripted", OPENAI_BASE_URL=f"{address}/v1")
        command = [str(FRAMEWORKS), str(EXAMPLES / f"{name}.py"), service.address, service.key]
        environ = {"PATH": "", "HOME": str(tmp_path), "PYTHONPATH": str(SDK)}
        with (tmp_path / "printed").open("w") as printed:
            agent = subprocess.Popen(command, cwd=tmp_path, env=environ, stdout=printed, stderr=subprocess.STDOUT)
        with service.client() as api:
            try:
                found = f"/api/v1/registry/agents?capability={capability}"
                until(lambda: api.get(found).json()["agents"] or agent.poll() is not None)
                assert agent.poll() is None, (tmp_path / "printed").read_text("utf-8")
                body = {"type": capability, "required_capabilities": [capability], "input": text}
                # Two, one after the other: the second one finds what the first one left, such as connections.
                # Then six at once, which would share them.
                task_ids = [_do(api, body) for _ in range(2)]
                task_ids += [_submit(api, body) for _ in range(6)]
                for task_id in task_ids:
                    _wait(api, task_id)
            finally:
                agent.terminate()
                agent.wait(60)
            for task_id in task_ids:
                task = api.get(f"/api/v1/tasks/{task_id}").json()
                printed = (tmp_path / "printed").read_text()
                assert (task["status"], task["result"]) == ("completed", result), (task, printed)
            recorded = api.get("/api/v1/llm/calls").json()["calls"]
    assert [call["outcome"] for call in recorded] == ["ok"] * calls * len(task_ids), recorded
    assert {call["model"] for call in recorded} == {"gpt-5-mini"}
    assert {call["task_id"] for call in recorded} == ({None} if name == "crewai_agent" else set(task_ids))


def _do(api: httpx.Client, body: dict[str, Any]) -> str:
    """Submit a task and wait for its end; return its id."""
    task_id = _submit(api, body)
    _wait(api, task_id)
    return task_id


def _submit(api: httpx.Client, body: dict[str, Any]) -> str:
    task_id: str = api.post("/api/v1/tasks", json=body).json()["task_id"]
    return task_id


def _wait(api: httpx.Client, task_id: str) -> None:
    until(lambda: api.get(f"/api/v1/tasks/{task_id}").json()["status"] in ("completed", "failed"))


@pytest.mark.slow
@pytest.mark.skipif(not FRAMEWORKS.exists(), reason="make test-all sets the frameworks up")
@requirement("sessions.openai")
def test_a_chat_of_the_openai_sdk_goes_on_in_another_process(serve: Callable[..., Service], tmp_path: Path) -> None:
    with serving(answer_as_model, keep_alive=True) as (address, asked):
        service = serve(OPENAI_API_KEY="sk-scripted", OPENAI_BASE_URL=f"{address}/v1")
        command = [str(FRAMEWORKS), str(EXAMPLES / "openai_session.py"), service.address, service.key, "team/7 ü"]
        environ = {"PATH": "", "HOME": str(tmp_path), "PYTHONPATH": str(SDK)}
        for text in ("Where is my parcel?", "When does it arrive?", "Thanks!"):
            turn = subprocess.run([*command, text], env=environ, capture_output=True, text=True, check=False)
            assert turn.stdout.strip() == TEXT, turn.stderr
        said = [message["content"] for message in json.loads(asked[-1].body)["messages"][1:]]
        assert said == ["Where is my parcel?", TEXT, "When does it arrive?", TEXT, "Thanks!"]
        with service.client() as api:
            assert api.get("/api/v1/sessions/team%2F7%20%C3%BC").json()["item_count"] == 6
