"""Routes of governance; admin only. Source: core contract, "Governance"."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query
from pydantic import AfterValidator
from starlette.requests import Request

from stentor.auth.principal import Principal
from stentor.core import canonical_json
from stentor.core.db.idempotency import IdempotencyKey
from stentor.domains.governance import shown, wire
from stentor.domains.governance.checkpoints import Checkpoints
from stentor.domains.governance.model import Filter
from stentor.domains.governance.rollbacks import Rollbacks
from stentor.domains.governance.scoring import Scoring
from stentor.domains.governance.service import Updates
from stentor.web.request_context import decode_path_segment
from stentor.web.routes import requires_permission
from stentor.web.wire import (
    AgentId,
    Caller,
    IdempotencyHeader,
    JsonResponse,
    Offset,
    api_router,
    decode_cursor,
    encode_cursor,
    error_responses,
    next_link,
)

ADMIN: dict[str, Any] = {"openapi_extra": requires_permission("admin")}
PROPOSE: dict[str, Any] = {"openapi_extra": requires_permission("propose")}
"""For a key that proposes updates of its own agent; `admin` covers it."""
Tier = Literal["1", "2", "3", "auto", "monitored", "human"]
Status = Literal["pending", "submitted", "approved", "rejected", "deploying", "deployed", "rolled_back"]
UpdateId = Annotated[str, Path(description="The update's id."), AfterValidator(decode_path_segment)]
CheckpointId = Annotated[str, Path(description="The checkpoint's id."), AfterValidator(decode_path_segment)]
RollbackId = Annotated[str, Path(description="The rollback's id."), AfterValidator(decode_path_segment)]
Agent = Annotated[str | None, Query(max_length=64, pattern=r"^[^\x00]*$")]
Limit = Annotated[int, Query(ge=1, le=1000)]
Cursor = Annotated[str | None, Query(max_length=512)]


def router(updates: Updates, checkpoints: Checkpoints, rollbacks: Rollbacks, scoring: Scoring) -> APIRouter:
    api = api_router("/governance", tags=["governance"])
    _updates(api, updates)
    _decisions(api, updates)
    _checkpoints(api, checkpoints)
    _rollbacks(api, rollbacks)

    @api.post("/agents/{agent_id}/trust", response_model=wire.TrustOut, responses=error_responses(404, 422), **ADMIN)
    async def trust(caller: Caller, agent_id: AgentId, body: wire.ComputeTrust | None = None) -> JsonResponse:
        """Compute an agent's trust from metrics, given or our own records, with the breakdown; stored by default."""
        wanted = body or wire.ComputeTrust()
        given, persist = wanted.given(), wanted.persist
        found = await scoring.compute(caller.tenant, agent_id, given, caller, persist=persist)
        return JsonResponse(shown.computed(agent_id, found, wanted=persist))

    return api


def _updates(api: APIRouter, updates: Updates) -> None:
    @api.post(
        "/updates",
        status_code=202,
        response_model=wire.ProposedOut,
        responses=error_responses(404, 409, 422),
        **PROPOSE,
    )
    async def propose(caller: Caller, body: wire.Propose, idempotency_key: IdempotencyHeader = None) -> JsonResponse:
        """Propose an update of an agent; the answer says which tier has to approve it, and until when."""
        proposal = body.proposal()
        given = "update_id" in body.model_fields_set
        hashed = proposal.body_hash if given else canonical_json.digest(body.model_dump(exclude={"update_id"}))
        key = _key(caller, "updates", idempotency_key, hashed)
        return JsonResponse(shown.proposed(await updates.propose(caller, proposal, key)), 202)

    @api.get("/updates", response_model=wire.UpdatePage, **ADMIN)
    async def list_updates(
        request: Request,
        caller: Caller,
        status: Annotated[Status | None, Query()] = None,
        tier: Annotated[Tier | None, Query()] = None,
        agent_id: Agent = None,
        limit: Limit = 100,
        cursor: Cursor = None,
    ) -> JsonResponse:
        """Updates, newest first."""
        wanted = Filter(_status(status), shown.tier_of(tier), agent_id, _before(cursor))
        found = await updates.page(caller.tenant, wanted, limit + 1)
        following = _following(found, limit, "submitted_at", "update_id")
        body = {"updates": [shown.whole(u) for u in found[:limit]], "limit": limit, "next_cursor": following}
        return JsonResponse(body, headers=next_link(request, following))

    @api.get("/updates/{update_id}", response_model=wire.UpdateOut, responses=error_responses(404), **PROPOSE)
    async def read(caller: Caller, update_id: UpdateId) -> JsonResponse:
        """One update, with what its tier was decided on and the diff of its patch; without `admin` one's own."""
        return JsonResponse(shown.whole(await updates.read(caller, update_id)))


def _decisions(api: APIRouter, updates: Updates) -> None:
    @api.get("/approvals", response_model=wire.Approvals, **ADMIN)
    async def approvals(
        caller: Caller,
        tier: Annotated[Tier | None, Query()] = None,
        status: Annotated[Status, Query()] = "pending",
        limit: Limit = 100,
        offset: Offset = 0,
    ) -> JsonResponse:
        """What waits for approval, oldest first; `count` and `overdue` are of all that match."""
        wanted = Filter(_status(status), shown.tier_of(tier))
        found, count, overdue = await updates.waiting(caller.tenant, wanted, limit, offset)
        return JsonResponse(
            {"pending": [shown.pending(update) for update in found], "count": count, "overdue": overdue}
        )

    @api.post(
        "/updates/{update_id}/approve", response_model=wire.ApprovedOut, responses=error_responses(404, 409), **ADMIN
    )
    async def approve(caller: Caller, update_id: UpdateId, body: wire.Approve) -> JsonResponse:
        """Approve an update that somebody else proposed. A patch is deployed at once."""
        return JsonResponse(shown.approved(await updates.approve(caller, update_id, body.approval())))

    @api.post(
        "/updates/{update_id}/reject", response_model=wire.RejectedOut, responses=error_responses(404, 409), **ADMIN
    )
    async def reject(caller: Caller, update_id: UpdateId, body: wire.Reject) -> JsonResponse:
        """Reject an update."""
        return JsonResponse(shown.rejected(await updates.reject(caller, update_id, body.rejection())))

    @api.post(
        "/updates/{update_id}/deployed", response_model=wire.UpdateOut, responses=error_responses(404, 409), **ADMIN
    )
    async def deployed(caller: Caller, update_id: UpdateId, body: wire.Deployed) -> JsonResponse:
        """Report an approved update that lives outside as deployed; failed tests roll it back."""
        results = body.test_results.model_dump()
        return JsonResponse(shown.whole(await updates.report(caller, update_id, results)))


def _checkpoints(api: APIRouter, checkpoints: Checkpoints) -> None:
    @api.post(
        "/checkpoints", status_code=201, response_model=wire.CheckpointOut, responses=error_responses(404), **ADMIN
    )
    async def take(caller: Caller, body: wire.TakeCheckpoint) -> JsonResponse:
        """Record the state of an agent with its hash."""
        made = await checkpoints.create(caller.tenant, body.agent_id, caller.name)
        return JsonResponse(shown.checkpoint(made, with_state=True), 201)

    @api.get("/checkpoints", response_model=wire.CheckpointPage, **ADMIN)
    async def list_checkpoints(
        request: Request, caller: Caller, agent_id: Agent = None, limit: Limit = 100, cursor: Cursor = None
    ) -> JsonResponse:
        """Checkpoints, newest first, without their states."""
        found = await checkpoints.page(caller.tenant, agent_id, _before(cursor), limit + 1)
        following = _following(found, limit, "taken_at", "checkpoint_id")
        rows = [shown.checkpoint(one, with_state=False) for one in found[:limit]]
        body = {"checkpoints": rows, "limit": limit, "next_cursor": following}
        return JsonResponse(body, headers=next_link(request, following))

    @api.get("/checkpoints/{checkpoint_id}", response_model=wire.CheckpointOut, responses=error_responses(404), **ADMIN)
    async def read_checkpoint(caller: Caller, checkpoint_id: CheckpointId) -> JsonResponse:
        """One checkpoint; `intact` says whether it may be restored."""
        return JsonResponse(shown.checkpoint(await checkpoints.get(caller.tenant, checkpoint_id), with_state=True))


def _rollbacks(api: APIRouter, rollbacks: Rollbacks) -> None:
    @api.post(
        "/rollbacks", status_code=202, response_model=wire.StartedOut, responses=error_responses(404, 409, 422), **ADMIN
    )
    async def start(
        caller: Caller, body: wire.StartRollback, idempotency_key: IdempotencyHeader = None
    ) -> JsonResponse:
        """Set an agent back to a checkpoint."""
        key = _key(caller, "rollbacks", idempotency_key, canonical_json.digest(body.model_dump()))
        return JsonResponse(shown.started(await rollbacks.start(caller, body.draft(), key)), 202)

    @api.get("/rollbacks", response_model=wire.RollbackPage, **ADMIN)
    async def list_rollbacks(
        request: Request, caller: Caller, agent_id: Agent = None, limit: Limit = 100, cursor: Cursor = None
    ) -> JsonResponse:
        """Rollbacks, newest first."""
        found = await rollbacks.page(caller.tenant, agent_id, _before(cursor), limit + 1)
        following = _following(found, limit, "initiated_at", "rollback_id")
        body = {"rollbacks": [shown.rolled(r) for r in found[:limit]], "limit": limit, "next_cursor": following}
        return JsonResponse(body, headers=next_link(request, following))

    @api.get("/rollbacks/{rollback_id}", response_model=wire.RollbackOut, responses=error_responses(404), **ADMIN)
    async def read_rollback(caller: Caller, rollback_id: RollbackId) -> JsonResponse:
        """One rollback; `verified` is true only when what was read back has the checkpoint's hash."""
        return JsonResponse(shown.rolled(await rollbacks.get(caller.tenant, rollback_id)))


def _key(caller: Principal, route: str, value: str | None, hashed: str) -> IdempotencyKey | None:
    return None if value is None else IdempotencyKey(caller.tenant, caller.name, f"governance/{route}", value, hashed)


def _status(status: str | None) -> str | None:
    return "submitted" if status == "pending" else status


def _before(cursor: str | None) -> tuple[int, str] | None:
    return None if cursor is None else decode_cursor(cursor, int, str)


def _following(found: list[Any], limit: int, moment: str, record_id: str) -> str | None:
    """The cursor after a page of which one row more than asked for was read."""
    if len(found) <= limit:
        return None
    last = found[limit - 1]
    return encode_cursor(getattr(last, moment), getattr(last, record_id))
