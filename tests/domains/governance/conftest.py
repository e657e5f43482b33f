"""A world in which updates are proposed, decided and deployed, by two admins."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from stentor.core.db import Sql, Tx
from tests.conftest import World
from tests.patience import soon

SMALL: dict[str, Any] = {
    "files_modified": ["prompts/answer.md"],
    "lines_added": 1,
    "lines_deleted": 0,
    "lines_total": 1000,
    "breaking": False,
    "new_dependencies": False,
    "touches_policy": False,
}
"""Changes that are tier auto for an agent that is trusted enough."""
BASE = "/api/v1/governance"
NEEDED: dict[str, dict[str, Any]] = {
    "approve": {"approved_by": "dana", "rationale": "Fine.", "override_risk": False},
    "reject": {"rejected_by": "dana", "reason": "No.", "feedback": ""},
    "rollbacks": {"initiated_by": "dana", "details": ""},
}


def proposal(agent_id: str, changes: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    """A body of POST updates; `changes` over SMALL."""
    return {
        "update_id": str(uuid.uuid4()),
        "agent_id": agent_id,
        "update_type": "prompt",
        "description": "Shorter answers.",
        "changes": {**SMALL, **(changes or {})},
        "checkpoint_id": None,
        **fields,
    }


@dataclass
class Office:
    """Governance in a world; ADMIN proposes, SECOND decides."""

    world: World

    async def get(self, path: str, client: str = "ADMIN", **params: Any) -> dict[str, Any]:
        answer = await self.world.clients[client].get(f"{BASE}/{path}", params=params)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    async def post(self, path: str, body: Any = None, client: str = "ADMIN", **headers: str) -> httpx.Response:
        """What a decision needs besides `body` is filled in."""
        if (needed := NEEDED.get(path.rpartition("/")[2])) is not None:
            body = {**needed, **(body or {})}
        return await self.world.clients[client].post(f"{BASE}/{path}", json=body, headers=headers)

    async def trusted(self, score: float = 0.95, **fields: Any) -> str:
        """An agent with a trust score; answers its id."""
        agent = await self.world.register(**fields)
        await self.trust(agent, score)
        return agent

    async def trust(self, agent: str, score: float) -> None:
        answer = await self.world.admin.put(f"/api/v1/trust/{agent}", json={"score": score})
        assert answer.status_code == 200, answer.text

    async def propose(self, agent: str, changes: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
        """Propose, wait until nothing is under way, answer the update as it is then."""
        body = proposal(agent, changes, **fields)
        answer = await self.post("updates", body)
        assert answer.status_code == 202, answer.text
        await self.idle()
        return await self.update(body["update_id"])

    async def update(self, update_id: str) -> dict[str, Any]:
        return await self.get(f"updates/{update_id}")

    async def approve(self, update: dict[str, Any], client: str = "SECOND", **body: Any) -> dict[str, Any]:
        answer = await self.post(f"updates/{update['update_id']}/approve", body, client)
        assert answer.status_code == 200, answer.text
        await self.idle()
        return await self.update(update["update_id"])

    async def checkpoint(self, agent: str) -> dict[str, Any]:
        answer = await self.post("checkpoints", {"agent_id": agent})
        assert answer.status_code == 201, answer.text
        return dict(answer.json())

    async def rollback(self, checkpoint_id: str, **fields: Any) -> dict[str, Any]:
        """Roll back, wait, answer the rollback as it ended."""
        answer = await self.post("rollbacks", {"checkpoint_id": checkpoint_id, "reason": "It got worse.", **fields})
        assert answer.status_code == 202, answer.text
        await self.idle()
        return await self.get(f"rollbacks/{answer.json()['rollback_id']}")

    async def agent(self, agent: str) -> dict[str, Any]:
        answer = await self.world.admin.get(f"/api/v1/registry/agents/{agent}")
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    async def idle(self) -> None:
        """Until no deployment and no rollback is under way."""
        await soon(lambda: not self.world.kernel.governance.runner.is_busy)

    async def events(self, *kinds: str) -> list[tuple[str, dict[str, Any]]]:
        """Type and metadata of the recorded events of governance, oldest first."""
        import json

        sql = Sql("select event_type, metadata from events where component = 'governance' order by event_id")
        rows = await self.world.kernel.infra.db.read(lambda tx: tx.rows(sql))
        return [(kind, json.loads(meta)) for kind, meta in rows if not kinds or kind in kinds]

    async def sql(self, text: str, **params: Any) -> int:
        """Change rows behind the service's back."""

        def work(tx: Tx) -> int:
            return tx.run(Sql(text), **params)

        return await self.world.kernel.infra.db.write(work)


@pytest.fixture
def office(world: World) -> Office:
    return Office(world)
