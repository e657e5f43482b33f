"""What the tests ask of processes over HTTP."""

from __future__ import annotations

import json
import threading
from typing import Any

from tests.conftest import Service
from tests.patience import until

TEXT = "Agents do tasks. Stentor routes each task to the best agent. It records why it did."


def submit(service: Service, **fields: Any) -> str:
    body = {"type": "summarize", "input": TEXT, "required_capabilities": ["summarize"], **fields}
    with service.client() as client:
        answer = client.post("/api/v1/tasks", json=body)
    assert answer.status_code == 202, answer.text
    return str(answer.json()["task_id"])


def task(service: Service, task_id: str) -> dict[str, Any]:
    with service.client() as client:
        answer = client.get(f"/api/v1/tasks/{task_id}")
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def ended(service: Service, task_id: str, status: str = "completed") -> dict[str, Any]:
    return dict(until(lambda: (found := task(service, task_id))["status"] == status and found))


def register(service: Service, name: str, **fields: Any) -> str:
    with service.client() as client:
        answer = client.post("/api/v1/registry/agents", json={"name": name, "capabilities": [name], **fields})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["agent_id"])


def known(service: Service, agent_id: str) -> None:
    """Wait until a process routes to an agent that another one registered."""
    with service.client() as client:
        until(lambda: client.get("/api/v1/registry/agents").text.count(agent_id))


def post(service: Service, path: str, **body: Any) -> Any:
    with service.client() as client:
        answer = client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def claim(service: Service, agent_id: str, **fields: Any) -> dict[str, Any]:
    return dict(post(service, f"/api/v1/agents/{agent_id}/claims", wait_seconds=60, **fields)["tasks"][0])


class Stream(threading.Thread):
    """Reads a task's stream to its end; `steps` are (event, data, id)."""

    def __init__(self, service: Service, task_id: str, last: str | None = None) -> None:
        super().__init__(daemon=True)
        self.steps: list[tuple[str, dict[str, Any], str | None]] = []
        self._at = service, task_id, {"Last-Event-ID": last} if last else {}
        self.start()

    def run(self) -> None:
        service, task_id, headers = self._at
        with (
            service.client() as client,
            client.stream("GET", f"/api/v1/tasks/{task_id}/stream", headers=headers) as answer,
        ):
            lines: dict[str, str] = {}
            for line in answer.iter_lines():
                name, _, value = line.partition(": ")
                if name:
                    lines[name] = value
                elif lines.get("event"):
                    self.steps.append((lines["event"], json.loads(lines["data"]), lines.get("id")))
                    lines = {}

    def tokens(self) -> list[str]:
        return [data["text"] for kind, data, _ in self.steps if kind == "token"]

    def kinds(self) -> list[str]:
        return [data["event_type"] if kind == "activity" else kind for kind, data, _ in self.steps]
