"""Routes of the memory bus. Source: core contract, "Memory bus"."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Header, Query
from pydantic import Field, StringConstraints
from starlette.requests import Request

from stentor.core.clock import from_datetime, iso
from stentor.core.errors import Forbidden, InvalidRequest
from stentor.domains.memory.health import MemoryHealth
from stentor.domains.memory.index.keyword import FIELDS
from stentor.domains.memory.indexer import Indexer
from stentor.domains.memory.model import WriteDraft
from stentor.domains.memory.search import Filters, Search
from stentor.domains.memory.service import Bus, Caller, Written
from stentor.domains.notes.model import NoSuchNote
from stentor.web.direct import DirectRoute
from stentor.web.routes import GatewayRoute, Wire, example, needs, principal_of
from stentor.web.wire import Answer, Json, Name, Time, Timestamp, UuidText, errors

TaskHeader = Annotated[
    str | None, Header(alias="X-Task-Id", max_length=255, description="The task that this is done for.")
]
IfMatch = Annotated[
    str | None, Header(alias="If-Match", max_length=255, description="The ETag of the state that is to be changed.")
]
Term = Annotated[str, StringConstraints(min_length=1, max_length=1000)]


class DocumentIn(Wire):
    path: Annotated[str, StringConstraints(max_length=4096)]
    content: str | None = None
    frontmatter: dict[str, Any] | None = None


class WriteMetadata(Wire):
    source_agent: UuidText | None = None
    priority: Literal["high", "normal", "low"] = "normal"
    conflict_resolution: Literal["last_write_wins", "abort", "merge"] = "last_write_wins"
    base_hash: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")] | None = None


class WriteIn(Wire):
    model_config = example(
        operation="write",
        vault="default",
        document={
            "path": "Projects/stentor.md",
            "content": "# Stentor\n\nRoutes tasks to agents.\n",
            "frontmatter": {"tags": ["project"], "created_at": "2026-11-20T21:45:00Z"},
        },
        metadata={"priority": "normal", "conflict_resolution": "abort"},
    )

    operation: Literal["write", "update", "delete"]
    vault: Name = "default"
    document: DocumentIn
    metadata: WriteMetadata = WriteMetadata()

    def draft(self, if_match: str | None) -> WriteDraft:
        meta, document = self.metadata, self.document
        return WriteDraft(
            self.operation,
            document.path,
            document.content,
            document.frontmatter,
            meta.source_agent,
            meta.priority,
            meta.conflict_resolution,
            meta.base_hash,
            None if if_match is None else if_match.strip().removeprefix("W/").strip('"'),
        )


class WrittenOut(Answer):
    status: Literal["success", "conflict"]
    write_id: str
    timestamp: Timestamp
    latency_ms: float
    content_hash: str
    sync_pending: bool
    estimated_sync_completion: Timestamp
    merged: bool
    conflict_copy: str | None


class DocumentOut(Answer):
    path: str
    content: str
    frontmatter: dict[str, Any]
    frontmatter_problem: str | None = None


class ReadOut(Answer):
    status: Literal["success", "not_found"]
    document: DocumentOut | None
    latency_ms: float


class KeywordIn(Wire):
    model_config = example(terms=["deployment"], fields=["title", "content"], match_mode="any", limit=20)

    terms: Annotated[list[Term], Field(min_length=1, max_length=64)]
    fields: Annotated[list[Literal["title", "tags", "content"]], Field(min_length=1)] = list(FIELDS)
    match_mode: Literal["all", "any"] = "any"
    limit: Annotated[int, Field(ge=1, le=1000)] = 20


class KeywordMatch(Answer):
    path: str
    title: str
    excerpt: str
    relevance_score: float


class KeywordOut(Answer):
    matches: list[KeywordMatch]
    total_matches: int
    search_latency_ms: float


class FiltersIn(Wire):
    hebbian_weight_min: Annotated[float, Field(allow_inf_nan=False)] | None = None
    created_after: Time | None = None

    def filters(self) -> Filters:
        after = None if self.created_after is None else from_datetime(self.created_after)
        return Filters(self.hebbian_weight_min, after)


class SemanticIn(Wire):
    model_config = example(
        query="how tasks find their agent", top_k=5, filters={"created_after": "2026-01-01T00:00:00Z"}
    )

    query: Annotated[str, StringConstraints(max_length=10_000)] = ""
    embedding: (
        Annotated[list[Annotated[float, Field(allow_inf_nan=False)]], Field(min_length=1, max_length=8192)] | None
    ) = None
    top_k: Annotated[int, Field(ge=1, le=1000)] = 10
    filters: FiltersIn = FiltersIn()


class SemanticMatchOut(Answer):
    path: str
    content_preview: str
    similarity_score: float
    source_level: Literal["document", "section"]
    hebbian_weights: dict[str, Any]


class SemanticOut(Answer):
    matches: list[SemanticMatchOut]
    total_matches: int
    search_latency_ms: float


class HybridIn(Wire):
    model_config = example(query="how tasks find their agent", limit=5)

    query: Annotated[str, StringConstraints(min_length=1, max_length=10_000)]
    limit: Annotated[int, Field(ge=1, le=200)] = 20
    filters: FiltersIn = FiltersIn()


class HybridMatchOut(Answer):
    path: str
    title: str
    excerpt: str
    score: float
    keyword_score: float
    similarity_score: float


class HybridOut(Answer):
    matches: list[HybridMatchOut]
    total_matches: int
    search_latency_ms: float


class StepIn(Wire):
    model_config = example(after="", limit=500)

    after: Annotated[str, StringConstraints(max_length=4096)] = ""
    limit: Annotated[int, Field(ge=1, le=5000)] = 500


class StepOut(Answer):
    """`next` is what the next call gives as `after`; null at the end."""

    done: int
    total: int
    next: str | None


class DifferenceOut(Answer):
    path: str
    problem: Literal["missing", "stale", "gone"]


class VerifyOut(StepOut):
    differences: list[DifferenceOut]


class PartOut(Answer):
    status: Literal["healthy", "degraded", "unhealthy"]
    latency_ms: float
    sync_lag_ms: float
    detail: str


class StatsOut(Answer):
    total_documents: int | None
    total_size_mb: float | None
    cache_hit_ratio: float | None
    last_sync: Timestamp | None


class HealthOut(Answer):
    status: Literal["healthy", "degraded", "unhealthy"]
    components: dict[str, PartOut]
    stats: StatsOut


def router(bus: Bus, search: Search, indexer: Indexer, health: MemoryHealth, tenant: str) -> APIRouter:
    """The vault belongs to one tenant; keys of others are refused."""
    api = APIRouter(prefix="/memory", tags=["memory"], route_class=GatewayRoute)
    admin = needs("admin")

    def caller(request: Request, task_id: str | None, agent_id: str | None = None) -> Caller:
        principal = principal_of(request)
        if principal.tenant != tenant:
            raise Forbidden(f"The memory belongs to the tenant {tenant!r}; this key is another's.")
        return Caller(principal, agent_id, task_id)

    def direct(path: str, model: type[Answer], *statuses: int) -> Callable[[Any], Any]:
        """A POST that is called all the time."""
        options: Any = {"response_model": model, "responses": errors(*statuses), "openapi_extra": admin}

        def add(function: Any) -> Any:
            api.add_api_route(path, function, methods=["POST"], route_class_override=DirectRoute, **options)
            return function

        return add

    @direct("/write", WrittenOut, 404, 409, 412)
    async def write(request: Request, body: WriteIn, if_match: IfMatch = None, task: TaskHeader = None) -> Json:
        """Write, update or delete a document."""
        started = time.perf_counter()
        done = await bus.write(caller(request, task, body.metadata.source_agent), body.draft(if_match))
        headers = {"ETag": f'"{done.etag}"'} if done.etag else {}
        return Json(_written(done, started), headers=headers)

    @api.get("/read/exact", response_model=ReadOut, responses=errors(404), openapi_extra=admin)
    async def read(request: Request, path: Annotated[str, Query(max_length=4096)], task: TaskHeader = None) -> Json:
        """One document by its exact path."""
        started = time.perf_counter()
        try:
            document, etag = await bus.read(caller(request, task), path)
        except NoSuchNote:
            return Json({"status": "not_found", "document": None, "latency_ms": _since(started)})
        shown = {"path": document.path, "content": document.content, "frontmatter": document.frontmatter}
        if document.problem:
            shown["frontmatter_problem"] = document.problem
        answer = {"status": "success", "document": shown, "latency_ms": _since(started)}
        return Json(answer, headers={"ETag": f'"{etag}"'})

    @direct("/search/keyword", KeywordOut, 404)
    async def search_keyword(request: Request, body: KeywordIn, task: TaskHeader = None) -> Json:
        """Documents with these words, in any of their forms; the best first."""
        started = time.perf_counter()
        asking = caller(request, task)
        matches, total = await search.keyword(asking, body.terms, body.fields, body.match_mode, body.limit)
        return Json({"matches": matches, "total_matches": total, "search_latency_ms": _since(started)})

    @direct("/search/semantic", SemanticOut, 404)
    async def search_semantic(request: Request, body: SemanticIn, task: TaskHeader = None) -> Json:
        """Documents that mean something like the query; the nearest first."""
        started = time.perf_counter()
        asking = caller(request, task)
        if not body.query and body.embedding is None:
            raise InvalidRequest("query: say what to look for, or give an embedding.")
        found, total = await search.semantic(asking, body.query, body.embedding, body.top_k, body.filters.filters())
        return Json({"matches": found, "total_matches": total, "search_latency_ms": _since(started)})

    @direct("/search/hybrid", HybridOut, 404)
    async def search_hybrid(request: Request, body: HybridIn, task: TaskHeader = None) -> Json:
        """Documents by word and by meaning together; the best first."""
        started = time.perf_counter()
        asking = caller(request, task)
        found, total = await search.hybrid(asking, body.query, body.limit, body.filters.filters())
        return Json({"matches": found, "total_matches": total, "search_latency_ms": _since(started)})

    @api.post("/reindex", response_model=StepOut, openapi_extra=admin)
    async def reindex(request: Request, body: StepIn) -> Json:
        """Index the next notes anew, in the order of their paths; call it again with `next` until that is null."""
        caller(request, None)
        step = await indexer.reindex(body.after, body.limit)
        return Json({"done": step.done, "total": step.total, "next": step.next})

    @api.post("/verify", response_model=VerifyOut, openapi_extra=admin)
    async def verify(request: Request, body: StepIn) -> Json:
        """Compare the next notes with the index and change nothing; call it again as `reindex`."""
        caller(request, None)
        return Json(await indexer.verify(body.after, body.limit))

    @api.get("/health", response_model=HealthOut, openapi_extra=admin)
    async def report(request: Request) -> Json:
        """The note store and the vector store, asked now."""
        caller(request, None)
        return Json(await health.report())

    return api


def _written(done: Written, started: float) -> dict[str, Any]:
    return {
        "status": done.status,
        "write_id": done.write_id,
        "timestamp": iso(done.at),
        "latency_ms": _since(started),
        "content_hash": done.content_hash,
        "sync_pending": done.ready_at is not None,
        "estimated_sync_completion": iso(done.at if done.ready_at is None else done.ready_at),
        "merged": done.merged,
        "conflict_copy": done.conflict_copy,
    }


def _since(started: float) -> float:
    return round((time.perf_counter() - started) * 1000, 3)
