"""Routes of provenance: the tree of a run, proofs, checkpoints. Hashes are in base64, as in checkpoints."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Header, Path, Query
from pydantic import AfterValidator
from starlette.responses import PlainTextResponse, Response

from stentor.core.clock import format_iso
from stentor.core.runlog import RunLogEvent
from stentor.domains.provenance.model import RunTrace
from stentor.domains.provenance.service import ProvenanceService
from stentor.domains.provenance.signed_note import NoteVerifier
from stentor.domains.provenance.store import StoredCheckpoint
from stentor.web.request_context import decode_path_segment
from stentor.web.routes import requires_permission
from stentor.web.wire import Caller, JsonResponse, ResponseModel, Timestamp, api_router, error_responses

ProvenanceId = Annotated[
    str,
    Path(description="A provenance id or a task id; a slash in it is written %2F."),
    AfterValidator(decode_path_segment),
]
Size = Annotated[int, Query(ge=1, le=2**53)]
TEXT: dict[int | str, dict[str, Any]] = {200: {"content": {"text/plain": {"schema": {"type": "string"}}}}}


class NodeOut(ResponseModel):
    provenance_id: str
    parent_provenance_id: str | None
    number: int | None
    task_id: str | None
    agent_id: str | None
    timestamp: Timestamp
    event_type: str
    component: str
    message: str
    duration_ms: int | None
    metadata: dict[str, Any]


class RunOut(ResponseModel):
    root: str
    events: list[NodeOut]
    truncated: bool


class CheckpointOut(ResponseModel):
    origin: str
    size: int
    root: str
    note: str
    key: str | None
    made_at: Timestamp


class InclusionOut(ResponseModel):
    provenance_id: str
    number: int
    size: int
    event: str
    leaf_hash: str
    hashes: list[str]
    root: str
    checkpoint: str | None


class ConsistencyOut(ResponseModel):
    from_size: int
    to_size: int
    from_root: str
    to_root: str
    hashes: list[str]


def router(provenance: ProvenanceService, key: Callable[[], NoteVerifier | None]) -> APIRouter:
    api = api_router("/provenance", tags=["provenance"])

    def answer(found: StoredCheckpoint, accept: str | None) -> Response:
        if accept is not None and accept.partition(";")[0].strip().lower() == "text/plain":
            return PlainTextResponse(found.note)
        return JsonResponse(_checkpoint(found, key()))

    # Before the routes with an id: routes are tried in their order.
    @api.get("/checkpoint", response_model=CheckpointOut, responses={**TEXT, **error_responses(404)})
    async def checkpoint(caller: Caller, accept: Annotated[str | None, Header()] = None) -> Response:
        """The newest signed checkpoint; with Accept: text/plain the signed note itself."""
        return answer(await provenance.newest_checkpoint(), accept)

    @api.post(
        "/checkpoint",
        response_model=CheckpointOut,
        responses={**TEXT, **error_responses(500)},
        openapi_extra=requires_permission("admin"),
    )
    async def publish(caller: Caller, accept: Annotated[str | None, Header()] = None) -> Response:
        """Number all that is recorded, and sign the tree as it is now."""
        return answer(await provenance.publish(), accept)

    @api.get("/consistency", response_model=ConsistencyOut, responses=error_responses(500))
    async def consistency(
        caller: Caller,
        old: Annotated[Size, Query(alias="from", description="Size of the older tree.")],
        new: Annotated[Size, Query(alias="to", description="Size of the newer tree.")],
    ) -> JsonResponse:
        """The proof that the newer tree begins with the older one (RFC 9162, 2.1.4)."""
        found = await provenance.prove_consistency(old, new)
        return JsonResponse(
            {
                "from_size": found.old_size,
                "to_size": found.new_size,
                "from_root": _text(found.old_root),
                "to_root": _text(found.new_root),
                "hashes": [_text(one) for one in found.hashes],
            }
        )

    @api.get("/{provenance_id}", response_model=RunOut, responses=error_responses(404, 500))
    async def run(caller: Caller, provenance_id: ProvenanceId) -> JsonResponse:
        """The run that an event or a task is of: its events as a flat list, each with its parent, oldest first."""
        return JsonResponse(serialize_run(await provenance.read_run(caller.tenant, provenance_id)))

    @api.get("/{provenance_id}/proof", response_model=InclusionOut, responses=error_responses(404, 409, 500))
    async def proof(
        caller: Caller,
        provenance_id: ProvenanceId,
        size: Annotated[Size | None, Query(description="Size of the tree; without it that of a checkpoint.")] = None,
    ) -> JsonResponse:
        """The proof that an event (of a task the first one) is in the tree (RFC 9162, 2.1.3)."""
        found = await provenance.prove_inclusion(caller.tenant, provenance_id, size)
        return JsonResponse(
            {
                "provenance_id": found.event_id,
                "number": found.number,
                "size": found.size,
                "event": found.canonical.decode(),
                "leaf_hash": _text(found.leaf_hash),
                "hashes": [_text(one) for one in found.hashes],
                "root": _text(found.root),
                "checkpoint": found.checkpoint,
            }
        )

    return api


def _checkpoint(found: StoredCheckpoint, key: NoteVerifier | None) -> dict[str, Any]:
    return {
        "origin": found.note.partition("\n")[0],
        "size": found.size,
        "root": _text(bytes.fromhex(found.root)),
        "note": found.note,
        "key": key.text if key else None,
        "made_at": format_iso(found.made_at),
    }


def serialize_run(run: RunTrace) -> dict[str, Any]:
    """A run as it is answered."""
    events = [_node(event, run.numbers.get(event.event_id)) for event in run.events]
    return {"root": run.root, "events": events, "truncated": run.truncated}


def _node(event: RunLogEvent, number: int | None) -> dict[str, Any]:
    return {
        "provenance_id": event.event_id,
        "parent_provenance_id": event.parent_id,
        "number": number,
        "task_id": event.task_id,
        "agent_id": event.agent_id,
        "timestamp": format_iso(event.happened_at),
        "event_type": event.event_type,
        "component": event.component,
        "message": event.message,
        "duration_ms": event.duration_ms,
        "metadata": event.metadata,
    }


def _text(value: bytes) -> str:
    return base64.b64encode(value).decode()
