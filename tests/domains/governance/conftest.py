"""A client for the governance API, with two admins: one proposes updates, the other decides."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from stentor.core.db import Sql, Tx
from tests.conftest import World
from tests.patience import soon

SMALL_CHANGES: dict[str, Any] = {
    "files_modified": ["prompts/answer.md"],
    "lines_added": 1,
    "lines_deleted": 0,
    "lines_total": 1000,
    "breaking": False,
    "new_dependencies": False,
    "touches_policy": False,
}
"""Changes that are tier auto for an agent with enough trust."""
BASE = "/api/v1/governance"
DECISION_FIELDS: dict[str, dict[str, Any]] = {
    "approve": {"approved_by": "dana", "rationale": "Fine.", "override_risk": False},
    "reject": {"rejected_by": "dana", "reason": "No.", "feedback": ""},
    "rollbacks": {"initiated_by": "dana", "details": ""},
}


def proposal(agent_id: str, changes: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    """A body for POST updates; `changes` override SMALL_CHANGES."""
    return {
        "update_id": str(uuid.uuid4()),
        "agent_id": agent_id,
        "update_type": "prompt",
        "description": "Shorter answers.",
        "changes": {**SMALL_CHANGES, **(changes or {})},
        "checkpoint_id": None,
        **fields,
    }


@dataclass
class GovernanceClient:
    """A client for the governance API; ADMIN proposes, SECOND decides."""

    world: World

    async def get(self, path: str, client: str = "ADMIN", **params: Any) -> dict[str, Any]:
        response = await self.world.clients[client].get(f"{BASE}/{path}", params=params)
        assert response.status_code == 200, response.text
        return dict(response.json())

    async def post(self, path: str, body: Any = None, client: str = "ADMIN", **headers: str) -> httpx.Response:
        """Send a request; a decision's required fields that `body` lacks are filled in."""
        if (required_fields := DECISION_FIELDS.get(path.rpartition("/")[2])) is not None:
            body = {**required_fields, **(body or {})}
        return await self.world.clients[client].post(f"{BASE}/{path}", json=body, headers=headers)

    async def register_trusted(self, score: float = 0.95, **fields: Any) -> str:
        """Register an agent with a trust score; return its id."""
        agent = await self.world.register(**fields)
        await self.set_trust(agent, score)
        return agent

    async def set_trust(self, agent: str, score: float) -> None:
        response = await self.world.admin.put(f"/api/v1/trust/{agent}", json={"score": score})
        assert response.status_code == 200, response.text

    async def propose(self, agent: str, changes: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
        """Propose an update, wait until no deployment is running, and return the update."""
        body = proposal(agent, changes, **fields)
        response = await self.post("updates", body)
        assert response.status_code == 202, response.text
        await self.wait_until_idle()
        return await self.update(body["update_id"])

    async def update(self, update_id: str) -> dict[str, Any]:
        return await self.get(f"updates/{update_id}")

    async def approve(self, update: dict[str, Any], client: str = "SECOND", **body: Any) -> dict[str, Any]:
        response = await self.post(f"updates/{update['update_id']}/approve", body, client)
        assert response.status_code == 200, response.text
        await self.wait_until_idle()
        return await self.update(update["update_id"])

    async def checkpoint(self, agent: str) -> dict[str, Any]:
        response = await self.post("checkpoints", {"agent_id": agent})
        assert response.status_code == 201, response.text
        return dict(response.json())

    async def rollback(self, checkpoint_id: str, **fields: Any) -> dict[str, Any]:
        """Roll back, wait until the rollback ends, and return it."""
        response = await self.post("rollbacks", {"checkpoint_id": checkpoint_id, "reason": "It got worse.", **fields})
        assert response.status_code == 202, response.text
        await self.wait_until_idle()
        return await self.get(f"rollbacks/{response.json()['rollback_id']}")

    async def agent(self, agent: str) -> dict[str, Any]:
        response = await self.world.admin.get(f"/api/v1/registry/agents/{agent}")
        assert response.status_code == 200, response.text
        return dict(response.json())

    async def wait_until_idle(self) -> None:
        """Wait until no deployment and no rollback is running."""
        await soon(lambda: not self.world.kernel.governance.runner.is_busy)

    async def events(self, *kinds: str) -> list[tuple[str, dict[str, Any]]]:
        """Type and metadata of the governance events in the run log, oldest first."""
        import json

        sql = Sql("select event_type, metadata from events where component = 'governance' order by event_id")
        rows = await self.world.kernel.infra.db.read(lambda tx: tx.rows(sql))
        return [(kind, json.loads(meta)) for kind, meta in rows if not kinds or kind in kinds]

    async def execute_sql(self, text: str, **params: Any) -> int:
        """Change rows directly in the database."""

        def work(tx: Tx) -> int:
            return tx.run(Sql(text), **params)

        return await self.world.kernel.infra.db.write(work)


@pytest.fixture
def governance(world: World) -> GovernanceClient:
    return GovernanceClient(world)
