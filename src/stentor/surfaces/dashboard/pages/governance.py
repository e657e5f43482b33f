"""Governance: updates that wait for somebody, and the review of one."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import urlencode

from starlette.responses import Response

from stentor.core.clock import format_iso
from stentor.domains.governance import model
from stentor.domains.governance.shown import tier_of
from stentor.surfaces.dashboard.pages import governance_rows, masking, review
from stentor.surfaces.dashboard.site.calls import Refused, part
from stentor.surfaces.dashboard.site.page import Page

SHOWN = 50
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
TESTS = ("unit_tests", "integration_tests")
DECIDED = (400, 403, 409, 422)
"""Refusals that the review shows in its place."""


async def updates(page: Page) -> Response:
    """What waits comes first; the gateway refuses a status or a tier that there is not."""
    wanted = {"status": page.query("status") or "pending", "tier": page.query("tier"), "agent": page.query("agent")}
    status = "" if wanted["status"] == "all" else wanted["status"]
    query = {"status": status, "tier": wanted["tier"], "agent_id": wanted["agent"], "cursor": page.query("cursor")}
    found = await page.get("/governance/updates", limit=SHOWN, **query)
    now, tier = page.site.now(), tier_of(wanted["tier"] or None) or 0
    (counts, overdue), names = await asyncio.gather(
        page.rows.read(lambda tx: governance_rows.counts(tx, page.tenant, wanted["agent"], tier, now)),
        page.rows.names(page.tenant),
    )
    return page.render(
        "governance.html",
        block="rows" if page.query("cursor") else "results",
        updates=[{**one, "overdue": late(one, page)} for one in found["updates"]],
        more=_address({**wanted, "cursor": found["next_cursor"]}) if found["next_cursor"] else None,
        tabs=[_tab(name, wanted, counts) for name in TABS],
        overdue=overdue,
        names=names,
        wanted=wanted,
        tiers=TIERS,
    )


def late(update: dict[str, Any], page: Page) -> bool:
    """Whether it waits past its deadline. Times of the gateway are of one form, so they compare as texts."""
    return bool(update["status"] == "submitted" and update["approval_deadline"] < format_iso(page.site.now()))


def _tab(name: str, wanted: dict[str, str], counts: dict[str, int]) -> dict[str, Any]:
    said, states = TABS[name]
    n = sum(counts.get(state, 0) for state in states)
    return {"name": said, "n": n, "address": _address({**wanted, "status": name}), "here": wanted["status"] == name}


def _address(query: dict[str, str]) -> str:
    return f"/governance?{urlencode({name: value for name, value in query.items() if value})}"


async def update(page: Page) -> Response:
    return await _review(page)


async def _review(page: Page, refused: Refused | None = None) -> Response:
    """The update; after a refusal with the gateway's words and what was typed."""
    update_id = page.param("update_id")
    found = await page.get(f"/governance/updates/{part(update_id)}")
    moves, names = await asyncio.gather(
        page.rows.read(lambda tx: governance_rows.moves(tx, page.tenant, "update", update_id, found["provenance_id"])),
        page.rows.names(page.tenant),
    )
    changes = dict(found["changes"])
    changes["agent_patch"] = masking.masked(changes.get("agent_patch"))
    return page.render(
        "update.html",
        200 if refused is None else refused.status,
        block="live",
        update={**found, "overdue": late(found, page), "changes": changes},
        address=f"/governance/updates/{part(update_id)}",
        review=review.of(found["diff"]),
        moves=moves,
        names=names,
        tiers=TIERS,
        kinds=TESTS,
        refused=refused,
        typed=await page.form() if refused else {},
    )


async def approve(page: Page) -> Response:
    form = await page.form()
    said = {"approved_by": page.session.name, "rationale": form.get("rationale", "")}
    body = {**said, "override_risk": form.get("override_risk") == "on"}
    return await _decide(page, "approve", "approved", body)


async def reject(page: Page) -> Response:
    form = await page.form()
    said = {"reason": form.get("reason", ""), "feedback": form.get("feedback", "")}
    body = {"rejected_by": page.session.name, **said}
    return await _decide(page, "reject", "rejected", body)


async def deployed(page: Page) -> Response:
    """Of an update that lives outside of this service; failed tests roll the agent back."""
    form = await page.form()
    kinds = [kind for kind in TESTS if form.get(f"{kind}_passed") or form.get(f"{kind}_failed")]
    results = {kind: {end: _count(form.get(f"{kind}_{end}", "")) for end in ("passed", "failed")} for kind in kinds}
    return await _decide(page, "deployed", "saved", {"test_results": results})


def _count(text: str) -> int | str:
    """What is no number is left to the gateway to refuse."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 12 else text or 0


async def _decide(page: Page, verb: str, notice: str, body: dict[str, Any]) -> Response:
    address = f"/governance/updates/{part(page.param('update_id'))}"
    try:
        await page.post(f"{address}/{verb}", body)
    except Refused as refused:
        if refused.status not in DECIDED:
            raise
        return await _review(page, refused)
    return page.back(address, notice)


ROUTES = [
    ("GET", "/governance", updates),
    ("GET", "/governance/updates/{update_id}", update),
    ("POST", "/governance/updates/{update_id}/approve", approve),
    ("POST", "/governance/updates/{update_id}/reject", reject),
    ("POST", "/governance/updates/{update_id}/deployed", deployed),
]
