"""The governance pages: updates and their review, agent checkpoints, and rollbacks to them."""

from __future__ import annotations

import asyncio
from typing import Literal, TypedDict

from starlette.responses import Response

from stentor.core import runlog_queries
from stentor.core.clock import format_iso
from stentor.core.db import Tx
from stentor.core.jsontext import JsonObject
from stentor.core.runlog import RunLogEvent
from stentor.domains.governance import model
from stentor.domains.governance import store as governance_store
from stentor.domains.governance.operations import parse_tier
from stentor.domains.registry import queries as registry_queries
from stentor.surfaces.dashboard.gateway import GatewayError, quote_segment
from stentor.surfaces.dashboard.pages.agents.agents import list_allowed, read_agent_choices
from stentor.surfaces.dashboard.presenters import agent_view, change_review
from stentor.surfaces.dashboard.site.forms import int_or_text
from stentor.surfaces.dashboard.site.page import PageRequest, encode_query

PAGE_SIZE = 50
TABS = {
    "pending": ("pending", ("submitted",)),
    "approved": ("approved", ("approved",)),
    "deploying": ("deploying", ("deploying",)),
    "deployed": ("deployed", ("deployed",)),
    "rejected": ("rejected", ("rejected",)),
    "rolled_back": ("rolled back", ("rolled_back",)),
    "all": ("all", ("submitted", "approved", "deploying", "deployed", "rejected", "rolled_back")),
}
"""The label of each value of `?status=`, and the statuses that it counts."""
TIERS = model.TIER_NAMES
TIER_MEANINGS = {
    model.AUTO: "A small change of a trusted agent: it is deployed without a review.",
    model.MONITORED: "A moderate change: someone other than the proposer must approve it within a day.",
    model.HUMAN: "A far-reaching change: someone other than the proposer must approve it within three days.",
}
MAX_HISTORY_EVENTS = 20
"""Events per record."""
TEST_KINDS = ("unit_tests", "integration_tests")
DECISION_ERRORS = (400, 403, 409, 422)
"""Statuses of errors that the review form displays itself."""
CHECKPOINT_PAGE_SIZE = 50
ROLLBACK_STEPS = ("initiated", "in_progress", "completed")


async def list_updates(page: PageRequest) -> Response:
    """List updates, pending ones by default. The gateway rejects an unknown status or tier."""
    filters = {
        "status": page.query_param("status") or "pending",
        "tier": page.query_param("tier"),
        "agent": page.query_param("agent"),
    }
    result = await page.call(
        "updates.list",
        limit=PAGE_SIZE,
        status="" if filters["status"] == "all" else filters["status"],
        tier=filters["tier"],
        agent_id=filters["agent"],
        cursor=page.query_param("cursor"),
    )
    now, tier = page.site.now(), parse_tier(filters["tier"] or None) or 0
    (counts, overdue), names, agent_choices = await asyncio.gather(
        page.read(governance_store.count_updates_by_status, filters["agent"], tier, now),
        page.read(registry_queries.read_names),
        read_agent_choices(page, filters["agent"]),
    )
    return page.render(
        "governance.html",
        block="rows" if page.query_param("cursor") else "results",
        updates=[{**update, "overdue": is_overdue(update, page)} for update in result["updates"]],
        more=_list_url({**filters, "cursor": result["next_cursor"]}) if result["next_cursor"] else None,
        tabs=[_present_tab(status, filters, counts) for status in TABS],
        overdue=overdue,
        names=names,
        agent_choices=agent_choices,
        filters=filters,
        tiers=TIERS,
    )


def is_overdue(update: JsonObject, page: PageRequest) -> bool:
    """Return whether a pending update is past its deadline. The gateway's times have one format and compare as text."""
    return bool(update["status"] == "submitted" and update["approval_deadline"] < format_iso(page.site.now()))


class Tab(TypedDict):
    name: str
    n: int
    address: str
    here: bool


def _present_tab(status: str, filters: dict[str, str], counts: dict[str, int]) -> Tab:
    label, states = TABS[status]
    return {
        "name": label,
        "n": sum(counts.get(state, 0) for state in states),
        "address": _list_url({**filters, "status": status}),
        "here": filters["status"] == status,
    }


def _list_url(query: dict[str, str]) -> str:
    return f"/governance?{encode_query(query)}"


async def _render_update(page: PageRequest, error: GatewayError | None = None) -> Response:
    """Render an update; after a rejected decision with the gateway's message and the submitted fields."""
    update_id = page.path_param("update_id")
    update = await page.call("updates.get", update_id=update_id)
    history, names = await asyncio.gather(
        page.read(_read_history, "update", update_id, update["provenance_id"]),
        page.read(registry_queries.read_names),
    )
    # The patch may set options of a runtime that are secrets; `review_diff` masks its own lines.
    changes = dict(update["changes"])
    changes["agent_patch"] = agent_view.mask_secrets(changes.get("agent_patch"))
    return page.render(
        "update.html",
        200 if error is None else error.status,
        block="head_of_update" if page.query_param("part") == "head" else "live",
        update={**update, "overdue": is_overdue(update, page), "changes": changes},
        address=f"/governance/updates/{quote_segment(update_id)}",
        review=change_review.review_diff(update["diff"]),
        history=history,
        names=names,
        tiers=TIERS,
        tier_meaning=TIER_MEANINGS[update["tier"]],
        kinds=TEST_KINDS,
        rollback_id=_find_rollback(history),
        allowed=await list_allowed(page, update["agent_id"]),
        error=error,
        typed=await page.read_form() if error else {},
    )


async def approve_update(page: PageRequest) -> Response:
    form = await page.read_form()
    body = {
        "approved_by": page.session.name,
        "rationale": form.get("reason", ""),
        "override_risk": form.get("override_risk") == "on",
    }
    return await _post_decision(page, "approve", "approved", body)


async def reject_update(page: PageRequest) -> Response:
    form = await page.read_form()
    body = {
        "rejected_by": page.session.name,
        "reason": form.get("reason", ""),
        "feedback": form.get("feedback", ""),
    }
    return await _post_decision(page, "reject", "rejected", body)


async def report_deployed(page: PageRequest) -> Response:
    """Report the deployment of an update outside Stentor; failed tests roll the agent's record back."""
    form = await page.read_form()
    kinds = [kind for kind in TEST_KINDS if form.get(f"{kind}_passed") or form.get(f"{kind}_failed")]
    results = {
        kind: {end: int_or_text(form.get(f"{kind}_{end}") or "0") for end in ("passed", "failed")} for kind in kinds
    }
    return await _post_decision(page, "deployed", "saved", {"test_results": results})


async def _post_decision(page: PageRequest, action: str, notice: str, body: JsonObject) -> Response:
    update_id = page.path_param("update_id")
    try:
        await page.call(f"updates.{action}", update_id=update_id, body=body)
    except GatewayError as error:
        return await _render_update(page, error.require_status(*DECISION_ERRORS))
    return page.redirect(f"/governance/updates/{quote_segment(update_id)}", notice)


async def list_checkpoints(page: PageRequest) -> Response:
    return await _render_list(page, "checkpoints")


async def list_rollbacks(page: PageRequest) -> Response:
    return await _render_list(page, "rollbacks")


async def _render_list(page: PageRequest, kind: Literal["checkpoints", "rollbacks"]) -> Response:
    """List checkpoints or rollbacks, newest first."""
    agent_id = page.query_param("agent")
    result, names, agent_choices = await asyncio.gather(
        page.call(f"{kind}.list", limit=CHECKPOINT_PAGE_SIZE, agent_id=agent_id, cursor=page.query_param("cursor")),
        page.read(registry_queries.read_names),
        read_agent_choices(page, agent_id),
    )
    query = {"agent": agent_id, "cursor": result["next_cursor"]}
    next_url = f"/governance/{kind}?{encode_query(query)}"
    return page.render(
        f"{kind}.html",
        block="rows" if page.query_param("cursor") else "results",
        records=result[kind],
        more=next_url if result["next_cursor"] else None,
        names=names,
        agent_choices=agent_choices,
        agent_id=agent_id,
    )


async def show_checkpoint(page: PageRequest) -> Response:
    checkpoint_id = page.path_param("checkpoint_id")
    checkpoint = await page.call("checkpoints.get", checkpoint_id=checkpoint_id)
    record, names = await asyncio.gather(
        page.find("agents.get", agent_id=checkpoint["agent_id"]), page.read(registry_queries.read_names)
    )
    state = checkpoint["state"]  # None for a corrupted checkpoint
    return page.render(
        "checkpoint.html",
        block="live",
        checkpoint=checkpoint,
        allowed=await list_allowed(page, checkpoint["agent_id"]),
        state=state,
        runtime=agent_view.present_runtime(state["config"]["runtime"]) if state else [],
        # Without a record the agent was deleted, so there is nothing to compare with.
        review=change_review.review_rollback(state, record) if state and record else None,
        names=names,
    )


async def show_rollback(page: PageRequest) -> Response:
    rollback_id = page.path_param("rollback_id")
    rollback = await page.call("rollbacks.get", rollback_id=rollback_id)
    history, names = await asyncio.gather(
        page.read(_read_history, "rollback", rollback_id, rollback["provenance_id"]),
        page.read(registry_queries.read_names),
    )
    steps = ROLLBACK_STEPS if rollback["status"] != "failed" else (*ROLLBACK_STEPS[:2], "failed")
    return page.render("rollback.html", block="live", rollback=rollback, history=history, names=names, steps=steps)


async def start_rollback(page: PageRequest) -> Response:
    """Start a rollback. The gateway requires a reason and rejects a corrupted checkpoint."""
    form = await page.read_form()
    body = {
        "checkpoint_id": page.path_param("checkpoint_id"),
        "initiated_by": page.session.name,
        "reason": form.get("reason", ""),
        "details": form.get("details", ""),
    }
    rollback = await page.call("rollbacks.start", body=body)
    return page.redirect(f"/governance/rollbacks/{quote_segment(rollback['rollback_id'])}", "rolled-back")


def _read_history(
    tx: Tx, tenant: str, kind: Literal["update", "rollback"], record_id: str, first: str
) -> list[RunLogEvent]:
    """Return the newest events of a record, oldest first.

    Follows the parents back to the event `first`; stops at an event that is no longer in the run log.
    """
    events: list[RunLogEvent] = []
    event_id = governance_store.find_head_event(tx, tenant, kind, record_id)
    while event_id is not None and len(events) < MAX_HISTORY_EVENTS:
        event = runlog_queries.find_event(tx, tenant, event_id)
        if event is None:
            break
        events.append(event)
        event_id = None if event_id == first else event.parent_id
    return events[::-1]


def _find_rollback(history: list[RunLogEvent]) -> str | None:
    """Return the id of the rollback that undid an update."""
    if not history or history[-1].event_type != "update_rolled_back":
        return None
    found = history[-1].metadata.get("rollback_id")
    return found if isinstance(found, str) else None


ROUTES = [
    ("GET", "/governance", list_updates),
    ("GET", "/governance/updates/{update_id}", _render_update),
    ("POST", "/governance/updates/{update_id}/approve", approve_update),
    ("POST", "/governance/updates/{update_id}/reject", reject_update),
    ("POST", "/governance/updates/{update_id}/deployed", report_deployed),
    ("GET", "/governance/checkpoints", list_checkpoints),
    ("GET", "/governance/checkpoints/{checkpoint_id}", show_checkpoint),
    ("POST", "/governance/checkpoints/{checkpoint_id}/rollback", start_rollback),
    ("GET", "/governance/rollbacks", list_rollbacks),
    ("GET", "/governance/rollbacks/{rollback_id}", show_rollback),
]
