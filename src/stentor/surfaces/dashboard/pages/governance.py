"""Governance: updates that wait for somebody, and the review of one.

Checkpoints of agents and rollbacks to them.
"""

from __future__ import annotations

import asyncio
from typing import Any, Literal
from urllib.parse import urlencode

from starlette.responses import Response

from stentor.core import runlog_queries
from stentor.core.clock import format_iso
from stentor.core.db import Tx
from stentor.domains.governance import model
from stentor.domains.governance import queries as governance_queries
from stentor.domains.governance.operations import parse_tier
from stentor.domains.registry import queries as registry_queries
from stentor.surfaces.dashboard.gateway import GatewayError, quote_segment
from stentor.surfaces.dashboard.presenters import agent_view, change_review
from stentor.surfaces.dashboard.site.page import PageRequest

PAGE_SIZE = 50
TABS = {
    "pending": ("waiting", ("submitted",)),
    "approved": ("approved", ("approved",)),
    "deploying": ("deploying", ("deploying",)),
    "deployed": ("deployed", ("deployed",)),
    "rejected": ("rejected", ("rejected",)),
    "rolled_back": ("rolled back", ("rolled_back",)),
    "all": ("all", ("submitted", "approved", "deploying", "deployed", "rejected", "rolled_back")),
}
"""Value of the query: its name, and the states that it counts."""
TIERS = model.TIER_NAMES
MAX_HISTORY_EVENTS = 20
"""Events of one record that are listed."""
TEST_KINDS = ("unit_tests", "integration_tests")
DECISION_ERRORS = (400, 403, 409, 422)
"""Refusals that the review shows in its place."""


async def list_updates(page: PageRequest) -> Response:
    """What waits comes first; the gateway refuses a status or a tier that there is not."""
    wanted = {
        "status": page.query_param("status") or "pending",
        "tier": page.query_param("tier"),
        "agent": page.query_param("agent"),
    }
    status = "" if wanted["status"] == "all" else wanted["status"]
    query = {
        "status": status,
        "tier": wanted["tier"],
        "agent_id": wanted["agent"],
        "cursor": page.query_param("cursor"),
    }
    found = await page.call("updates.list", limit=PAGE_SIZE, **query)
    now, tier = page.site.now(), parse_tier(wanted["tier"] or None) or 0
    (counts, overdue), names = await asyncio.gather(
        page.read(governance_queries.count_updates, wanted["agent"], tier, now),
        page.read(registry_queries.read_names),
    )
    return page.render(
        "governance.html",
        block="rows" if page.query_param("cursor") else "results",
        updates=[{**one, "overdue": is_overdue(one, page)} for one in found["updates"]],
        more=_address({**wanted, "cursor": found["next_cursor"]}) if found["next_cursor"] else None,
        tabs=[_tab(name, wanted, counts) for name in TABS],
        overdue=overdue,
        names=names,
        wanted=wanted,
        tiers=TIERS,
    )


def is_overdue(update: dict[str, Any], page: PageRequest) -> bool:
    """Whether it waits past its deadline. Times of the gateway are of one form, so they compare as texts."""
    return bool(update["status"] == "submitted" and update["approval_deadline"] < format_iso(page.site.now()))


def _tab(name: str, wanted: dict[str, str], counts: dict[str, int]) -> dict[str, Any]:
    said, states = TABS[name]
    n = sum(counts.get(state, 0) for state in states)
    return {"name": said, "n": n, "address": _address({**wanted, "status": name}), "here": wanted["status"] == name}


def _address(query: dict[str, str]) -> str:
    return f"/governance?{urlencode({name: value for name, value in query.items() if value})}"


async def show_update(page: PageRequest) -> Response:
    return await _render_update(page)


async def _render_update(page: PageRequest, refused: GatewayError | None = None) -> Response:
    """The update; after a refusal with the gateway's words and what was typed."""
    update_id = page.path_param("update_id")
    found = await page.call("updates.get", update_id=update_id)
    moves, names = await asyncio.gather(
        page.read(_read_history, "update", update_id, found["provenance_id"]),
        page.read(registry_queries.read_names),
    )
    changes = dict(found["changes"])
    changes["agent_patch"] = agent_view.mask_secrets(changes.get("agent_patch"))
    return page.render(
        "update.html",
        200 if refused is None else refused.status,
        block="live",
        update={**found, "overdue": is_overdue(found, page), "changes": changes},
        address=f"/governance/updates/{quote_segment(update_id)}",
        review=change_review.review_diff(found["diff"]),
        moves=moves,
        names=names,
        tiers=TIERS,
        kinds=TEST_KINDS,
        refused=refused,
        typed=await page.read_form() if refused else {},
    )


async def approve_update(page: PageRequest) -> Response:
    form = await page.read_form()
    said = {"approved_by": page.session.name, "rationale": form.get("rationale", "")}
    body = {**said, "override_risk": form.get("override_risk") == "on"}
    return await _post_decision(page, "approve", "approved", body)


async def reject_update(page: PageRequest) -> Response:
    form = await page.read_form()
    said = {"reason": form.get("reason", ""), "feedback": form.get("feedback", "")}
    body = {"rejected_by": page.session.name, **said}
    return await _post_decision(page, "reject", "rejected", body)


async def report_deployed(page: PageRequest) -> Response:
    """Of an update that lives outside of this service; failed tests roll the agent back."""
    form = await page.read_form()
    kinds = [kind for kind in TEST_KINDS if form.get(f"{kind}_passed") or form.get(f"{kind}_failed")]
    results = {
        kind: {end: _parse_count(form.get(f"{kind}_{end}", "")) for end in ("passed", "failed")} for kind in kinds
    }
    return await _post_decision(page, "deployed", "saved", {"test_results": results})


def _parse_count(text: str) -> int | str:
    """What is no number is left to the gateway to refuse."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 12 else text or 0


async def _post_decision(page: PageRequest, action: str, notice: str, body: dict[str, Any]) -> Response:
    update_id = page.path_param("update_id")
    try:
        await page.call(f"updates.{action}", update_id=update_id, body=body)
    except GatewayError as refused:
        if refused.status not in DECISION_ERRORS:
            raise
        return await _render_update(page, refused)
    return page.redirect(f"/governance/updates/{quote_segment(update_id)}", notice)


ROUTES = [
    ("GET", "/governance", list_updates),
    ("GET", "/governance/updates/{update_id}", show_update),
    ("POST", "/governance/updates/{update_id}/approve", approve_update),
    ("POST", "/governance/updates/{update_id}/reject", reject_update),
    ("POST", "/governance/updates/{update_id}/deployed", report_deployed),
]


CHECKPOINT_PAGE_SIZE = 50
ROLLBACK_STEPS = ("initiated", "in_progress", "completed")


async def list_checkpoints(page: PageRequest) -> Response:
    return await _render_list(page, "checkpoints")


async def list_rollbacks(page: PageRequest) -> Response:
    return await _render_list(page, "rollbacks")


async def _render_list(page: PageRequest, kind: str) -> Response:
    """Newest first."""
    agent_id = page.query_param("agent")
    found, names = await asyncio.gather(
        page.call(f"{kind}.list", limit=CHECKPOINT_PAGE_SIZE, agent_id=agent_id, cursor=page.query_param("cursor")),
        page.read(registry_queries.read_names),
    )
    query = {"agent": agent_id, "cursor": found["next_cursor"]}
    address = f"/governance/{kind}?{urlencode({name: value for name, value in query.items() if value})}"
    return page.render(
        f"{kind}.html",
        block="rows" if page.query_param("cursor") else "results",
        records=found[kind],
        more=address if found["next_cursor"] else None,
        names=names,
        agent_id=agent_id,
    )


async def show_checkpoint(page: PageRequest) -> Response:
    checkpoint_id = page.path_param("checkpoint_id")
    found = await page.call("checkpoints.get", checkpoint_id=checkpoint_id)
    record, names = await asyncio.gather(_find_agent(page, found["agent_id"]), page.read(registry_queries.read_names))
    state = found["state"]
    return page.render(
        "checkpoint.html",
        block="live",
        checkpoint=found,
        state=state,
        runtime=agent_view.present_runtime(state["config"]["runtime"]) if state else [],
        review=change_review.review_rollback(state, record) if state and record else None,
        names=names,
    )


async def _find_agent(page: PageRequest, agent_id: str) -> dict[str, Any] | None:
    try:
        return dict(await page.call("agents.get", agent_id=agent_id))
    except GatewayError as refused:
        if refused.status == 404:
            return None
        raise


async def show_rollback(page: PageRequest) -> Response:
    rollback_id = page.path_param("rollback_id")
    found = await page.call("rollbacks.get", rollback_id=rollback_id)
    first = found["provenance_id"]
    moves, names = await asyncio.gather(
        page.read(_read_history, "rollback", rollback_id, first),
        page.read(registry_queries.read_names),
    )
    steps = ROLLBACK_STEPS if found["status"] != "failed" else (*ROLLBACK_STEPS[:2], "failed")
    return page.render("rollback.html", block="live", rollback=found, moves=moves, names=names, steps=steps)


async def start_rollback(page: PageRequest) -> Response:
    """The gateway wants a reason, and takes no checkpoint that is damaged."""
    form = await page.read_form()
    said = {"reason": form.get("reason", ""), "details": form.get("details", "")}
    body = {"checkpoint_id": page.path_param("checkpoint_id"), "initiated_by": page.session.name, **said}
    started = await page.call("rollbacks.start", body=body)
    return page.redirect(f"/governance/rollbacks/{quote_segment(started['rollback_id'])}", "rolled-back")


CHECKPOINT_ROUTES = [
    ("GET", "/governance/checkpoints", list_checkpoints),
    ("GET", "/governance/checkpoints/{checkpoint_id}", show_checkpoint),
    ("POST", "/governance/checkpoints/{checkpoint_id}/rollback", start_rollback),
    ("GET", "/governance/rollbacks", list_rollbacks),
    ("GET", "/governance/rollbacks/{rollback_id}", show_rollback),
]


def _read_history(
    tx: Tx, tenant: str, kind: Literal["update", "rollback"], record_id: str, first: str
) -> list[dict[str, Any]]:
    """Return the events of a record, oldest first, from `first` on; events that the run log lost are left out."""
    events: list[dict[str, Any]] = []
    event_id = governance_queries.find_head_event(tx, tenant, kind, record_id)
    while event_id is not None and len(events) < MAX_HISTORY_EVENTS:
        event = runlog_queries.find_event(tx, tenant, event_id)
        if event is None:
            break
        events.append(
            {
                "event_id": event_id,
                "timestamp": format_iso(event.happened_at),
                "event_type": event.event_type,
                "message": event.message,
                "metadata": event.metadata,
            }
        )
        event_id = None if event_id == first else event.parent_id
    return events[::-1]
