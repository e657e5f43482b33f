"""A service that is killed and started again: what it had answered with 202 still ends, once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx

from tests.conftest import Service
from tests.domains.streams import parse
from tests.requirements import requirement
from tests.service import SHORT_LEASE

ENDS = {"task_completed", "task_failed", "task_aborted", "task_cancelled"}


def submit(client: httpx.Client, capability: str, text: str) -> str:
    body = {"type": capability, "input": text, "required_capabilities": [capability]}
    answer = client.post("/api/v1/tasks", json=body)
    assert answer.status_code == 202, answer.text
    return str(answer.json()["task_id"])


@requirement("execution.survives-restart", "learning.in-outcome-transaction")
def test_every_accepted_task_ends_exactly_once_after_a_kill(serve: Callable[..., Service]) -> None:
    first = serve(**SHORT_LEASE)
    with first.client() as client:
        made = client.post("/api/v1/registry/agents", json={"name": "ann", "capabilities": ["echo"]}).json()
        claims = f"/api/v1/agents/{made['agent_id']}/claims"
        echoes = [submit(client, "echo", f"{i}") for i in range(5)]
        lost = client.post(claims, json={"max": 2, "lease_seconds": 1}).json()["tasks"]
        long = " ".join(f"Sentence number {i} says word{i % 97} and word{i % 31}." for i in range(1500))
        sums = [submit(client, "summarize", long) for _ in range(12)]
    first.kill()
    second = serve(data_dir=first.data_dir, **SHORT_LEASE)
    with second.client() as client:
        done: set[str] = set()
        while len(done) < len(echoes):
            for claim in client.post(claims, json={"max": 9, "wait_seconds": 2}).json()["tasks"]:
                path = f"/api/v1/tasks/{claim['task_id']}/complete"
                assert client.post(path, json={"epoch": claim["epoch"], "result": 1}).status_code == 200
                done.add(claim["task_id"])
        for task_id in echoes + sums:
            frames = parse(client.get(f"/api/v1/tasks/{task_id}/stream").text)
            kinds = [frame.data["event_type"] for frame in frames if frame.event == "activity"]
            assert frames[-1].event == "complete"
            assert [kind for kind in kinds if kind in ENDS] == ["task_completed"]
            assert kinds.count("learning_updated") == 1
        for task in lost:
            assert client.get(f"/api/v1/tasks/{task['task_id']}").json()["attempts"] == 2
        assert client.get("/api/v1/tasks", params={"status": "completed"}).json()["total"] == 17


@requirement("execution.worker-leaves")
def test_a_worker_that_left_is_offline_after_a_restart_until_one_claims_again(serve: Callable[..., Service]) -> None:
    service = serve()

    def send(path: str, **body: object) -> dict[str, Any]:
        with service.client() as client:
            answer = client.post(f"/api/v1{path}", json=body)
        assert answer.is_success, answer.text
        return dict(answer.json())

    def is_online(agent_id: str) -> bool:
        with service.client() as client:
            return bool(client.get(f"/api/v1/registry/agents/{agent_id}").json()["online"])

    gone, back, silent = (
        str(send("/registry/agents", name=name, capabilities=[name])["agent_id"]) for name in ("gone", "back", "silent")
    )
    for agent_id in (gone, back, silent):
        send(f"/agents/{agent_id}/claims")
    for agent_id in (gone, back):
        assert send(f"/agents/{agent_id}/leave")["online"] is False
    send(f"/agents/{back}/claims")
    for _ in range(2):
        service.kill()
        service = serve(data_dir=service.data_dir, **service.state)
        assert [is_online(agent_id) for agent_id in (gone, back, silent)] == [False, True, True]
    task_id = str(send("/tasks", type="x", input=1, required_capabilities=["gone"])["task_id"])
    assert [task["task_id"] for task in send(f"/agents/{gone}/claims")["tasks"]] == [task_id]
    service.kill()
    service = serve(data_dir=service.data_dir, **service.state)
    assert is_online(gone)
