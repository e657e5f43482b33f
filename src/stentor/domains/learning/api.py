"""Routes of learning, and those under /trust/hebbian that belong to it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import Field

from stentor.auth.principal import Principal
from stentor.core.clock import format_iso, format_iso_or_none
from stentor.core.errors import InvalidRequest, NotFound
from stentor.domains.learning.model import AgentConnection
from stentor.domains.learning.service import LearningService
from stentor.web.routes import RequestModel, example_config
from stentor.web.wire import (
    AgentId,
    Caller,
    Enveloped,
    JsonResponse,
    Name,
    ResponseModel,
    Timestamp,
    api_router,
    enveloped_response,
    error_responses,
)

IsKnownAgent = Callable[[str, str], bool]
"""(tenant, agent id) -> whether the registry has it; learning itself knows no agents."""


class Weights(ResponseModel):
    agent_id: str
    weights: dict[str, float]
    last_updated: Timestamp | None


class EntryOut(ResponseModel):
    timestamp: Timestamp
    task_type: str
    delta: int
    result: str
    weight_before: float
    weight_after: float


class History(ResponseModel):
    agent_id: str
    history: list[EntryOut]
    total_entries: int
    limit: int


class ConnectionOut(ResponseModel):
    connection: str
    agent1: str
    agent2: str
    weight: float
    last_updated: Timestamp


class Connections(ResponseModel):
    connections: list[ConnectionOut]
    total: int


class Matrix(ResponseModel):
    weights: dict[str, float]
    matrix: dict[str, dict[str, float]]


class Move(RequestModel):
    model_config = example_config(
        agent1="01a1fb6f-0000-7000-8000-000000000001", agent2="01a1fb6f-0000-7000-8000-000000000002", delta=0.1
    )

    agent1: Name
    agent2: Name
    delta: Annotated[float, Field(ge=-100, le=100, allow_inf_nan=False)]


class Moved(ResponseModel):
    connection: str
    newWeight: float  # noqa: N815
    delta: float


def router(learning: LearningService, agent_known: IsKnownAgent) -> APIRouter:
    api = api_router("/hebbian", tags=["hebbian"])

    def check(tenant: str, agent_id: str) -> None:
        if not agent_known(tenant, agent_id):
            raise NotFound(f"No agent has the id {agent_id!r}.")

    @api.get("/weights", response_model=Weights, responses=error_responses(404))
    async def weights(caller: Caller, agent_id: Annotated[str, Query()]) -> JsonResponse:
        """An agent's weight for each task type it has done, as of now."""
        check(caller.tenant, agent_id)
        found, last = await learning.read_weights(agent_id)
        return JsonResponse({"agent_id": agent_id, "weights": found, "last_updated": format_iso_or_none(last)})

    @api.get("/history/{agent_id}", response_model=History, responses=error_responses(404))
    async def history(
        caller: Caller, agent_id: AgentId, limit: Annotated[int, Query(ge=1, le=1000)] = 100
    ) -> JsonResponse:
        """What the agent's weights learned from, the newest first."""
        check(caller.tenant, agent_id)
        entries, total = await learning.list_history(agent_id, limit)
        rows = [
            {f: getattr(e, f) for f in e.__struct_fields__} | {"timestamp": format_iso(e.timestamp)} for e in entries
        ]
        return JsonResponse({"agent_id": agent_id, "history": rows, "total_entries": total, "limit": limit})

    @api.get("/connections", response_model=Connections)
    async def connections(caller: Caller, agent_id: Annotated[str | None, Query()] = None) -> JsonResponse:
        """The weights between agents, of one agent or of all."""
        links = await learning.list_connections(caller.tenant)
        rows = [_connection(c) for c in links if agent_id in (None, c.agent1, c.agent2)]
        return JsonResponse({"connections": rows, "total": len(rows)})

    return api


AuthorizeConnectionChange = Callable[[Principal, str], Awaitable[None]]
"""Raises Forbidden when the caller may not move the connections of this agent."""


def trust_router(learning: LearningService, allow: AuthorizeConnectionChange) -> APIRouter:
    api = api_router("/trust/hebbian", tags=["trust"])

    @api.get("/weights", response_model=Enveloped[Matrix])
    async def matrix(caller: Caller) -> JsonResponse:
        """The agent-to-agent weights, by connection and as a symmetric matrix."""
        rows: dict[str, dict[str, float]] = {}
        links = await learning.list_connections(caller.tenant)
        for link in links:
            rows.setdefault(link.agent1, {})[link.agent2] = link.weight
            rows.setdefault(link.agent2, {})[link.agent1] = link.weight
        return enveloped_response({"weights": {link.key: link.weight for link in links}, "matrix": rows})

    @api.put("/weights", response_model=Enveloped[Moved])
    async def move(caller: Caller, body: Move) -> JsonResponse:
        """Strengthen (positive delta) or weaken a connection."""
        if body.agent1 == body.agent2:
            raise InvalidRequest("A connection has two different agents.")
        for one in (body.agent1, body.agent2):
            await allow(caller, one)
        link = await learning.change_connection(caller.tenant, body.agent1, body.agent2, body.delta, caller.name)
        key = f"{body.agent1}-{body.agent2}"
        return enveloped_response({"connection": key, "newWeight": link.weight, "delta": body.delta})

    return api


def _connection(link: AgentConnection) -> dict[str, Any]:
    return {
        "connection": link.key,
        "agent1": link.agent1,
        "agent2": link.agent2,
        "weight": link.weight,
        "last_updated": format_iso(link.updated_at),
    }
