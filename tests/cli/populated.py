"""A data folder that a real service filled with one of everything, and what a client still expects of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from tests.conftest import Service
from tests.faults.test_webhooks import Sink, receiving
from tests.patience import until

ENVIRON = {"SERVICE_OUTBOUND_ALLOW": "127.0.0.1", "SERVICE_LLM_LOCAL_BASELINE": "1", "SERVICE_EMBEDDING_MODEL": "none"}
ENVIRON |= {"SERVICE_LLM_BUDGETS": "key:*:tokens/day=100000"}
NOTE = "Logs/harbour.md"
DERIVED, WRONG = "derived.md", "https://wrong.example"
"""A note that is invalid, as its source is."""


@dataclass
class Filled:
    """`waiting` are tasks in the queue of the agent `agent`, `done` those that ended; `secret` is the webhook's."""

    folder: Path
    agent: str
    waiting: list[str]
    done: list[str]
    secret: str


def fill(service: Service) -> Filled:
    """Agents, tasks in several states, lessons, a note, a webhook with its deliveries, spent tokens; then stop."""
    with service.client() as api, receiving() as sink:
        secret = post(api, "/webhooks", url=sink.url, events=["task.*"])["secret"]
        agent = post(api, "/registry/agents", name="ann", capabilities=["echo"])["agent_id"]
        done = [_done(api, agent, ok=n % 3 != 0) for n in range(6)]
        document = {"path": NOTE, "content": "The harbour was quiet, \U0001f30a.\n"}
        post(api, "/memory/write", operation="write", document=document)
        derived = {"path": DERIVED, "content": "A lighthouse.", "frontmatter": {"derived_from": WRONG}}
        post(api, "/memory/write", operation="write", document=derived)
        post(api, "/memory/invalidate", source=WRONG, reason="The page was wrong.")
        post(api, "/governance/checkpoints", agent_id=agent)
        messages = [{"role": "user", "content": "The sea is salty. Rivers carry salt. It stays."}]
        post(api, "/llm/chat", model="local/extractive", messages=messages)
        waiting = [_submit(api) for _ in range(5)]
        until_delivered(sink, 6)
    stop(service)
    return Filled(service.data_dir, agent, waiting, done, secret)


def stop(service: Service) -> None:
    service.process.terminate()
    assert service.process.wait(200) == 0


def post(api: httpx.Client, path: str, **body: Any) -> dict[str, Any]:
    answer = api.post(f"/api/v1{path}", json=body)
    assert answer.is_success, answer.text
    return dict(answer.json())


def work_off(api: httpx.Client, agent: str, count: int) -> set[str]:
    """Claim and complete so many tasks; answers their ids."""
    ended: set[str] = set()
    while len(ended) < count:
        claimed = post(api, f"/agents/{agent}/claims", max=10, wait_seconds=60)["tasks"]
        assert claimed, f"only {len(ended)} tasks came"
        for task in claimed:
            post(api, f"/tasks/{task['task_id']}/complete", epoch=task["epoch"], result="heard")
            ended.add(task["task_id"])
    return ended


def until_delivered(sink: Sink, tasks: int) -> None:
    """Wait for the events of so many ended tasks."""
    ends = ("task.completed", "task.failed")
    until(lambda: len([event for _, event, _ in list(sink.got) if event in ends]) >= tasks)


def _submit(api: httpx.Client) -> str:
    body = {"type": "echo", "input": {"text": "h\u00e9llo \\ \t\n\u2028"}, "required_capabilities": ["echo"]}
    return str(post(api, "/tasks", **body)["task_id"])


def _done(api: httpx.Client, agent: str, *, ok: bool) -> str:
    task_id = _submit(api)
    [claim] = post(api, f"/agents/{agent}/claims", wait_seconds=60)["tasks"]
    body = {"result": "heard"} if ok else {"error": {"message": "no: \\N"}}
    post(api, f"/tasks/{task_id}/{'complete' if ok else 'fail'}", epoch=claim["epoch"], **body)
    return task_id
