"""Odd values in each field of the requests about a task that lives: the database sees what is not refused."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest

from tests.conftest import World
from tests.domains.steps.test_steps import Attempt
from tests.requirements import requirement
from tests.surfaces.gateway.test_bad_input import VALUES, well_formed

RAW = ("NaN", "-Infinity", "1e999", "9" * 400, r'"\ud800"', r'"\udfff\ud800"', "-0.0", "[" * 600 + "]" * 600)
MORE = [
    2**31,
    2**53,
    2**63,
    -(2**63) - 1,
    1e308,
    ["a", "a"],
    [None],
    ["a\0b"],
    {"a\0b": 1},
    "..",
    "a/b",
    "#start",
    "😀" * 256,
]
SECONDS = {"seconds": 5, "together": "t", "handled": []}
REQUESTS: dict[str, dict[str, Any]] = {
    "steps": {
        "epoch": 1,
        "key": "k",
        "name": "k",
        "value": 1,
        "position": 0,
        "handled": [],
        "duration_ms": 0,
        "tool": "t",
    },
    "steps (bytes)": {"epoch": 1, "key": "b", "name": "b", "value": "YQ==", "encoding": "base64"},
    "steps (error)": {"epoch": 1, "key": "x", "name": "x", "error": {"message": "m", "type": "T", "code": "C"}},
    "effects": {"epoch": 1, "key": "e", "name": "e", "position": 0, "handled": []},
    "waits": {"epoch": 1, "key": "w", "name": "w", "kind": "sleep", "position": 0, **SECONDS},
    "waits (question)": {
        "epoch": 1,
        "key": "q",
        "name": "q",
        "kind": "question",
        "question": "?",
        "options": ["a"],
        **SECONDS,
    },
    "waits (signal)": {"epoch": 1, "key": "s", "name": "s", "kind": "signal", "signal": "s", **SECONDS},
    "waits (child)": {"epoch": 1, "key": "c", "name": "c", "kind": "child", "child_task_id": "c", **SECONDS},
    "signals": {"name": "s", "value": 1},
    "heartbeat": {"epoch": 1, "lease_seconds": 30},
    "suspend": {"epoch": 1, "keys": ["question"]},
    "complete": {"epoch": 1, "result": 1, "performance": 0.5, "degraded": False, "cost": 0.1},
    "fail": {"epoch": 1, "error": {"code": "X", "message": "m"}, "outcome_class": "agent_failure"},
    "rerun": {"agent_preference": None, "from_step": "first"},
    "reject": {"reason": "x"},
    "grade": {"grade": 0.5, "comment": "x"},
    "steps/question/answer": {"value": "a"},
    "steps/effect/resolve": {"happened": True, "value": 1, "reason": "r"},
}
QUICK = "waits (question)"
"""The request with the most kinds of fields, in each run of the tests."""
CASES: list[Any] = [pytest.param(name, marks=[] if name == QUICK else pytest.mark.slow) for name in REQUESTS]
ENDS = {"suspend", "complete", "fail"}
"""Requests after which the next one needs another task."""


def fields(body: dict[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, value in body.items():
        yield (*above, name)
        if isinstance(value, dict):
            yield from fields(value, (*above, name))


def bodies(body: dict[str, Any]) -> Iterator[str]:
    """The body with each odd value in each of its fields, as JSON."""
    for path in fields(body):
        changed = copy.deepcopy(body)
        inner = changed
        for name in path[:-1]:
            inner = inner[name]
        inner[path[-1]] = "@"
        for value in [*map(json.dumps, [*VALUES, *MORE]), *RAW]:
            yield json.dumps(changed).replace('"@"', value)


async def begin(world: World, agent: str) -> Attempt:
    task_id = await world.submit()
    attempt = Attempt(world, task_id, (await world.claim(agent))["epoch"])
    assert (await attempt.step("first", 1)).status_code == 200
    assert (await attempt.begin("effect")).status_code == 200
    wait = {"key": "question", "name": "question", "kind": "question", "question": "?"}
    assert (await attempt.post("waits", **wait)).status_code == 200
    return attempt


async def reads(world: World, task_id: str) -> None:
    """Whatever was taken can be read."""
    for path in (
        f"tasks/{task_id}",
        f"tasks/{task_id}/steps",
        f"tasks/{task_id}/activity?limit=500",
        "decisions?limit=500",
    ):
        answer = await world.admin.get(f"/api/v1/{path}")
        assert answer.status_code == 200, answer.text
    for step in (await world.admin.get(f"/api/v1/tasks/{task_id}/steps")).json()["steps"]:
        answer = await world.admin.get(f"/api/v1/tasks/{task_id}/steps/{quote(step['key'], safe='')}")
        assert answer.status_code == 200, answer.text


@requirement("steps.hostile")
@pytest.mark.parametrize("request_name", CASES)
async def test_no_value_in_a_request_about_a_living_task_breaks_the_service(world: World, request_name: str) -> None:
    verb = request_name.partition(" ")[0]
    agent = await world.register()
    attempt = await begin(world, agent)
    for body in bodies(REQUESTS[request_name]):
        path = f"/api/v1/tasks/{attempt.task_id}/{verb}"
        answer = await world.admin.post(path, content=body, headers={"Content-Type": "application/json"})
        well_formed(answer)
        assert answer.status_code < 500, answer.text
        if answer.is_success:
            await reads(world, attempt.task_id)
        elif answer.status_code == 400:
            assert answer.json()["error"]["message"], body
        if answer.is_success and verb in ENDS:
            attempt = await begin(world, agent)
