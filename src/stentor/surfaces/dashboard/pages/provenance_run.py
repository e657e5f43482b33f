"""Provenance: the run of an event as a tree, and the proof that the event is in the signed log."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.responses import Response

from stentor.core.clock import SECOND
from stentor.core.ids import min_id_at
from stentor.surfaces.dashboard.pages import provenance_rows, provenance_tree
from stentor.surfaces.dashboard.pages.provenance import component, signed, verifier
from stentor.surfaces.dashboard.pages.provenance_check import Check, check
from stentor.surfaces.dashboard.site.calls import Refused, part
from stentor.surfaces.dashboard.site.page import Page

GROWING = 3600 * SECOND
"""How long after its last event a run is looked at for more."""
NO_PROOF = (409, 500)
"""Refusals that stand in the place of the proof: no number yet, and a tree that is damaged."""


async def run(page: Page) -> Response:
    """`check` verifies the proof. A task's id stands for the first event of the task."""
    given = page.param("provenance_id")
    run, names, proof = await asyncio.gather(
        page.get(f"/provenance/{part(given)}"), page.rows.names(page.tenant), _proof(page, given)
    )
    return page.render(
        "provenance-run.html",
        block="proof" if page.query("part") == "proof" else "tree",
        **_shown(page, run, given),
        **proof,
        names=names,
        address=f"/provenance/{part(given)}",
    )


def _shown(page: Page, run: dict[str, Any], given: str) -> dict[str, Any]:
    events = run["events"]
    ids = (event["provenance_id"] for event in events if given in (event["provenance_id"], event["task_id"]))
    asked = given if any(given == event["provenance_id"] for event in events) else next(ids, given)
    return {
        "run": run,
        "asked": asked,
        "marks": provenance_tree.marks(events),
        "links": provenance_tree.all_links(events),
        "lasted": provenance_tree.lasted(events),
        "growing": max(event["provenance_id"] for event in events) > min_id_at(page.site.now() - GROWING),
    }


async def _proof(page: Page, given: str) -> dict[str, Any]:
    """The proof, or the gateway's refusal; what a check found, if one is asked for."""
    try:
        proof = await page.get(f"/provenance/{part(given)}/proof")
    except Refused as refused:
        if refused.status not in NO_PROOF:
            raise
        return {"proof": None, "refused": refused, "health": await component(page), "checked": None}
    checked = await _check(page, proof) if page.query("check") else None
    return {"proof": proof, "refused": None, "health": None, "checked": checked}


async def _check(page: Page, proof: dict[str, Any]) -> Check:
    event_id = proof["provenance_id"]
    recorded, newest = await asyncio.gather(
        page.rows.read(lambda tx: provenance_rows.recorded(tx, page.tenant, event_id)), signed(page)
    )
    key = verifier(newest)
    return check(proof, key.text if key else None, recorded)


ROUTES = [("GET", "/provenance/{provenance_id:path}", run)]
