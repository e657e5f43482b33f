"""Which permission reaches which operation: generated over the whole OpenAPI, deny by default."""

from __future__ import annotations

import itertools
import re

import httpx

from stentor.surfaces.gateway.app import LATER_METHODS, LATER_PREFIXES
from tests.conftest import KEYS, World
from tests.requirements import requirement
from tests.surfaces.gateway.operations import OPERATIONS, PROTECTED, Operation

GRANTED = {name: set(value.split(":")[2].split(",")) for name, value in KEYS.items()}
BY_METHOD = {"GET": "read", "POST": "write", "PUT": "write", "PATCH": "write", "DELETE": "delete"}
OF_THEIR_OWN = {
    "POST /api/v1/trust/{entityId}/can-perform": "read",  # it asks, and changes nothing
    "PUT /api/v1/trust/{entityId}": "admin",
    "POST /api/v1/bulk/tasks/approve": "approve",
    "POST /api/v1/bulk/tasks/reject": "approve",
    "POST /api/v1/tasks/{task_id}/approve": "approve",
    "POST /api/v1/tasks/{task_id}/reject": "approve",
    "POST /api/v1/tasks/{task_id}/steps/{key}/answer": "approve",
    "POST /api/v1/tasks/{task_id}/steps/{key}/resolve": "approve",
    "GET /api/v1/governance/updates": "approve",
    "GET /api/v1/governance/approvals": "approve",
    "POST /api/v1/governance/updates/{update_id}/approve": "approve",
    "POST /api/v1/governance/updates/{update_id}/reject": "approve",
    "POST /api/v1/atp/route": "read",
    "POST /api/v1/atp/validate": "read",
    "POST /api/v1/atp/format": "read",
    "POST /api/v1/provenance/checkpoint": "admin",
    "POST /api/v1/alerts/test": "admin",
    "PATCH /api/v1/alerts/thresholds": "admin",
    "GET /api/v1/audit": "admin",
    "POST /api/v1/audit/sign-ins": "read",  # of oneself
    "POST /api/v1/people/sign-out": "read",  # oneself
    "GET /api/v1/llm/providers": "admin",
    "POST /api/v1/llm/provider": "admin",
    "DELETE /api/v1/llm/provider/{name}": "admin",
    "DELETE /api/v1/llm/calls/{call_id}/content": "admin",
    "DELETE /api/v1/llm/contents": "admin",
    "POST /api/v1/llm/budgets": "admin",
    "DELETE /api/v1/llm/budgets/{budget_id}": "admin",
    "POST /api/v1/llm/routes": "admin",
    "DELETE /api/v1/llm/routes/{route_id}": "admin",
    "POST /api/v1/governance/updates": "propose",
    "GET /api/v1/governance/updates/{update_id}": "approve or propose",  # a proposer: one's own
    "POST /api/v1/registry/agents/{agent_id}/authorize": "write",  # agents ask for themselves
    "GET /api/v1/agents/{agent_id}": "write",  # a worker asks for itself, with the key it claims with
}


ADMIN_AREAS = (
    "/api/v1/registry/",
    "/api/v1/memory/",
    "/api/v1/governance/",
    "/api/v1/webhooks",
    "/api/v1/keys",
    "/api/v1/people",
)


def rule(operation: Operation) -> str:
    """What the decisions say, without a look at the code."""
    if own := OF_THEIR_OWN.get(str(operation)):
        return own
    return "admin" if operation.path.startswith(ADMIN_AREAS) else BY_METHOD[operation.method]


@requirement("http.scope-by-method", "http.scope-admin-registry", "http.scope-admin-actions")
def test_the_permissions_in_the_openapi_are_the_decided_ones() -> None:
    assert {str(o): o.permission for o in PROTECTED} == {str(o): rule(o) for o in PROTECTED}
    assert set(OF_THEIR_OWN) < {str(o) for o in OPERATIONS}


async def ask(client: httpx.AsyncClient, operation: Operation) -> httpx.Response:
    body = operation.example if operation.has_body else None
    return await client.request(operation.method, operation.url(), params=operation.query, json=body)


def lacks(answer: httpx.Response) -> str | None:
    """The permission that a 403 names as missing."""
    if answer.status_code != 403:
        return None
    error = answer.json()["error"]
    found = re.search(r"needs the permission '(\w+(?:' or '\w+)*)'", error["message"])
    assert error["code"] == "FORBIDDEN"
    return found[1].replace("'", "") if found else None


@requirement("http.scope-by-method", "http.scope-admin-registry", "http.scope-admin-actions")
async def test_a_key_reaches_the_operations_of_its_permissions_and_no_other(world: World) -> None:
    for key, operation in itertools.product(("READER", "WRITER", "BOB", "ADMIN"), PROTECTED):
        may = GRANTED[key]
        answer = await ask(world.clients[key], operation)
        expected = None if {*operation.permission.split(" or "), "admin"} & may else operation.permission
        assert lacks(answer) == expected, f"{key} {operation}: {answer.text}"
        if expected is None and key != "BOB":
            assert answer.status_code not in (401, 405, 500, 501, 503), operation


@requirement("http.scope-by-method")
async def test_a_refused_request_changes_nothing_and_its_body_is_not_looked_at(world: World) -> None:
    for operation in PROTECTED:
        if operation.permission != "read":
            answer = await world.clients["READER"].request(operation.method, operation.url(), content=b"{nonsense")
            assert answer.status_code == 403, operation
    assert (await world.admin.get("/api/v1/registry/agents")).json()["total"] == 0
    assert (await world.admin.get("/api/v1/tasks")).json()["total"] == 0
    assert (await world.admin.get("/api/v1/trust/report")).json()["data"]["totalEntities"] == 0


@requirement("http.scope-admin-registry")
async def test_the_registry_tells_no_difference_between_ids_to_a_key_without_admin(world: World) -> None:
    known = await world.register()
    operations = [o for o in PROTECTED if "{agent_id}" in o.path and "/registry/" in o.path]
    for key, operation in itertools.product(("READER", "WRITER", "BOB"), operations):
        answers = []
        for agent_id in (known, known[::-1]):
            url, body = operation.url(agent_id), operation.example if operation.has_body else None
            answer = await world.clients[key].request(operation.method, url, json=body)
            answers.append((answer.status_code, answer.json()["error"]["message"]))
        assert answers[0] == answers[1], operation
        assert answers[0][0] == 403


async def test_the_areas_of_a_later_version_keep_their_permission_and_answer_501(world: World) -> None:
    for (area, permission), method in itertools.product(LATER_PREFIXES.items(), LATER_METHODS):
        for path in (f"/api/v1/{area}", f"/api/v1/{area}/some/path"):
            reader = await world.clients["READER"].request(method, path)
            assert reader.status_code == (403 if permission == "admin" else 501), path
            admin = await world.admin.request(method, path)
            assert (admin.status_code, admin.json()["error"]["code"]) == (501, "NOT_IMPLEMENTED")
