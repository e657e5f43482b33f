"""The examples for agents of other frameworks: each runs as it stands, and calls its model through the gateway."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Service
from tests.patience import until
from tests.requirements import requirement
from tests.stub import Answer, Asked, serving

EXAMPLES = Path(__file__).parents[2] / "examples"
SDK = EXAMPLES.parent / "packages" / "stentor-worker" / "src"
FRAMEWORKS = Path(sys.prefix) / "frameworks" / "bin" / "python"
TEXT = "The sea is salty."
ARGUMENTS = {"count_words": {"text": TEXT}, "final_result": {"topic": "refund", "urgent": True}}
"""What the scripted model passes to each tool that an example offers."""

SUMMARY = ("summarize-short", "The sea tastes of salt. Rivers carry it there.", TEXT)
TICKET = ("triage", "I want my money back, now!", ARGUMENTS["final_result"])
AGENTS = {
    "langgraph_agent": (*SUMMARY, 2),
    "openai_agent": (*SUMMARY, 2),
    "pydantic_ai_agent": (*TICKET, 1),
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


@pytest.mark.parametrize("name", sorted(AGENTS))
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
                task_id = api.post("/api/v1/tasks", json=body).json()["task_id"]
                until(lambda: api.get(f"/api/v1/tasks/{task_id}").json()["status"] in ("completed", "failed"))
            finally:
                agent.terminate()
                agent.wait(60)
            task = api.get(f"/api/v1/tasks/{task_id}").json()
            assert (task["status"], task["result"]) == ("completed", result), (task, (tmp_path / "printed").read_text())
            recorded = api.get("/api/v1/llm/calls").json()["calls"]
    assert [call["outcome"] for call in recorded] == ["ok"] * calls, recorded
    assert {call["model"] for call in recorded} == {"gpt-5-mini"}
    assert {call["task_id"] for call in recorded} == {None if name == "crewai_agent" else task_id}
