"""Operations on learning, with those under /trust/hebbian that belong to it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated

from fastapi import Query
from pydantic import Field

from stentor.auth.principal import Principal
from stentor.core.errors import InvalidRequest, NotFound
from stentor.domains.learning.service import LearningService
from stentor.web.operations import operation, operations_of
from stentor.web.routes import RequestModel, example_config
from stentor.web.wire import AgentId, Caller, CamelCaseModel, Name, ResponseModel, Timestamp

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
    connection: Annotated[str, Field(validation_alias="key")]
    agent1: str
    agent2: str
    weight: float
    last_updated: Annotated[Timestamp, Field(validation_alias="updated_at")]


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


class WeightMoved(CamelCaseModel):
    connection: str
    new_weight: float
    delta: float


AuthorizeConnectionChange = Callable[[Principal, str], Awaitable[None]]
"""Raises Forbidden when the caller may not move the connections of this agent."""


class LearningOperations:
    """What callers can read of learning, and the weights between agents. Each method is an operation."""

    def __init__(
        self, learning: LearningService, is_known: IsKnownAgent, authorize_change: AuthorizeConnectionChange
    ) -> None:
        self._learning, self._is_known, self._authorize_change = learning, is_known, authorize_change

    @operation("learning.weights", "read", "GET /hebbian/weights", errors=(404,))
    async def weights(self, caller: Caller, agent_id: Annotated[str, Query()]) -> Weights:
        """Return an agent's current weight for each task type it has done."""
        self._check_agent(caller.tenant, agent_id)
        weights, last_updated = await self._learning.read_weights(agent_id)
        return Weights(agent_id=agent_id, weights=weights, last_updated=last_updated)

    @operation("learning.history", "read", "GET /hebbian/history/{agent_id}", errors=(404,))
    async def history(
        self, caller: Caller, agent_id: AgentId, limit: Annotated[int, Query(ge=1, le=1000)] = 100
    ) -> History:
        """List what the agent's weights learned from, the newest first."""
        self._check_agent(caller.tenant, agent_id)
        entries, total = await self._learning.list_history(agent_id, limit)
        return History.of(agent_id=agent_id, history=entries, total_entries=total, limit=limit)

    def _check_agent(self, tenant: str, agent_id: str) -> None:
        if not self._is_known(tenant, agent_id):
            raise NotFound(f"No agent has the id {agent_id!r}.")

    @operation("learning.connections", "read", "GET /hebbian/connections")
    async def connections(self, caller: Caller, agent_id: Annotated[str | None, Query()] = None) -> Connections:
        """List the weights between agents, of one agent or of all."""
        if agent_id is not None and "\0" in agent_id:
            raise InvalidRequest("agent_id: must not contain the character NUL")
        links = await self._learning.list_connections(caller.tenant, agent_id)
        rows = [ConnectionOut.of(link) for link in links]
        return Connections(connections=rows, total=len(rows))

    @operation("learning.matrix", "read", "GET /trust/hebbian/weights", envelope=True)
    async def matrix(self, caller: Caller) -> Matrix:
        """Return the agent-to-agent weights, by connection and as a symmetric matrix."""
        rows: dict[str, dict[str, float]] = {}
        links = await self._learning.list_connections(caller.tenant)
        for link in links:
            rows.setdefault(link.agent1, {})[link.agent2] = link.weight
            rows.setdefault(link.agent2, {})[link.agent1] = link.weight
        return Matrix(weights={link.key: link.weight for link in links}, matrix=rows)

    @operation("learning.move", "write", "PUT /trust/hebbian/weights", envelope=True)
    async def move(self, caller: Caller, body: Move) -> WeightMoved:
        """Strengthen (positive delta) or weaken a connection."""
        if body.agent1 == body.agent2:
            raise InvalidRequest("A connection has two different agents.")
        for agent_id in (body.agent1, body.agent2):
            await self._authorize_change(caller, agent_id)
        link = await self._learning.change_connection(caller.tenant, body.agent1, body.agent2, body.delta, caller.name)
        return WeightMoved(connection=f"{body.agent1}-{body.agent2}", new_weight=link.weight, delta=body.delta)


_ALL = operations_of(LearningOperations)
OPERATIONS = [row for row in _ALL if " /trust/" not in row.http]
TRUST_OPERATIONS = [row for row in _ALL if " /trust/" in row.http]
"""What the contract puts below /trust; before the routes that take an entity's id there."""
