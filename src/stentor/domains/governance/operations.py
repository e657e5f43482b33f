"""Operations of governance, for admins except for proposals. Source: core contract, "Governance"."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any, Literal

from fastapi import Path, Query
from pydantic import AfterValidator

from stentor.auth.principal import Principal
from stentor.core.db.idempotency import IdempotencyKey
from stentor.core.formats import canonical_json
from stentor.core.jsontext import JsonObject
from stentor.domains.governance import checkpoints as states
from stentor.domains.governance import model, wire
from stentor.domains.governance.checkpoints import CheckpointService
from stentor.domains.governance.model import Checkpoint, Update, UpdateFilter
from stentor.domains.governance.rollbacks import RollbackService
from stentor.domains.governance.service import TrustScoringService, UpdateService
from stentor.web.operations import operation
from stentor.web.request_context import decode_path_segment
from stentor.web.wire import AgentId, Caller, IdempotencyHeader, Offset, decode_cursor, encode_cursor

Tier = Literal["1", "2", "3", "auto", "monitored", "human"]
Status = Literal["pending", "submitted", "approved", "rejected", "deploying", "deployed", "rolled_back"]
UpdateId = Annotated[str, Path(description="The update's id."), AfterValidator(decode_path_segment)]
CheckpointId = Annotated[str, Path(description="The checkpoint's id."), AfterValidator(decode_path_segment)]
RollbackId = Annotated[str, Path(description="The rollback's id."), AfterValidator(decode_path_segment)]
Agent = Annotated[str | None, Query(max_length=64, pattern=r"^[^\x00]*$")]
Limit = Annotated[int, Query(ge=1, le=1000)]
Cursor = Annotated[str | None, Query(max_length=512)]

FindPatchProblem = Callable[[str, str, JsonObject], Awaitable[str | None]]
"""(tenant, agent id, JSON merge patch) -> what will not work after it although it is valid; None if nothing."""
FindAgentName = Callable[[str, str], str | None]
"""(tenant, agent id) -> its name; None for an unknown agent."""


class GovernanceOperations:
    """Operations on updates, checkpoints and rollbacks."""

    def __init__(
        self,
        updates: UpdateService,
        checkpoints: CheckpointService,
        rollbacks: RollbackService,
        scoring: TrustScoringService,
        find_patch_problem: FindPatchProblem,
        find_agent_name: FindAgentName,
    ) -> None:
        self._find_patch_problem, self._find_agent_name = find_patch_problem, find_agent_name
        self._updates, self._checkpoints, self._rollbacks, self._scoring = updates, checkpoints, rollbacks, scoring

    @operation("updates.propose", "propose", "POST /governance/updates", 202, (404, 409, 422))
    async def propose(
        self, caller: Caller, body: wire.Propose, idempotency_key: IdempotencyHeader = None
    ) -> wire.ProposedOut:
        """Propose an update of an agent. Returns its review tier and the deadline.

        `notice` says that no provider serves the model that its patch names.
        """
        proposal = body.to_proposal()
        has_id = "update_id" in body.model_fields_set
        # A generated id is different each time, so with it a repeated request would never match its key.
        digest = proposal.body_hash if has_id else canonical_json.digest(body.model_dump(exclude={"update_id"}))
        key = _idempotency_key(caller, "updates", idempotency_key, digest)
        update = await self._updates.propose(caller, proposal, key)
        # The original status, so that a repeated proposal gets the same response.
        patch = body.changes.agent_patch
        notice = await self._find_patch_problem(caller.tenant, body.agent_id, patch) if patch else None
        return wire.ProposedOut.of(update, status=update.submitted_status, notice=notice)

    @operation("updates.list", "approve", "GET /governance/updates")
    async def list_updates(
        self,
        caller: Caller,
        status: Annotated[Status | None, Query()] = None,
        tier: Annotated[Tier | None, Query()] = None,
        agent_id: Agent = None,
        limit: Limit = 100,
        cursor: Cursor = None,
    ) -> wire.UpdatePage:
        """List updates, newest first."""
        filters = UpdateFilter(_status(status), parse_tier(tier), agent_id, _before(cursor))
        updates = await self._updates.list_page(caller.tenant, filters, limit + 1)
        return wire.UpdatePage(
            updates=[self._update(update) for update in updates[:limit]],
            limit=limit,
            next_cursor=_next_cursor(updates, limit, "submitted_at", "update_id"),
        )

    @operation("updates.get", "approve or propose", "GET /governance/updates/{update_id}", 200, (404,))
    async def read(self, caller: Caller, update_id: UpdateId) -> wire.UpdateDetail:
        """Return an update with the basis of its review tier and the diff of its patch.

        Without `approve` only one's own.
        """
        update = await self._updates.get_visible(caller, update_id)
        problem = await self._updates.find_approval_problem(caller, update)
        details = self._details(update)
        return wire.UpdateDetail.of(update, **details, may_approve=problem is None, approval_problem=problem)

    @operation("updates.approvals", "approve", "GET /governance/approvals")
    async def approvals(
        self,
        caller: Caller,
        tier: Annotated[Tier | None, Query()] = None,
        status: Annotated[Status, Query()] = "pending",
        limit: Limit = 100,
        offset: Offset = 0,
    ) -> wire.Approvals:
        """List updates that wait for approval, oldest first; `count` and `overdue` are for all matching updates."""
        filters = UpdateFilter(_status(status), parse_tier(tier))
        updates, count, overdue = await self._updates.list_oldest(caller.tenant, filters, limit, offset)
        pending = [wire.PendingOut.of(update, risks=update.basis.risks) for update in updates]
        return wire.Approvals(pending=pending, count=count, overdue=overdue)

    @operation("updates.approve", "approve", "POST /governance/updates/{update_id}/approve", errors=(404, 409))
    async def approve(self, caller: Caller, update_id: UpdateId, body: wire.Approve) -> wire.ApprovedOut:
        """Approve an update that somebody else proposed. A patch is deployed immediately."""
        update = await self._updates.approve(caller, update_id, body.to_approval())
        # It is unknown when an update outside this service will be deployed.
        return wire.ApprovedOut.of(update, deployment_time=update.approved_at if update.patched else None)

    @operation("updates.reject", "approve", "POST /governance/updates/{update_id}/reject", errors=(404, 409))
    async def reject(self, caller: Caller, update_id: UpdateId, body: wire.Reject) -> wire.RejectedOut:
        """Reject an update."""
        return wire.RejectedOut.of(await self._updates.reject(caller, update_id, body.to_rejection()))

    @operation("updates.deployed", "admin", "POST /governance/updates/{update_id}/deployed", errors=(404, 409))
    async def deployed(self, caller: Caller, update_id: UpdateId, body: wire.Deployed) -> wire.UpdateOut:
        """Report that an approved update was deployed elsewhere; failed tests roll it back."""
        return self._update(await self._updates.report_deployment(caller, update_id, body.test_results.model_dump()))

    @operation("checkpoints.take", "admin", "POST /governance/checkpoints", 201, (404,))
    async def take(self, caller: Caller, body: wire.TakeCheckpoint) -> wire.CheckpointOut:
        """Take a checkpoint of an agent: its state with a hash."""
        checkpoint = await self._checkpoints.create(caller.tenant, body.agent_id, caller.name)
        return _checkpoint(checkpoint, with_state=True)

    @operation("checkpoints.list", "admin", "GET /governance/checkpoints")
    async def list_checkpoints(
        self, caller: Caller, agent_id: Agent = None, limit: Limit = 100, cursor: Cursor = None
    ) -> wire.CheckpointPage:
        """List checkpoints, newest first, without their states."""
        rows = await self._checkpoints.list_page(caller.tenant, agent_id, _before(cursor), limit + 1)
        return wire.CheckpointPage(
            checkpoints=[_checkpoint(row, with_state=False) for row in rows[:limit]],
            limit=limit,
            next_cursor=_next_cursor(rows, limit, "taken_at", "checkpoint_id"),
        )

    @operation("checkpoints.get", "admin", "GET /governance/checkpoints/{checkpoint_id}", errors=(404,))
    async def read_checkpoint(self, caller: Caller, checkpoint_id: CheckpointId) -> wire.CheckpointOut:
        """Return a checkpoint; `intact` is whether it may be restored."""
        return _checkpoint(await self._checkpoints.get(caller.tenant, checkpoint_id), with_state=True)

    @operation("rollbacks.start", "admin", "POST /governance/rollbacks", 202, (404, 409, 422))
    async def start(
        self, caller: Caller, body: wire.StartRollback, idempotency_key: IdempotencyHeader = None
    ) -> wire.StartedOut:
        """Roll an agent back to a checkpoint."""
        key = _idempotency_key(caller, "rollbacks", idempotency_key, canonical_json.digest(body.model_dump()))
        # The original status, so that a repeated request gets the same response.
        return wire.StartedOut.of(await self._rollbacks.start(caller, body.to_draft(), key), status="initiated")

    @operation("rollbacks.list", "admin", "GET /governance/rollbacks")
    async def list_rollbacks(
        self, caller: Caller, agent_id: Agent = None, limit: Limit = 100, cursor: Cursor = None
    ) -> wire.RollbackPage:
        """List rollbacks, newest first."""
        rows = await self._rollbacks.list_page(caller.tenant, agent_id, _before(cursor), limit + 1)
        following = _next_cursor(rows, limit, "initiated_at", "rollback_id")
        return wire.RollbackPage.of(rollbacks=rows[:limit], limit=limit, next_cursor=following)

    @operation("rollbacks.get", "admin", "GET /governance/rollbacks/{rollback_id}", errors=(404,))
    async def read_rollback(self, caller: Caller, rollback_id: RollbackId) -> wire.RollbackOut:
        """Return a rollback; `verified` is true only if the restored state matches the checkpoint's hash."""
        return wire.RollbackOut.of(await self._rollbacks.get(caller.tenant, rollback_id))

    @operation("agents.compute_trust", "admin", "POST /governance/agents/{agent_id}/trust", errors=(404, 422))
    async def trust(
        self, caller: Caller, agent_id: AgentId, body: wire.ComputeTrust | None = None
    ) -> wire.TrustBreakdownOut:
        """Compute an agent's trust from given metrics or the service's records; stored by default."""
        request = body or wire.ComputeTrust()
        breakdown = await self._scoring.compute(
            caller.tenant, agent_id, request.to_metrics(), caller, persist=request.persist
        )
        reason = breakdown.not_stored_reason if request.persist else None
        return wire.TrustBreakdownOut.of(
            agent_id=agent_id,
            trust_score=breakdown.score,
            persisted=request.persist and reason is None,
            reason=reason,
            breakdown=breakdown,
        )

    def _update(self, update: Update) -> wire.UpdateOut:
        return wire.UpdateOut.of(update, **self._details(update))

    def _details(self, update: Update) -> dict[str, Any]:
        """Return what the record of an update does not have as its own: its basis and the name of its agent."""
        basis = {name: getattr(update.basis, name) for name in ("diff", "trust", "ratio", "reasons", "risks")}
        return basis | {"agent_name": self._find_agent_name(update.tenant, update.agent_id)}


"""`propose` is for a key that proposes updates of its own agent; `admin` covers it."""


def parse_tier(text: str | None) -> int | None:
    """Return the number of a tier given by number or name; None for None. Raises KeyError."""
    numbers = model.TIER_NUMBERS | {str(number): number for number in model.TIER_NAMES}
    return None if text is None else numbers[text]


def _checkpoint(checkpoint: Checkpoint, *, with_state: bool) -> wire.CheckpointOut:
    # The state of a corrupt checkpoint is not what was taken, so it is not shown.
    intact = states.is_intact(checkpoint)
    state = states.open_state(checkpoint).document if with_state and intact else None
    return wire.CheckpointOut.of(checkpoint, intact=intact, state=state)


def _idempotency_key(caller: Principal, route: str, value: str | None, digest: str) -> IdempotencyKey | None:
    return None if value is None else IdempotencyKey(caller.tenant, caller.name, f"governance/{route}", value, digest)


def _status(status: str | None) -> str | None:
    return "submitted" if status == "pending" else status


def _before(cursor: str | None) -> tuple[int, str] | None:
    return None if cursor is None else decode_cursor(cursor, int, str)


def _next_cursor(rows: Sequence[Any], limit: int, moment: str, record_id: str) -> str | None:
    """Return the cursor of the next page, if one row more than `limit` was read."""
    if len(rows) <= limit:
        return None
    last = rows[limit - 1]
    return encode_cursor(getattr(last, moment), getattr(last, record_id))
