"""Errors for a caller's mistake say what was meant."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.conftest import World
from tests.requirements import requirement

TASK = {"type": "summarize", "input": {"text": "One. Two."}, "required_capabilities": ["summarize"]}
TAKING_BODIES = ["/tasks", "/tasks/x/reject", "/people/sign-in", "/llm/chat", "/registry/agents"]


async def register(world: World, name: str, capabilities: list[str]) -> None:
    body = {"name": name, "capabilities": capabilities, "runtime": {"kind": "worker"}}
    response = await world.admin.post("/api/v1/registry/agents", json=body)
    assert response.status_code == 201, response.text


@requirement("http.hints")
@pytest.mark.parametrize(
    ("path", "body", "field", "reason"),
    [
        (
            "/tasks",
            TASK | {"priority": "high"},
            "priority",
            "unknown field; it belongs in `metadata`, as `metadata.priority`",
        ),
        (
            "/tasks",
            TASK | {"metadata": {"timeout_seconds": 5}},
            "metadata.timeout_seconds",
            "unknown field; it belongs next to `metadata`, not into it",
        ),
        ("/tasks", TASK | {"capabilities": ["x"]}, "capabilities", "unknown field; did you mean"),
        ("/tasks/x/reject", {"why": "no"}, "why", "unknown field; the fields are reason"),
        ("/llm/chat", {"modell": "x", "messages": []}, "modell", "unknown field; did you mean `model`?"),
    ],
)
async def test_an_unknown_field_is_shown_where_it_belongs(
    world: World, path: str, body: dict[str, Any], field: str, reason: str
) -> None:
    response = await world.admin.post(f"/api/v1{path}", json=body)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["code"] == "INVALID_REQUEST"
    assert error["details"]["fields"][field].startswith(reason)


@requirement("http.errors-limit")
async def test_of_thousands_of_unknown_fields_the_first_hundred_are_listed(world: World) -> None:
    for path in TAKING_BODIES:
        response = await world.admin.post(f"/api/v1{path}", json={f"f{number}": 1 for number in range(2_000)})
        assert response.status_code == 400, response.text
        fields = response.json()["error"]["details"]["fields"]
        assert len(fields) == 100, path
        assert "unknown field" in "".join(fields.values())


@requirement("http.errors-limit")
async def test_of_more_errors_only_their_number_is_told(world: World) -> None:
    for path in TAKING_BODIES:
        response = await world.admin.post(f"/api/v1{path}", json={f"f{number}": 1 for number in range(20_000)})
        assert response.status_code == 400, response.text
        ((field, reason),) = response.json()["error"]["details"]["fields"].items()
        assert field == "body", path
        assert re.fullmatch("20,00[0-9] errors, too many to list", reason)


@requirement("http.hints")
async def test_an_unknown_capability_is_named_with_the_known_ones(world: World) -> None:
    client = world.admin
    await register(world, "summarizer", ["summarize"])
    response = await client.post("/api/v1/tasks", json=TASK | {"required_capabilities": ["sumarize"]})
    assert response.status_code == 422
    error = response.json()["error"]
    assert error["message"].endswith("None has 'sumarize'; did you mean 'summarize'? Known capabilities: summarize.")
    assert error["details"]["unknown_capabilities"] == ["sumarize"]
    assert "summarize" in error["details"]["known_capabilities"]


@requirement("http.hints")
async def test_without_agents_the_error_says_that_no_capability_is_known(world: World) -> None:
    response = await world.admin.post("/api/v1/tasks", json=TASK | {"required_capabilities": ["fly"]})
    assert response.json()["error"]["message"].endswith("None has 'fly'. No agent has any capability.")


async def test_capabilities_that_no_agent_has_together_are_no_unknown_ones(world: World) -> None:
    await register(world, "summarizer", ["summarize"])
    await register(world, "translator", ["translate"])
    known = (await world.admin.post("/api/v1/tasks", json=TASK | {"required_capabilities": ["?"]})).json()
    every = known["error"]["details"]["known_capabilities"]
    assert every == ["summarize", "translate"]
    response = await world.admin.post("/api/v1/tasks", json=TASK | {"required_capabilities": every})
    assert response.status_code == 422
    assert response.json()["error"]["details"]["unknown_capabilities"] == []
