"""Routes of workers: claim, heartbeat, tokens, complete, fail."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter
from pydantic import Field, StringConstraints
from starlette.requests import Request

from stentor.core.clock import format_iso
from stentor.domains.execution import model
from stentor.domains.execution.model import AttemptOutcome
from stentor.domains.execution.service import WorkerService
from stentor.domains.tasks.model import OutcomeClass, Task, TaskClaim, TaskStatus
from stentor.web.routes import RequestModel, example_config
from stentor.web.wire import (
    AgentId,
    Caller,
    Epoch,
    JsonResponse,
    Name,
    ResponseModel,
    TaskId,
    Text,
    Timestamp,
    api_router,
    error_responses,
)

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
    cost: Annotated[float, Field(ge=0, le=1_000_000, allow_inf_nan=False)] | None = None


class ErrorIn(RequestModel):
    message: Annotated[Text, StringConstraints(min_length=1)]
    code: Name = "AGENT_ERROR"


class FailIn(RequestModel):
    model_config = example_config(epoch=1, error={"code": "NO_SOURCE", "message": "The page is gone."})

    epoch: Epoch
    error: ErrorIn
    outcome_class: Literal["agent_failure", "provider_failure"] = "agent_failure"


class ClaimOut(ResponseModel):
    task_id: str
    epoch: int
    type: str
    input: Any
    required_capabilities: list[str]
    metadata: dict[str, Any]
    timeout_seconds: int
    idempotency_key: str
    start_time: Timestamp
    lease_until: Timestamp


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


def router(workers: WorkerService) -> APIRouter:
    api = api_router(tags=["workers"])

    @api.post("/agents/{agent_id}/claims", response_model=Claims, responses=error_responses(404, 409))
    async def claim(request: Request, caller: Caller, agent_id: AgentId, body: ClaimIn) -> JsonResponse:
        """Take up to `max` tasks for the agent, waiting up to `wait_seconds` for the first."""
        claims = await workers.claim(
            caller, agent_id, body.max, body.wait_seconds, body.lease_seconds, request.is_disconnected
        )
        return JsonResponse({"tasks": [_claim(c) for c in claims]})

    @api.post("/tasks/{task_id}/heartbeat", response_model=Renewed, responses=error_responses(404, 409))
    async def heartbeat(caller: Caller, task_id: TaskId, body: HeartbeatIn) -> JsonResponse:
        """Keep the lease; 409 LEASE_LOST says to stop the work."""
        until = await workers.heartbeat(caller, task_id, body.epoch, body.lease_seconds)
        return JsonResponse({"task_id": task_id, "epoch": body.epoch, "lease_until": format_iso(until)})

    @api.post("/tasks/{task_id}/tokens", response_model=Taken, responses=error_responses(404, 409))
    async def tokens(caller: Caller, task_id: TaskId, body: TokensIn) -> JsonResponse:
        """Pieces of the answer, for whoever watches the task."""
        await workers.publish_tokens(caller, task_id, body.epoch, body.tokens)
        return JsonResponse({"task_id": task_id, "accepted": len(body.tokens)})

    @api.post("/tasks/{task_id}/complete", response_model=Ended, responses=error_responses(404, 409))
    async def complete(caller: Caller, task_id: TaskId, body: CompleteIn) -> JsonResponse:
        """The answer. Sent twice, it is taken once."""
        kind: OutcomeClass = "degraded_success" if body.degraded else "success"
        outcome = AttemptOutcome(kind, body.result, performance=body.performance, cost=body.cost)
        return _ended(await workers.report_outcome(caller, task_id, body.epoch, outcome))

    @api.post("/tasks/{task_id}/fail", response_model=Ended, responses=error_responses(404, 409))
    async def fail(caller: Caller, task_id: TaskId, body: FailIn) -> JsonResponse:
        """The agent could not do it; a provider's failure is not held against it."""
        error = {"code": body.error.code, "message": body.error.message}
        return _ended(
            await workers.report_outcome(caller, task_id, body.epoch, AttemptOutcome(body.outcome_class, error=error))
        )

    return api


def _claim(claim: TaskClaim) -> dict[str, Any]:
    return {
        "task_id": claim.task_id,
        "epoch": claim.epoch,
        "type": claim.type,
        "input": claim.input,
        "required_capabilities": claim.required_capabilities,
        "metadata": claim.metadata.for_agent,
        "timeout_seconds": claim.timeout_seconds,
        "idempotency_key": claim.idempotency_key,
        "start_time": format_iso(claim.start_time),
        "lease_until": format_iso(claim.lease_until),
    }


def _ended(task: Task) -> JsonResponse:
    return JsonResponse(
        {
            "task_id": task.task_id,
            "status": task.status,
            "outcome_class": task.outcome_class,
            "duration_ms": task.duration_ms,
        }
    )
