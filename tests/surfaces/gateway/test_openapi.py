"""The description that the gateway serves of itself."""

from __future__ import annotations

import re
from typing import Any

import pytest

from stentor.auth.principal import PERMISSIONS
from tests.conftest import World
from tests.requirements import requirement
from tests.surfaces.gateway.operations import DOCUMENT, OPERATIONS, WITH_BODY, Operation, body_schema, resolve


@requirement("http.openapi-served")
async def test_the_openapi_is_served_without_a_key_and_is_the_one_in_the_docs(world: World) -> None:
    del world.admin.headers["X-API-Key"]
    answer = await world.admin.get("/openapi.json")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")
    assert answer.json() == DOCUMENT
    assert DOCUMENT["openapi"].startswith("3.1.")


@requirement("http.openapi-served")
def test_every_operation_has_a_summary_a_description_and_a_permission() -> None:
    ids = [o.spec["operationId"] for o in OPERATIONS]
    assert len(ids) == len(set(ids))
    for operation in OPERATIONS:
        assert operation.spec["summary"], operation
        assert operation.spec["description"].endswith("."), operation
        assert {"public", *PERMISSIONS}.issuperset(operation.permission.split(" or ")), operation


def test_generated_clients_get_short_distinct_names() -> None:
    # Generators make functions of the ids of operations, and classes of the last part of a schema's name or of its
    # title: where two were the same, openapi-python-client left out both classes and what uses them.
    assert [
        o.spec["operationId"] for o in OPERATIONS if not re.fullmatch("[a-z]+(_[a-z]+)*", o.spec["operationId"])
    ] == []
    assert [name for name in DOCUMENT["components"]["schemas"] if "__domains__" in name] == []
    titles = [schema["title"] for schema in DOCUMENT["components"]["schemas"].values() if "title" in schema]
    assert sorted(titles) == sorted(set(titles))


@pytest.mark.parametrize(
    ("schema", "field"),
    [
        ("AtpHeaderOut", "mode"),
        ("AtpHeaderOut", "priority"),
        ("ChangeOut", "kind"),
        ("OwnAgent", "status"),
        ("RuntimeOut", "kind"),
    ],
)
def test_a_field_with_few_values_names_them(schema: str, field: str) -> None:
    assert DOCUMENT["components"]["schemas"][schema]["properties"][field].get("enum")


def test_every_protected_operation_names_both_ways_to_send_a_key() -> None:
    schemes = DOCUMENT["components"]["securitySchemes"]
    for operation in OPERATIONS:
        used = [name for way in operation.spec.get("security", []) for name in way]
        assert used == ([] if operation.public else ["bearer", "key"]), operation
        assert set(used) <= set(schemes)


@requirement("http.idempotency-conflicts")
def test_every_operation_that_takes_an_idempotency_key_documents_its_reuse() -> None:
    operations = [o for o in OPERATIONS if "Idempotency-Key" in {parameter["name"] for parameter in o.parameters}]
    assert len(operations) >= 8
    for operation in operations:
        assert "422" in operation.spec["responses"], operation


async def test_the_conflicts_of_an_archived_agent_are_documented(world: World) -> None:
    agent = await world.register()
    gone = await world.admin.post(f"/api/v1/registry/agents/{agent}/archive", json={"reason": "replaced"})
    assert gone.status_code == 200, gone.text
    for operation in WITH_BODY:
        if operation.path_parameters == ["agent_id"]:
            answer = await world.admin.request(operation.method, operation.url(agent), json=operation.example)
            assert str(answer.status_code) in operation.spec["responses"], f"{operation}: {answer.text}"


def test_every_request_body_has_an_example_with_known_fields_only() -> None:
    for operation in WITH_BODY:
        schema = body_schema(operation)
        assert schema["additionalProperties"] is False, operation
        assert set(operation.example) <= set(schema["properties"]), operation
        assert set(operation.example) >= set(schema.get("required", [])), operation


async def test_every_example_is_accepted_as_well_formed(world: World) -> None:
    for operation in WITH_BODY:
        answer = await world.admin.request(operation.method, operation.url(), json=operation.example)
        assert answer.status_code not in (400, 422) or "ROUTING" in answer.text, f"{operation}: {answer.text}"


@requirement("http.error-envelope")
@pytest.mark.parametrize("operation", OPERATIONS, ids=str)
def test_every_documented_error_has_a_body_of_the_contract(operation: Operation) -> None:
    titles = {"401": "KeyRefused", "429": "Throttled"}
    for status, answer in operation.spec["responses"].items():
        if status[0] in "45" and not operation.path.startswith("/api/v1/health"):
            schema: dict[str, Any] = resolve(answer["content"]["application/json"]["schema"])
            assert schema["title"] == titles.get(status, "ErrorAnswer")
            assert ("application/problem+json" in answer["content"]) is (status not in titles)
