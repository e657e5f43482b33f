"""Pydantic AI agents whose runs survive the death of their worker: no model and no tool is called again."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.examples.test_frameworks import FRAMEWORKS, SDK
from tests.patience import until
from tests.requirements import requirement
from tests.service import SHORT_LEASE, Service

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not FRAMEWORKS.exists(), reason="make test-all sets the frameworks up"),
    pytest.mark.only("sqlite", reason="the SDK never sees the database"),
]


class Agents:
    """The program of durable agents: started again whenever it died."""

    def __init__(self, service: Service, folder: Path) -> None:
        self.api, self.log, self.printed = service.client(), folder / "log", folder / "printed"
        self.log.touch()
        program = str(Path(__file__).with_name("durable_agent.py"))
        self._command = [str(FRAMEWORKS), program, service.address, service.key, str(self.log)]
        self._environ = {"PATH": "", "HOME": str(folder), "PYTHONPATH": str(SDK)}
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        with self.printed.open("a") as printed:
            return subprocess.Popen(self._command, env=self._environ, stdout=printed, stderr=subprocess.STDOUT)

    def submit(self, text: str) -> str:
        body = {"type": "add", "required_capabilities": ["add"], "input": text}
        until(self._is_there, self.printed.read_text)
        answer = self.api.post("/api/v1/tasks", json=body)
        assert answer.status_code == 202, answer.text
        return str(answer.json()["task_id"])

    def _is_there(self) -> bool:
        assert self.process.poll() in (None, -9), self.printed.read_text()
        return bool(self.api.get("/api/v1/registry/agents?capability=add").json()["agents"])

    def until_it(self, task_id: str, *statuses: str) -> Any:
        def found() -> Any:
            if self.process.poll() is not None:
                self.process = self._start()
            task = self.api.get(f"/api/v1/tasks/{task_id}").json()
            return task if task["status"] in statuses else None

        return until(found, self.printed.read_text)

    def ended(self, task_id: str) -> Any:
        return self.until_it(task_id, "completed", "failed")

    def done(self, text: str) -> Any:
        task = self.ended(self.submit(text))
        assert task["status"] == "completed", task["error"]
        return task

    def replayed(self, task_id: str) -> str:
        before = self.log.read_text()
        replay = subprocess.run(
            [*self._command, task_id], env=self._environ, capture_output=True, text=True, check=False
        )
        assert self.log.read_text() == before, "a replay calls nothing"
        return replay.stdout + replay.stderr

    def lines(self) -> Counter[str]:
        return Counter(self.log.read_text().splitlines())

    def steps(self, task_id: str) -> list[str]:
        return [step["key"] for step in self.api.get(f"/api/v1/tasks/{task_id}/steps").json()["steps"]]


@pytest.fixture(scope="module")
def agents(serve_module: Callable[..., Service], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agents]:
    found = Agents(serve_module(**SHORT_LEASE), tmp_path_factory.mktemp("agents"))
    try:
        yield found
    finally:
        found.process.kill()
        found.process.wait()
        found.api.close()


@requirement("steps.pydantic-ai")
def test_after_a_crash_no_model_and_no_tool_is_called_again(agents: Agents) -> None:
    task = agents.done("sum")
    assert (task["result"]["total"], task["result"]["tools"], task["result"]["requests"]) == (11, 4, 3)
    # The first attempt died in the third request, the second one after the run.
    expected = {"sum: model 1": 1, "sum: model 2": 1, "sum: model 3": 2, "shout": 1}
    expected |= {"add 2 3": 1, "add 1 1": 1, "add 2 2": 1}
    assert {line: n for line, n in agents.lines().items() if line in expected} == expected
    assert sorted(agents.steps(task["task_id"])) == [
        *(f"adder: model {n}" for n in (1, 2, 3)),
        *(f"adder: tool add {n}" for n in (1, 2, 3)),
        "adder: tool shout 1",
    ]
    assert "same" in agents.replayed(task["task_id"])


@requirement("steps.pydantic-ai")
@pytest.mark.parametrize("text", ["outcomes", "twice"])
def test_whatever_a_tool_does_is_the_same_in_another_attempt(agents: Agents, text: str) -> None:
    task = agents.done(text)
    if text == "twice":
        assert task["result"] == [1, 1, "Hello!", "Hello!"]
    else:
        assert (task["result"]["total"], task["result"]["tools"]) == (2, 3)
        said = task["result"]["said"]
        assert "Take 2." in said
        assert "It is closed today." in said
        assert "BinaryImage(data=b'\\x00\\x01" in said
    assert "same" in agents.replayed(task["task_id"])


@requirement("steps.pydantic-ai")
def test_runs_in_tools_that_are_called_side_by_side_keep_their_steps(agents: Agents) -> None:
    task = agents.done("delegate")
    assert "11, 12" in task["result"]["said"]
    keys = agents.steps(task["task_id"])
    for n in (1, 2):
        tool = f"adder: tool delegate {n}"
        within = [f"{tool}/adder: {step}" for step in ("model 1", "tool add 1", "model 2")]
        assert sorted(key for key in keys if key.startswith(tool)) == sorted([tool, *within])
    assert "same" in agents.replayed(task["task_id"])


@requirement("steps.pydantic-ai")
def test_a_tool_may_ask_a_person_and_its_run_goes_on_with_the_answer(agents: Agents) -> None:
    task_id = agents.submit("ask")
    agents.until_it(task_id, "waiting")
    (key,) = [key for key in agents.steps(task_id) if "Go" in key or "question" in key]
    path = f"/api/v1/tasks/{task_id}/steps/{key.replace('/', '%2F').replace(' ', '%20')}/answer"
    assert agents.api.post(path, json={"value": "yes"}).status_code == 200
    task = agents.ended(task_id)
    assert (task["status"], "'yes'" in task["result"]["said"]) == ("completed", True)
    assert agents.lines()["ask: model 1"] == 1


@requirement("steps.pydantic-ai")
def test_an_effect_in_a_tool_is_held_or_sent_with_its_key(agents: Agents) -> None:
    task = agents.ended(agents.submit("effect"))
    assert (task["status"], task["error"]["code"]) == ("failed", "EFFECT_UNKNOWN")
    (paid,) = [line for line in agents.lines() if line.startswith("paid")]
    assert agents.lines()[paid] == 1
    agents.done("safe effect")
    (key,) = [line for line in agents.lines() if line.startswith("paid") and line != paid]
    assert agents.lines()[key] == 2


@requirement("steps.pydantic-ai")
def test_an_error_of_a_tool_fails_the_task_and_a_retry_calls_only_the_tool_again(agents: Agents) -> None:
    task = agents.ended(agents.submit("error"))
    assert task["error"]["code"] == "STEP_FAILED"
    assert "'adder: tool fails 1' failed: ValueError: no such thing" in task["error"]["message"]
    assert agents.api.post(f"/api/v1/tasks/{task['task_id']}/retry").is_success
    until(lambda: agents.ended(task["task_id"])["status"] == "completed")
    assert (agents.lines()["error: model 1"], agents.lines()["fails"]) == (1, 2)


@requirement("steps.pydantic-ai")
@pytest.mark.parametrize(
    ("text", "said"), [("stream", "records whole responses"), ("side by side", "give each a name")]
)
def test_what_cannot_be_durable_is_refused_with_a_sentence(agents: Agents, text: str, said: str) -> None:
    task = agents.ended(agents.submit(text))
    assert said in task["error"]["message"]
