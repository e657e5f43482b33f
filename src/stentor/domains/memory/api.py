"""Routes of the memory bus. Source: core contract, "Memory bus"."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Header, Query
from starlette.requests import Request

from stentor.core.clock import format_iso
from stentor.core.errors import Forbidden, InvalidRequest
from stentor.domains.memory.documents import NoteDocument
from stentor.domains.memory.service import MemoryCaller, WriteResult
from stentor.domains.memory.vaults import DEFAULT_VAULT, VaultRegistry
from stentor.domains.memory.wire import (
    HealthOut,
    HybridIn,
    HybridOut,
    KeywordIn,
    KeywordOut,
    ReadOut,
    SemanticIn,
    SemanticOut,
    StepIn,
    StepOut,
    VaultName,
    VerifyOut,
    VersionDocumentOut,
    VersionsOut,
    WriteIn,
    WrittenOut,
)
from stentor.domains.notes.model import NoSuchNote
from stentor.web.fast_routes import FastRoute
from stentor.web.routes import get_principal, requires_permission
from stentor.web.wire import JsonResponse, ResponseModel, api_router, error_responses

TaskHeader = Annotated[
    str | None, Header(alias="X-Task-Id", max_length=255, description="The task that this is done for.")
]
IfMatch = Annotated[
    str | None, Header(alias="If-Match", max_length=4096, description="The ETag of the state that is to be changed.")
]
IfNoneMatch = Annotated[
    str | None, Header(alias="If-None-Match", max_length=4096, description="`*`: only when there is no document yet.")
]


PathQuery = Annotated[str, Query(max_length=4096)]
VaultQuery = Annotated[VaultName, Query()]


def router(vaults: VaultRegistry, tenant: str) -> APIRouter:
    """All vaults belong to one tenant; keys of others are refused."""
    api = api_router("/memory", tags=["memory"])
    admin = requires_permission("admin")

    def caller(request: Request, task_id: str | None, agent_id: str | None = None) -> MemoryCaller:
        principal = get_principal(request)
        if principal.tenant != tenant:
            raise Forbidden(f"The memory belongs to the tenant {tenant!r}; this key is another's.")
        return MemoryCaller(principal, agent_id, task_id)

    def direct(path: str, model: type[ResponseModel], *statuses: int) -> Callable[[Any], Any]:
        """A POST that is called all the time."""
        options: Any = {"response_model": model, "responses": error_responses(*statuses), "openapi_extra": admin}

        def add(function: Any) -> Any:
            api.add_api_route(path, function, methods=["POST"], route_class_override=FastRoute, **options)
            return function

        return add

    @direct("/write", WrittenOut, 404, 409, 412, 502, 504)
    async def write(
        request: Request,
        body: WriteIn,
        if_match: IfMatch = None,
        if_none_match: IfNoneMatch = None,
        task: TaskHeader = None,
    ) -> JsonResponse:
        """Write, update or delete a document."""
        started = time.perf_counter()
        asking = caller(request, task, body.metadata.source_agent)
        done = await vaults.get(body.vault).memory.write(asking, body.to_draft(if_match, if_none_match))
        headers = {"ETag": f'"{done.etag}"'} if done.etag else {}
        return JsonResponse(_written(done, started), headers=headers)

    @api.get("/read/exact", response_model=ReadOut, responses=error_responses(404, 502, 504), openapi_extra=admin)
    async def read(
        request: Request, path: PathQuery, vault: VaultQuery = DEFAULT_VAULT, task: TaskHeader = None
    ) -> JsonResponse:
        """One document by its exact path."""
        started = time.perf_counter()
        asking = caller(request, task)
        try:
            document, etag = await vaults.get(vault).memory.read(asking, path)
        except NoSuchNote:
            return JsonResponse({"status": "not_found", "document": None, "latency_ms": _since(started)})
        answer = {"status": "success", "document": _shown(document), "latency_ms": _since(started)}
        return JsonResponse(answer, headers={"ETag": f'"{etag}"'})

    @api.get("/versions", response_model=VersionsOut, responses=error_responses(404, 502, 504), openapi_extra=admin)
    async def versions(request: Request, path: PathQuery, vault: VaultQuery = DEFAULT_VAULT) -> JsonResponse:
        """The states of a document that are kept, newest first; also of one that was deleted."""
        caller(request, None)
        found, current = await vaults.get(vault).history.list_versions(path)
        shown = [
            {
                "version": one.content_hash,
                "size": one.size,
                "origin": one.origin,
                "created_at": format_iso(one.created_at),
                "current": one.content_hash == current,
            }
            for one in found
        ]
        return JsonResponse({"path": path, "current": current, "versions": shown})

    @api.get(
        "/versions/{version}", response_model=VersionDocumentOut, responses=error_responses(404), openapi_extra=admin
    )
    async def one_version(
        request: Request, version: str, path: PathQuery, vault: VaultQuery = DEFAULT_VAULT, task: TaskHeader = None
    ) -> JsonResponse:
        """A document as it was: write its content and frontmatter to go back to it."""
        asking = caller(request, task)
        document = await vaults.get(vault).history.read_version(asking, path, version)
        return JsonResponse({"path": document.path, "version": version, "document": _shown(document)})

    @direct("/search/keyword", KeywordOut, 404)
    async def search_keyword(request: Request, body: KeywordIn, task: TaskHeader = None) -> JsonResponse:
        """Documents with these words, in any of their forms; the best first."""
        started = time.perf_counter()
        asking = caller(request, task)
        search = vaults.get(body.vault).search
        matches, total = await search.keyword(asking, body.terms, body.fields, body.match_mode, body.limit)
        return JsonResponse(
            {"matches": _of(body.vault, matches), "total_matches": total, "search_latency_ms": _since(started)}
        )

    @direct("/search/semantic", SemanticOut, 404)
    async def search_semantic(request: Request, body: SemanticIn, task: TaskHeader = None) -> JsonResponse:
        """Documents that mean something like the query; the nearest first."""
        started = time.perf_counter()
        asking = caller(request, task)
        if not body.query and body.embedding is None:
            raise InvalidRequest("query: say what to look for, or give an embedding.")
        search, filters = vaults.get(body.vault).search, body.filters.to_filters()
        found, total = await search.semantic(asking, body.query, body.embedding, body.top_k, filters)
        return JsonResponse(
            {"matches": _of(body.vault, found), "total_matches": total, "search_latency_ms": _since(started)}
        )

    @direct("/search/hybrid", HybridOut, 404)
    async def search_hybrid(request: Request, body: HybridIn, task: TaskHeader = None) -> JsonResponse:
        """Documents by word and by meaning together; the best first."""
        started = time.perf_counter()
        asking = caller(request, task)
        search = vaults.get(body.vault).search
        found, total = await search.hybrid(asking, body.query, body.limit, body.filters.to_filters())
        return JsonResponse(
            {"matches": _of(body.vault, found), "total_matches": total, "search_latency_ms": _since(started)}
        )

    @api.post("/reindex", response_model=StepOut, responses=error_responses(502, 504), openapi_extra=admin)
    async def reindex(request: Request, body: StepIn) -> JsonResponse:
        """Index the next notes anew, in the order of their paths; call it again with `next` until that is null."""
        caller(request, None)
        step = await vaults.get(body.vault).maintenance.reindex(body.after, body.limit)
        return JsonResponse({"done": step.done, "total": step.total, "next": step.next})

    @api.post("/verify", response_model=VerifyOut, responses=error_responses(502, 504), openapi_extra=admin)
    async def verify(request: Request, body: StepIn) -> JsonResponse:
        """Compare the next notes with the index and change nothing; call it again as `reindex`."""
        caller(request, None)
        return JsonResponse(await vaults.get(body.vault).maintenance.verify(body.after, body.limit))

    @api.get("/health", response_model=HealthOut, openapi_extra=admin)
    async def report(request: Request, vault: VaultQuery = DEFAULT_VAULT) -> JsonResponse:
        """The note store and the vector store of one vault, asked now."""
        caller(request, None)
        return JsonResponse({**await vaults.get(vault).health.report(), "vaults": vaults.names})

    return api


def _of(vault: str, matches: Sequence[msgspec.Struct]) -> list[dict[str, Any]]:
    """Matches as plain values, each with the vault that it is from."""
    return [msgspec.structs.asdict(match) | {"vault": vault} for match in matches]


def _shown(document: NoteDocument) -> dict[str, Any]:
    shown = {"path": document.path, "content": document.content, "frontmatter": document.frontmatter}
    return shown | ({"frontmatter_problem": document.problem} if document.problem else {})


def _written(done: WriteResult, started: float) -> dict[str, Any]:
    return {
        "status": done.status,
        "write_id": done.write_id,
        "timestamp": format_iso(done.written_at),
        "latency_ms": _since(started),
        "content_hash": done.content_hash,
        "sync_pending": done.vectors_ready_at is not None,
        "estimated_sync_completion": format_iso(
            done.written_at if done.vectors_ready_at is None else done.vectors_ready_at
        ),
        "merged": done.merged,
        "conflict_copy": done.conflict_copy,
    }


def _since(started: float) -> float:
    return round((time.perf_counter() - started) * 1000, 3)
