"""Every operation of the gateway, asked of a service on SQLite and of one on PostgreSQL that went through the same."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import pytest

from tests.browser.seed import Seed, Seeded
from tests.conftest import KEYS
from tests.databases import KINDS, Databases, chosen, stores
from tests.patience import until
from tests.requirements import requirement
from tests.service import serving
from tests.surfaces.gateway.operations import OPERATIONS, UNKNOWN, Operation

QUERY = {"path": "Projects/plan.md", "from": "1", "to": "2", "size": "3"}
CLAIMS = "/api/v1/agents/{agent_id}/claims"
WEIGHTS = "/api/v1/hebbian/weights"
ID = re.compile(r"^[0-9a-f]{8}-[0-9a-f-]{27}$")


class Side:
    """A seeded service, and the ids there of what the seed made."""

    def __init__(self, first: httpx.Client, second: httpx.Client) -> None:
        self.http = first
        self.made = Seed(first, second).all(tasks=12)
        self._until("/governance/rollbacks/" + self.made.rollback, lambda found: found["status"] == "completed")
        self._until("/atp/response/" + self.made.message, lambda found: found["data"]["status"] == "completed")
        self._until("/provenance/" + self.made.root, lambda found: all(one["number"] for one in found["events"]))
        assert first.post("/api/v1/provenance/checkpoint").status_code == 200
        self.ids = ids(self.made)

    def _until(self, path: str, holds: Callable[[Any], bool]) -> None:
        """What goes on in the background has come about."""
        until(lambda: holds(self.http.get(f"/api/v1{path}").json()), lambda: self.http.get(f"/api/v1{path}").text)

    def ask(self, operation: Operation) -> tuple[int, Any]:
        """Status and shape of the answer to its example, about what there is."""
        path = re.sub(r"\{(\w+)\}", lambda found: self.ids.get(found[1], UNKNOWN), operation.path)
        params = {name: QUERY.get(name, self.ids.get(name, UNKNOWN)) for name in operation.query}
        body = operation.example if operation.has_body else None
        answer = self.http.request(operation.method, path, params=params, json=body)
        found = content(answer)
        if operation.path == CLAIMS and answer.status_code == 200:
            # Which task waits for the agent depends on how fast the others were.
            found = shape([dict.fromkeys(task, 0) for task in answer.json()["tasks"]])
        if operation.path == WEIGHTS and answer.status_code == 200:
            # Which types the agent learned depends on which tasks it got.
            found = shape({**answer.json(), "weights": list(answer.json()["weights"].values())})
        return answer.status_code, found


def ids(made: Seeded) -> dict[str, str]:
    """By the names of parameters."""
    known = {f"{name}_id": getattr(made, name) for name in ("update", "message", "webhook", "checkpoint", "rollback")}
    agent = made.agents["scribe"]
    return known | {
        "agent_id": agent,
        "entityId": agent,
        "task_id": made.done,
        "delivery_id": made.delivery,
        "provenance_id": made.root,
    }


def content(answer: httpx.Response) -> Any:
    kind = answer.headers.get("content-type", "").split(";")[0]
    if kind == "application/json":
        return shape(answer.json())
    if kind == "text/event-stream":
        return kind, sorted({line for line in answer.text.splitlines() if line.startswith("event:")})
    if answer.request.url.path == "/metrics":
        return kind, sorted({line.split()[2] for line in answer.text.splitlines() if line.startswith("# TYPE")})
    return kind


def shape(value: Any) -> Any:
    """Names and types, whatever the ids, the numbers, the texts and how many there are of a kind."""
    if isinstance(value, dict):
        return {("an id" if ID.match(name) else name): shape(one) for name, one in sorted(value.items())}
    if isinstance(value, list):
        return sorted({repr(shape(one)) for one in value})
    return "number" if isinstance(value, int | float) and not isinstance(value, bool) else type(value).__name__


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory, databases: Databases) -> Iterator[list[Side]]:
    if chosen() != KINDS:
        pytest.skip(f"SERVICE_TEST_DATABASE is {chosen()[0]}")
    with ExitStack() as stack:
        found = []
        for kind in KINDS:
            store = stack.enter_context(stores(databases, kind))
            start = stack.enter_context(serving(tmp_path_factory.mktemp(kind), store))
            service = start(SERVICE_EMBEDDING_MODEL="none", SERVICE_PROVENANCE_CHECKPOINT_SECONDS="3600")
            keys = (KEYS[name].split(":")[0] for name in ("ADMIN", "SECOND"))
            found.append(Side(*(stack.enter_context(service.client(key)) for key in keys)))
        yield found


@requirement("scale.postgres-by-setting")
def test_every_operation_answers_alike_on_both_databases(sides: list[Side]) -> None:
    reading = [one for one in OPERATIONS if one.method == "GET"]
    changing = [one for one in OPERATIONS if one.method not in ("GET", "DELETE")]
    deleting = [one for one in OPERATIONS if one.method == "DELETE"]
    answered = set()
    for operation in (*reading, *changing, *deleting):
        on_sqlite, on_postgresql = (side.ask(operation) for side in sides)
        assert on_postgresql == on_sqlite, operation
        answered.add(on_sqlite[0])
        assert on_sqlite[0] != 500, operation
    assert {200, 201, 202, 409} <= answered
