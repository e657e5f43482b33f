"""Operations on provenance: the events of a run, proofs and checkpoints. Hashes are in base64, as in checkpoints."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Header, Path, Query
from pydantic import AfterValidator, Field, PlainSerializer, WithJsonSchema
from starlette.responses import PlainTextResponse

from stentor.auth.principal import Principal
from stentor.core.db import Tx
from stentor.core.jsontext import JsonObject
from stentor.domains.provenance.model import RunTrace
from stentor.domains.provenance.service import ProvenanceService
from stentor.domains.provenance.signing.signed_note import NoteVerifier
from stentor.domains.provenance.store import StoredCheckpoint
from stentor.web.operations import operation
from stentor.web.request_context import decode_path_segment
from stentor.web.routes import requires_permission
from stentor.web.wire import Caller, ResponseModel, Timestamp, api_router, error_responses

ProvenanceId = Annotated[
    str,
    Path(description="A provenance id or a task id; a slash in it is written %2F."),
    AfterValidator(decode_path_segment),
]
Size = Annotated[int, Query(ge=1, le=2**53)]
TEXT: dict[int | str, JsonObject] = {200: {"content": {"text/plain": {"schema": {"type": "string"}}}}}
Hash = Annotated[
    bytes, PlainSerializer(lambda value: base64.b64encode(value).decode()), WithJsonSchema({"type": "string"})
]


class NodeOut(ResponseModel):
    provenance_id: Annotated[str, Field(validation_alias="event_id")]
    parent_provenance_id: Annotated[str | None, Field(validation_alias="parent_id")]
    number: int | None
    task_id: str | None
    agent_id: str | None
    timestamp: Annotated[Timestamp, Field(validation_alias="happened_at")]
    event_type: str
    component: str
    message: str
    duration_ms: int | None
    metadata: JsonObject


class RunOut(ResponseModel):
    root: str
    events: list[NodeOut]
    truncated: bool


class LogCheckpointOut(ResponseModel):
    origin: str
    size: int
    root: Hash
    note: str
    key: str | None
    made_at: Timestamp


class InclusionOut(ResponseModel):
    provenance_id: Annotated[str, Field(validation_alias="event_id")]
    number: int
    size: int
    event: str | None
    leaf_hash: Hash
    hashes: list[Hash]
    root: Hash
    checkpoint: str | None


class ConsistencyOut(ResponseModel):
    from_size: Annotated[int, Field(validation_alias="old_size")]
    to_size: Annotated[int, Field(validation_alias="new_size")]
    from_root: Annotated[Hash, Field(validation_alias="old_root")]
    to_root: Annotated[Hash, Field(validation_alias="new_root")]
    hashes: list[Hash]


_ERRORS = (404, 409, 410, 500)


class ProvenanceOperations:
    """The operations of the table OPERATIONS; their docstrings are published summaries."""

    def __init__(
        self,
        provenance: ProvenanceService,
        key: Callable[[], NoteVerifier | None],
        can_read_task: Callable[[Tx, Principal, str], bool],
    ) -> None:
        self._provenance, self._key, self._can_read_task = provenance, key, can_read_task

    @operation("provenance.checkpoint", "read", "GET /provenance/checkpoint", has_own_route=True)
    async def checkpoint(self, caller: Caller) -> LogCheckpointOut:
        """Return the newest signed checkpoint."""
        return self._describe(await self._provenance.newest_checkpoint())

    @operation("provenance.sign", "admin", "POST /provenance/checkpoint", has_own_route=True)
    async def publish(self, caller: Caller) -> LogCheckpointOut:
        """Number all recorded events and sign a checkpoint of the tree."""
        return self._describe(await self._provenance.publish())

    def _describe(self, checkpoint: StoredCheckpoint) -> LogCheckpointOut:
        verifier, origin = self._key(), checkpoint.note.partition("\n")[0]
        root = bytes.fromhex(checkpoint.root)
        return LogCheckpointOut.of(checkpoint, origin=origin, root=root, key=verifier.text if verifier else None)

    @operation("provenance.consistency", "read", "GET /provenance/consistency", errors=(500,))
    async def consistency(
        self,
        caller: Caller,
        old: Annotated[Size, Query(alias="from", description="Size of the older tree.")],
        new: Annotated[Size, Query(alias="to", description="Size of the newer tree.")],
    ) -> ConsistencyOut:
        """Prove that the newer tree extends the older one (RFC 9162, 2.1.4)."""
        return ConsistencyOut.of(await self._provenance.prove_consistency(old, new))

    @operation("provenance.run", "read", "GET /provenance/{provenance_id}", errors=(404, 410, 500))
    async def run(self, caller: Caller, provenance_id: ProvenanceId) -> RunOut:
        """Return the run of an event or a task: its events as a flat list, each with its parent, oldest first."""
        return describe_run(
            await self._provenance.read_run(
                caller.tenant, provenance_id, lambda tx, task_id: self._can_read_task(tx, caller, task_id)
            )
        )

    @operation("provenance.proof", "read", "GET /provenance/{provenance_id}/proof", errors=_ERRORS)
    async def proof(
        self,
        caller: Caller,
        provenance_id: ProvenanceId,
        size: Annotated[Size | None, Query(description="Size of the tree; without it that of a checkpoint.")] = None,
    ) -> InclusionOut:
        """Prove that an event (for a task: its first event) is in the tree (RFC 9162, 2.1.3)."""
        proof = await self._provenance.prove_inclusion(
            caller.tenant, provenance_id, size, lambda tx, task_id: self._can_read_task(tx, caller, task_id)
        )
        return InclusionOut.of(proof, event=proof.canonical and proof.canonical.decode())


def describe_run(run: RunTrace) -> RunOut:
    events = [NodeOut.of(event, number=run.numbers.get(event.event_id)) for event in run.events]
    return RunOut(root=run.root, events=events, truncated=run.truncated)


def router(operations: ProvenanceOperations) -> APIRouter:
    """Return the routes of checkpoints, which respond with JSON or with the signed note, as the caller accepts.

    Must be mounted before the operations: `/provenance/{provenance_id}` would match these paths.
    """
    api = api_router("/provenance", tags=["provenance"])

    def respond(checkpoint: LogCheckpointOut, accept: str | None) -> Any:
        if accept is not None and accept.partition(";")[0].strip().lower() == "text/plain":
            return PlainTextResponse(checkpoint.note)
        return checkpoint

    @api.get(
        "/checkpoint",
        operation_id="provenance_checkpoint",
        response_model=LogCheckpointOut,
        responses={**TEXT, **error_responses(404)},
    )
    async def checkpoint(caller: Caller, accept: Annotated[str | None, Header()] = None) -> Any:
        """Return the newest signed checkpoint; with Accept: text/plain the signed note itself."""
        return respond(await operations.checkpoint(caller), accept)

    @api.post(
        "/checkpoint",
        operation_id="provenance_sign",
        response_model=LogCheckpointOut,
        responses={**TEXT, **error_responses(500)},
        openapi_extra=requires_permission("admin"),
    )
    async def publish(caller: Caller, accept: Annotated[str | None, Header()] = None) -> Any:
        """Number all recorded events and sign a checkpoint of the tree."""
        return respond(await operations.publish(caller), accept)

    return api
