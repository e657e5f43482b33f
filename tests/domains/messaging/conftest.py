"""A kernel with messaging and a memory, and the calls that its tests make."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from tests.conftest import MakeWorld, World
from tests.patience import soon

HEADER = {
    "mode": "direct",
    "context": "trace-1",
    "priority": "normal",
    "actionType": "execute",
    "targetZone": "kernel",
}


def form(body: Any = None, zone: str = "kernel", action: str = "execute", **header: Any) -> dict[str, Any]:
    """A message in its JSON form; a body that is no text is sent as JSON."""
    content = body if isinstance(body, str) else json.dumps(body)
    return {
        "header": {**HEADER, "targetZone": zone, "actionType": action, **header},
        "payload": {"content": content},
    }


def task(**fields: Any) -> dict[str, Any]:
    """The body of kernel/execute; the envelope says which agents are reached."""
    return {"task": {"type": "echo", "input": "hello", **fields}}


@dataclass
class Post:
    """Messaging in a world."""

    world: World

    async def ask(self, path: str, client: str = "ADMIN", **options: Any) -> httpx.Response:
        """GET, or POST of `json`."""
        method = "POST" if "json" in options else "GET"
        return await self.world.clients[client].request(method, f"/api/v1/atp/{path}", **options)

    async def send(self, *args: Any, client: str = "ADMIN", **header: Any) -> str:
        answer = await self.ask("send", client, json=form(*args, **header))
        assert answer.status_code == 202, answer.text
        assert answer.json()["success"] is True
        return str(answer.json()["messageId"])

    async def message(self, message_id: str) -> dict[str, Any]:
        answer = await self.ask(f"message/{message_id}")
        assert answer.status_code == 200, answer.text
        return dict(answer.json()["data"])

    async def known(self, message_id: str) -> dict[str, Any]:
        """The response as soon as there is one."""

        async def found() -> dict[str, Any] | None:
            answer = await self.ask(f"response/{message_id}")
            assert answer.status_code in (200, 404), answer.text
            return dict(answer.json()["data"]) if answer.status_code == 200 else None

        return dict(await soon(found))

    async def over(self, message_id: str) -> dict[str, Any]:
        """The response when the message has ended."""

        async def found() -> dict[str, Any] | None:
            answer = await self.known(message_id)
            return answer if answer["status"] in ("completed", "failed") else None

        return dict(await soon(found))

    async def do(self, *args: Any, **options: Any) -> Any:
        """Send, and answer with the response of a message that must succeed."""
        answer = await self.over(await self.send(*args, **options))
        assert answer["status"] == "completed", answer
        return answer["response"]

    async def fail(self, *args: Any, **options: Any) -> Any:
        """Send, and answer with the error of a message that must fail."""
        answer = await self.over(await self.send(*args, **options))
        assert answer["status"] == "failed", answer
        return answer["response"]["error"]

    async def claimed(self, agent_id: str) -> dict[str, Any]:
        """The next task of a worker, waited for."""
        answer = await self.world.admin.post(f"/api/v1/agents/{agent_id}/claims", json={"wait_seconds": 60})
        return dict(answer.json()["tasks"][0])

    async def complete(self, claim: dict[str, Any], result: Any = "hi", verb: str = "complete") -> None:
        body = {"epoch": claim["epoch"]} | ({"result": result} if verb == "complete" else {"error": {"message": "no"}})
        answer = await self.world.admin.post(f"/api/v1/tasks/{claim['task_id']}/{verb}", json=body)
        assert answer.status_code == 200, answer.text


@pytest.fixture
def post(world: World) -> Post:
    return Post(world)


@pytest.fixture
async def full(make_world: MakeWorld) -> Post:
    """With a memory."""
    return Post(await make_world(SERVICE_MEMORY="1"))
