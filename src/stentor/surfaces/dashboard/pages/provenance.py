"""Provenance: the state of the log and its checkpoints, and the way to a run.

Provenance: the run of an event as a tree, and the proof that the event is in the signed log.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from starlette.responses import RedirectResponse, Response

from stentor.core.clock import SECOND, format_iso_or_none
from stentor.core.db import Tx
from stentor.core.ids import min_id_at
from stentor.domains.provenance import store as provenance_store
from stentor.domains.provenance.signed_note import NoteError, NoteVerifier, parse_verifier
from stentor.domains.registry import queries as registry_queries
from stentor.surfaces.dashboard.gateway import GatewayError, quote_segment
from stentor.surfaces.dashboard.presenters import provenance_view
from stentor.surfaces.dashboard.presenters.provenance_view import ProofCheck, check_proof
from stentor.surfaces.dashboard.site.page import PageRequest

LISTED_RUNS = 25
"""Runs that are shown as ways in."""


async def show_provenance(page: PageRequest) -> Response:
    """With `q` to the run of a task or an event; what is not found says so here."""
    text = page.query_param("q")
    if text and (found := await _find_run(page, text)):
        return RedirectResponse(f"/provenance/{quote_segment(found)}", 303)
    if page.query_param("part") == "log":
        return page.render(
            "provenance.html", block="log", **await _read_log_state(page), signed=await read_newest_checkpoint(page)
        )
    found_log, checkpoint, tasks, names = await asyncio.gather(
        _read_log_state(page),
        read_newest_checkpoint(page),
        page.call("tasks.list", limit=LISTED_RUNS),
        page.read(registry_queries.read_names),
    )
    return page.render(
        "provenance.html",
        block="runs",
        text=text,
        **found_log,
        signed=checkpoint,
        verifier=checkpoint_verifier(checkpoint),
        tasks=tasks["tasks"],
        names=names,
    )


async def _find_run(page: PageRequest, text: str) -> str | None:
    """The provenance id that a task id or a provenance id leads to."""
    try:
        return str((await page.call("tasks.get", task_id=text))["provenance_id"])
    except GatewayError as refused:
        if refused.status not in (400, 404):
            raise
    try:
        await page.call("provenance.run", provenance_id=text)
    except GatewayError as refused:
        if refused.status not in (400, 404):
            raise
        return None
    return text


async def _read_log_state(page: PageRequest) -> dict[str, Any]:
    state, health = await asyncio.gather(page.site.db.read(_read_tree_state), read_provenance_health(page))
    return {"state": state, "since": format_iso_or_none(state.since), "health": health}


async def read_provenance_health(page: PageRequest) -> dict[str, Any]:
    """The provenance as the gateway's health tells it, which it does with 503 too."""

    async def ask() -> dict[str, Any]:
        parts = (await page.read_health())["components"]
        return dict(parts.get("provenance") or {"status": "unknown", "detail": "The gateway does not report it."})

    found: dict[str, Any] = await page.site.cache.get_or_create("provenance", ask)
    return found


async def read_newest_checkpoint(page: PageRequest) -> dict[str, Any] | None:
    """The newest checkpoint; None before the first."""
    try:
        return dict(await page.call("provenance.checkpoint"))
    except GatewayError as refused:
        if refused.status != 404:
            raise
        return None


def checkpoint_verifier(checkpoint: dict[str, Any] | None) -> NoteVerifier | None:
    """The public key that a checkpoint came with, if it is one."""
    try:
        return parse_verifier(checkpoint["key"]) if checkpoint and checkpoint["key"] else None
    except NoteError:
        return None


async def sign_checkpoint(page: PageRequest) -> Response:
    await page.call("provenance.sign")
    return page.redirect("/provenance", "signed")


ROUTES = [("GET", "/provenance", show_provenance), ("POST", "/provenance/checkpoint", sign_checkpoint)]


GROWING_US = 3600 * SECOND
"""How long after its last event a run is looked at for more."""
NO_PROOF_STATUSES = (409, 500)
"""Refusals that stand in the place of the proof: no number yet, and a tree that is damaged."""


async def show_run(page: PageRequest) -> Response:
    """`check` verifies the proof. A task's id stands for the first event of the task."""
    given = page.path_param("provenance_id")
    run, names, proof = await asyncio.gather(
        page.call("provenance.run", provenance_id=given),
        page.read(registry_queries.read_names),
        _read_proof(page, given),
    )
    return page.render(
        "provenance-run.html",
        block="proof" if page.query_param("part") == "proof" else "tree",
        **_present_run(page, run, given),
        **proof,
        names=names,
        address=f"/provenance/{quote_segment(given)}",
    )


def _present_run(page: PageRequest, run: dict[str, Any], given: str) -> dict[str, Any]:
    events = run["events"]
    ids = (event["provenance_id"] for event in events if given in (event["provenance_id"], event["task_id"]))
    asked = given if any(given == event["provenance_id"] for event in events) else next(ids, given)
    return {
        "run": run,
        "asked": asked,
        "marks": provenance_view.walk_tree(events),
        "links": provenance_view.run_links(events),
        "lasted": provenance_view.run_duration_ms(events),
        "growing": max(event["provenance_id"] for event in events) > min_id_at(page.site.now() - GROWING_US),
    }


async def _read_proof(page: PageRequest, given: str) -> dict[str, Any]:
    """The proof, or the gateway's refusal; what a check found, if one is asked for."""
    try:
        proof = await page.call("provenance.proof", provenance_id=given)
    except GatewayError as refused:
        if refused.status not in NO_PROOF_STATUSES:
            raise
        return {"proof": None, "refused": refused, "health": await read_provenance_health(page), "checked": None}
    checked = await _verify_proof(page, proof) if page.query_param("check") else None
    return {"proof": proof, "refused": None, "health": None, "checked": checked}


async def _verify_proof(page: PageRequest, proof: dict[str, Any]) -> ProofCheck:
    event_id = proof["provenance_id"]
    recorded, newest = await asyncio.gather(
        page.read(provenance_store.find_leaf_hash, event_id),
        read_newest_checkpoint(page),
    )
    key = checkpoint_verifier(newest)
    return check_proof(proof, key.text if key else None, recorded)


RUN_ROUTES = [("GET", "/provenance/{provenance_id:path}", show_run)]


class _TreeState(msgspec.Struct, frozen=True):
    """The Merkle tree that all tenants share; `since` is when the oldest unnumbered event happened, in microseconds."""

    size: int
    waiting: int
    since: int | None


def _read_tree_state(tx: Tx) -> _TreeState:
    lag = provenance_store.numbering_lag(tx)
    return _TreeState(provenance_store.tree_size(tx), lag.events, lag.oldest_at)
