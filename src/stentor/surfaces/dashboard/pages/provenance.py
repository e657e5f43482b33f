"""The provenance pages: the state of the log and its checkpoints, a run as a tree, and the proof of one event."""

from __future__ import annotations

import asyncio

import msgspec
from starlette.responses import RedirectResponse, Response

from stentor.core.clock import SECOND, format_iso_or_none
from stentor.core.db import Tx
from stentor.core.ids import min_id_at
from stentor.core.jsontext import JsonObject
from stentor.domains.provenance import store as provenance_store
from stentor.domains.provenance.recent_check import RecentCheck, check_recent
from stentor.domains.provenance.signing.signed_note import NoteError, NoteVerifier, parse_verifier
from stentor.domains.registry import queries as registry_queries
from stentor.domains.tasks.reading import list_queries
from stentor.domains.tasks.reading.list_model import TaskFilter
from stentor.surfaces.dashboard.gateway import GatewayError, quote_segment
from stentor.surfaces.dashboard.presenters import provenance_view
from stentor.surfaces.dashboard.presenters.provenance_view import ProofCheck, check_proof
from stentor.surfaces.dashboard.site.page import HTMX_HEADER, PageRequest, action

LISTED_RUNS = 25
MAX_OPENED = 200
"""Events of a run whose details are on its page; of a longer one only those of the event that was asked for."""
GROWING_US = 3600 * SECOND
"""How long after its last event a run is still reloaded for new ones."""
NO_PROOF_STATUSES = (409, 500)
"""Statuses of errors displayed in place of the proof: the event is not numbered yet, or the tree is corrupted."""


async def show_provenance(page: PageRequest) -> Response:
    """Render the log's state and recent runs; with `q`, redirect to the run of that task or event."""
    text = page.query_param("q")
    if text and (provenance_id := await _find_run(page, text)):
        return RedirectResponse(f"/provenance/{quote_segment(provenance_id)}", 303)
    checkpoint = await read_newest_checkpoint(page)
    # Without the header the whole page is rendered, which shows more.
    if page.query_param("part") == "log" and page.request.headers.get(HTMX_HEADER):
        log_state = await _read_log_state(page, checkpoint)
        return page.render("provenance.html", block="log", **log_state, signed=checkpoint)
    log_state, tasks, names = await asyncio.gather(
        _read_log_state(page, checkpoint),
        page.call("tasks.list", limit=LISTED_RUNS),
        page.read(registry_queries.read_names),
    )
    return page.render(
        "provenance.html",
        block="runs",
        text=text,
        **log_state,
        signed=checkpoint,
        verifier=checkpoint_verifier(checkpoint),
        tasks=tasks["tasks"],
        names=names,
    )


async def _find_run(page: PageRequest, text: str) -> str | None:
    """Return the provenance id of a task id or an event's provenance id, None for an unknown one."""
    try:
        return str((await page.call("tasks.get", task_id=text))["provenance_id"])
    except GatewayError as error:
        if error.status not in (400, 404):
            raise
    try:
        await page.call("provenance.run", provenance_id=text)
    except GatewayError as error:
        if error.status not in (400, 404):
            raise
        return None
    return text


async def _read_log_state(page: PageRequest, checkpoint: JsonObject | None) -> JsonObject:
    state, health = await asyncio.gather(page.site.db.read(_read_tree_state), read_provenance_health(page))
    key = checkpoint_verifier(checkpoint)
    check: RecentCheck = await page.site.cache.get_or_create(
        # By size and key: while the tree does not grow, the check would find the same.
        ("recent check", state.size, key and key.text),
        lambda: page.site.db.read(lambda tx: check_recent(tx, key)),
    )
    return {"state": state, "since": format_iso_or_none(state.since), "health": health, "check": check}


async def read_provenance_health(page: PageRequest) -> JsonObject:
    """Return the component `provenance` of the gateway's health report; may be seconds old."""

    async def read() -> JsonObject:
        components = (await page.read_health())["components"]
        return dict(components.get("provenance") or {"status": "unknown", "detail": "Not reported by the gateway."})

    health: JsonObject = await page.site.cache.get_or_create("provenance", read)
    return health


async def read_newest_checkpoint(page: PageRequest) -> JsonObject | None:
    """Return the newest checkpoint, None before the first one."""
    return await page.find("provenance.checkpoint")


def checkpoint_verifier(checkpoint: JsonObject | None) -> NoteVerifier | None:
    """Return the public key published with the checkpoint, None without a valid one."""
    try:
        return parse_verifier(checkpoint["key"]) if checkpoint and checkpoint["key"] else None
    except NoteError:
        return None


async def show_run(page: PageRequest) -> Response:
    """Render the run of an event or, by a task's id, of the task's first event; `check` verifies the proof."""
    requested_id = page.path_param("provenance_id")
    run, names, proof = await asyncio.gather(
        page.call("provenance.run", provenance_id=requested_id),
        page.read(registry_queries.read_names),
        _read_proof(page, requested_id),
    )
    return page.render(
        "provenance-run.html",
        block="proof" if page.query_param("part") == "proof" else "tree",
        **_present_run(page, run, requested_id),
        **proof,
        max_opened=MAX_OPENED,
        title=await page.read(_find_title, run, requested_id),
        names=names,
        address=f"/provenance/{quote_segment(requested_id)}",
    )


def _find_title(tx: Tx, tenant: str, run: JsonObject, requested_id: str) -> str:
    """Return the title of the task that the event belongs to, or of the first task; else what happened first."""
    events = run["events"]
    of_event = [event["task_id"] for event in events if requested_id in (event["provenance_id"], event["task_id"])]
    task_id = next((task_id for task_id in (*of_event, *(event["task_id"] for event in events)) if task_id), None)
    tasks = list_queries.list_matching(tx, tenant, TaskFilter(), [task_id]) if task_id else []
    return tasks[0].title if tasks else str(events[0]["message"])


def _present_run(page: PageRequest, run: JsonObject, requested_id: str) -> JsonObject:
    events = run["events"]
    event_ids = [event["provenance_id"] for event in events]
    task_event_ids = (event["provenance_id"] for event in events if event["task_id"] == requested_id)
    return {
        "run": run,
        "asked": requested_id if requested_id in event_ids else next(task_event_ids, requested_id),
        "markup": provenance_view.walk_tree(events),
        "links": provenance_view.run_links(events),
        "duration_ms": provenance_view.run_duration_ms(events),
        # Ids start with their time, so the largest id is the newest event.
        "growing": max(event_ids) > min_id_at(page.site.now() - GROWING_US),
    }


async def _read_proof(page: PageRequest, requested_id: str) -> JsonObject:
    """Return the proof or the gateway's error, and the result of the check if the user requested one."""
    try:
        proof = await page.call("provenance.proof", provenance_id=requested_id)
    except GatewayError as error:
        if error.status not in NO_PROOF_STATUSES:
            raise
        return {"proof": None, "error": error, "health": await read_provenance_health(page), "checked": None}
    check = await _verify_proof(page, proof) if page.query_param("check") else None
    return {"proof": proof, "error": None, "health": None, "checked": check}


async def _verify_proof(page: PageRequest, proof: JsonObject) -> ProofCheck:
    event_id = proof["provenance_id"]
    recorded, newest = await asyncio.gather(
        page.read(provenance_store.find_leaf_hash, event_id),
        read_newest_checkpoint(page),
    )
    key = checkpoint_verifier(newest)
    return check_proof(proof, key.text if key else None, recorded)


class _TreeState(msgspec.Struct, frozen=True):
    """The Merkle tree, which all tenants share; `since` is the time of the oldest unnumbered event, in microseconds."""

    size: int
    waiting: int
    since: int | None


def _read_tree_state(tx: Tx) -> _TreeState:
    lag = provenance_store.numbering_lag(tx)
    return _TreeState(provenance_store.tree_size(tx), lag.events, lag.oldest_at)


ROUTES = [
    ("GET", "/provenance", show_provenance),
    ("POST", "/provenance/checkpoint", action("provenance.sign", "/provenance", "signed")),
    ("GET", "/provenance/{provenance_id:path}", show_run),
]
