"""Operations of workers: claim, heartbeat, tokens, complete, fail."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from stentor.domains.execution import model
from stentor.domains.execution.model import AttemptOutcome
from stentor.domains.execution.service import WorkerService
from stentor.domains.tasks.model import OutcomeClass, TaskStatus
from stentor.web.operations import operation
from stentor.web.routes import RequestModel, example_config
from stentor.web.wire import (
    AgentId,
    Caller,
    Disconnected,
    Epoch,
    Name,
    ResponseModel,
    StructFields,
    TaskId,
    Text,
    Timestamp,
)

Cost = Annotated[float, Field(ge=0, le=1_000_000, allow_inf_nan=False)]
"""What an attempt cost, in US dollars."""
LeaseSeconds = Annotated[int, Field(ge=1, le=model.MAX_LEASE_SECONDS)]
MAX_TOKEN_LENGTH = 65_536


class ClaimIn(RequestModel):
    model_config = example_config(max=1, wait_seconds=0, lease_seconds=30)

    max: Annotated[int, Field(ge=1, le=model.MAX_CLAIM)] = 1
    wait_seconds: Annotated[float, Field(ge=0, le=model.MAX_WAIT_SECONDS, allow_inf_nan=False)] = 0
    lease_seconds: LeaseSeconds = model.DEFAULT_LEASE_SECONDS


class HeartbeatIn(RequestModel):
    model_config = example_config(epoch=1, lease_seconds=30)

    epoch: Epoch
    lease_seconds: LeaseSeconds = model.DEFAULT_LEASE_SECONDS


class TokensIn(RequestModel):
    model_config = example_config(epoch=1, tokens=["Once ", "upon "])

    epoch: Epoch
    tokens: Annotated[list[Annotated[str, StringConstraints(max_length=MAX_TOKEN_LENGTH)]], Field(max_length=1000)]


class CompleteIn(RequestModel):
    model_config = example_config(epoch=1, result={"summary": "All is well."}, performance=0.9)

    epoch: Epoch
    result: Any
    performance: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] | None = None
    degraded: bool = False
    cost: Cost | None = None


class ErrorIn(RequestModel):
    message: Annotated[Text, StringConstraints(min_length=1)]
    code: Name = "AGENT_ERROR"


class FailIn(RequestModel):
    model_config = example_config(epoch=1, error={"code": "NO_SOURCE", "message": "The page is gone."})

    epoch: Epoch
    error: ErrorIn
    outcome_class: Literal["agent_failure", "provider_failure"] = "agent_failure"
    cost: Cost | None = None


class ClaimOut(ResponseModel):
    task_id: str
    epoch: int
    type: str
    input: Any
    required_capabilities: list[str]
    metadata: StructFields
    timeout_seconds: int
    idempotency_key: str
    start_time: Timestamp
    lease_until: Timestamp


class WorkerAgent(ResponseModel):
    """What a worker may know of its own agent."""

    agent_id: str
    name: str
    capabilities: list[str]


class WorkerLeft(ResponseModel):
    """`online` if another worker of the agent polls or works."""

    agent_id: str
    online: bool


class Claims(ResponseModel):
    tasks: list[ClaimOut]


class Renewed(ResponseModel):
    task_id: str
    epoch: int
    lease_until: Timestamp


class Taken(ResponseModel):
    task_id: str
    accepted: int


class Ended(ResponseModel):
    task_id: str
    status: TaskStatus
    outcome_class: OutcomeClass
    duration_ms: int


_ERRORS = (404, 409)


class WorkerOperations:
    """The operations of a worker on its tasks."""

    def __init__(self, workers: WorkerService) -> None:
        self._workers = workers

    @operation("worker.agent", "write", "GET /agents/{agent_id}", errors=_ERRORS)
    async def agent(self, caller: Caller, agent_id: AgentId) -> WorkerAgent:
        """Return the agent that a worker acts for, by its id or name; with the same errors as for its claims."""
        return WorkerAgent.of(await self._workers.find_worker(caller, agent_id))

    @operation("worker.claim", "write", "POST /agents/{agent_id}/claims", errors=_ERRORS)
    async def claim(self, caller: Caller, agent_id: AgentId, body: ClaimIn, is_gone: Disconnected) -> Claims:
        """Claim up to `max` tasks for the agent, waiting up to `wait_seconds` for the first."""
        claims = await self._workers.claim(caller, agent_id, body.max, body.wait_seconds, body.lease_seconds, is_gone)
        return Claims(tasks=[ClaimOut.of(claim, metadata=claim.metadata.for_agent) for claim in claims])

    @operation("worker.leave", "write", "POST /agents/{agent_id}/leave", errors=_ERRORS)
    async def leave(self, caller: Caller, agent_id: AgentId) -> WorkerLeft:
        """Report that a worker stops: its agent goes offline at once, unless another of its workers is active."""
        return WorkerLeft(agent_id=agent_id, online=await self._workers.leave(caller, agent_id))

    @operation("worker.heartbeat", "write", "POST /tasks/{task_id}/heartbeat", errors=_ERRORS, fast=True)
    async def heartbeat(self, caller: Caller, task_id: TaskId, body: HeartbeatIn) -> Renewed:
        """Renew the lease; after 409 LEASE_LOST the worker must stop."""
        lease_until = await self._workers.heartbeat(caller, task_id, body.epoch, body.lease_seconds)
        return Renewed(task_id=task_id, epoch=body.epoch, lease_until=lease_until)

    @operation("worker.tokens", "write", "POST /tasks/{task_id}/tokens", errors=_ERRORS, fast=True)
    async def tokens(self, caller: Caller, task_id: TaskId, body: TokensIn) -> Taken:
        """Publish output tokens to the live stream of the task."""
        await self._workers.publish_tokens(caller, task_id, body.epoch, body.tokens)
        return Taken(task_id=task_id, accepted=len(body.tokens))

    @operation("worker.complete", "write", "POST /tasks/{task_id}/complete", errors=_ERRORS, fast=True)
    async def complete(self, caller: Caller, task_id: TaskId, body: CompleteIn) -> Ended:
        """Report the result; a repeated report changes nothing."""
        kind: OutcomeClass = "degraded_success" if body.degraded else "success"
        outcome = AttemptOutcome(kind, body.result, performance=body.performance, cost=body.cost)
        return Ended.of(await self._workers.report_outcome(caller, task_id, body.epoch, outcome))

    @operation("worker.fail", "write", "POST /tasks/{task_id}/fail", errors=_ERRORS, fast=True)
    async def fail(self, caller: Caller, task_id: TaskId, body: FailIn) -> Ended:
        """Report a failure; one of a provider does not count against the agent."""
        error = {"code": body.error.code, "message": body.error.message}
        outcome = AttemptOutcome(body.outcome_class, error=error, cost=body.cost)
        return Ended.of(await self._workers.report_outcome(caller, task_id, body.epoch, outcome))
