"""Routing by the length of the input, from outside: a real service over HTTP, which is killed in between."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random

import httpx
import pytest

from tests.conftest import serving
from tests.requirements import requirement

SETTINGS = {"SERVICE_WORKER_OFFLINE_SECONDS": "3600"}
"""On a slow machine an agent may have no task for a minute."""
TEXTS = {"short": "a" * 200, "long": "a" * 20_000}


def run(api: httpx.Client, length: str, fails: set[str]) -> str:
    """Submit a task, claim it for the agent that it got, and end it; return the agent's id."""
    body = {"type": "condense", "input": {"text": TEXTS[length]}, "required_capabilities": ["condense"]}
    task_id = api.post("/api/v1/tasks", json=body).raise_for_status().json()["task_id"]
    agent = str(api.get(f"/api/v1/tasks/{task_id}").raise_for_status().json()["assigned_agent"])
    answer = api.post(f"/api/v1/agents/{agent}/claims", json={})
    assert answer.status_code == 200, answer.text
    (claim,) = answer.json()["tasks"]
    verb, report = ("fail", {"error": {"message": "too long"}}) if agent in fails else ("complete", {"result": 1})
    api.post(f"/api/v1/tasks/{task_id}/{verb}", json={"epoch": claim["epoch"]} | report).raise_for_status()
    return agent


@pytest.mark.fault
@requirement("routing.length")
def test_an_agent_that_fails_long_inputs_gets_the_short_ones_only(tmp_path: Path) -> None:
    with serving(tmp_path) as serve:
        first = serve(**SETTINGS)
        with first.client() as api:
            agents = {}
            for name in ("window", "steady"):
                body = {"name": name, "capabilities": ["condense"], "runtime": {"kind": "worker"}}
                agents[name] = api.post("/api/v1/registry/agents", json=body).raise_for_status().json()["agent_id"]
            random = Random(1)
            for _ in range(40):
                # `steady` fails a third of all tasks, `window` each long one.
                chance = {agents["steady"]} if random.random() < 0.33 else set()
                run(api, "short", chance)
                run(api, "long", chance | {agents["window"]})
            chosen = {length: Counter(run(api, length, set()) for _ in range(10)) for length in TEXTS}
            assert chosen["short"][agents["window"]] >= 9
            assert chosen["long"][agents["steady"]] >= 9
            records = api.get("/api/v1/hebbian/weights", params={"agent_id": agents["window"]}).json()
            assert list(records["weights"]) == ["condense"]
        first.kill()
        with serve(**SETTINGS).client() as api:
            for agent in agents.values():
                api.post(f"/api/v1/agents/{agent}/claims", json={}).raise_for_status()
            chosen = {length: Counter(run(api, length, set()) for _ in range(5)) for length in TEXTS}
            assert chosen["short"][agents["window"]] >= 4
            assert chosen["long"][agents["steady"]] >= 4
