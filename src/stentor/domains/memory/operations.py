"""Operations on the memory. Source: core contract, "Memory bus"."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Annotated

from fastapi import Header, Path, Query
from pydantic import AfterValidator

from stentor.auth.principal import Principal
from stentor.core.errors import Forbidden, InvalidRequest, ServiceUnavailable
from stentor.domains.memory import wire
from stentor.domains.memory.model import MemoryCaller
from stentor.domains.memory.search import parse_scope
from stentor.domains.memory.validity.frontmatter_keys import KEYS, read_document
from stentor.domains.memory.validity.model import Exclusion
from stentor.domains.memory.validity.service import MAX_LISTED, InvalidationService, VaultExclusion
from stentor.domains.memory.validity.wire import (
    InvalidatedOut,
    InvalidateIn,
    InvalidListOut,
    InvalidNoteOut,
    InvalidSourceOut,
    RestoredOut,
    RestoreIn,
)
from stentor.domains.memory.vaults import DEFAULT_VAULT, VaultRegistry
from stentor.domains.memory.versions.history import NOBODY
from stentor.web.operations import operation
from stentor.web.request_context import decode_path_segment
from stentor.web.wire import Caller, TaskHeader, decode_cursor, encode_cursor
from stentor_vault.notes.model import NoSuchNote
from stentor_vault.notes.paths import compose_path
from stentor_vault.text.documents import NoteDocument

IfMatch = Annotated[
    str | None, Header(alias="If-Match", max_length=4096, description="The ETag of the state that is to be changed.")
]
IfNoneMatch = Annotated[
    str | None, Header(alias="If-None-Match", max_length=4096, description="`*`: only when there is no document yet.")
]


# Later than the time of any note, and within the 64 bits of a column.
MAX_TIME = 2**62
VersionId = Annotated[str, Path(description="The version's id."), AfterValidator(decode_path_segment)]
PathQuery = Annotated[str, Query(max_length=4096)]
VaultQuery = Annotated[wire.VaultName, Query()]


_STORE_ERRORS = (404, 502, 504)
_WRITE_ERRORS = (404, 409, 412, 502, 504)


class MemoryOperations:
    """What admins can do with the memory.

    All vaults belong to one tenant; keys of others are refused.
    """

    def __init__(self, vaults: VaultRegistry, invalidations: InvalidationService, tenant: str) -> None:
        self._vaults, self._invalidations, self._tenant = vaults, invalidations, tenant

    def _identify(self, caller: Principal, task_id: str | None = None, agent_id: str | None = None) -> MemoryCaller:
        if caller.tenant != self._tenant:
            raise Forbidden(f"The memory belongs to the tenant {self._tenant!r}; this key belongs to another tenant.")
        return MemoryCaller(caller, agent_id, task_id)

    @operation("memory.write", "admin", "POST /memory/write", errors=_WRITE_ERRORS, fast=True)
    async def write(
        self,
        caller: Caller,
        body: wire.WriteIn,
        if_match: IfMatch = None,
        if_none_match: IfNoneMatch = None,
        task: TaskHeader = None,
    ) -> wire.WrittenOut:
        """Write, update or delete a document."""
        started = time.perf_counter()
        memory_caller = self._identify(caller, task, body.metadata.source_agent)
        vault = self._vaults.get(body.vault)
        excluded = await vault.index.list_exclusions() if body.operation == "delete" else []
        result = await vault.memory.write(memory_caller, body.to_draft(if_match, if_none_match))
        returned: list[str] = []
        # An outage now must not say that nothing was written.
        with suppress(ServiceUnavailable):
            still = await vault.index.list_exclusions() if excluded else []
            gone = {compose_path(body.document.path), *(exclusion.path for exclusion in still)}
            returned = [exclusion.path for exclusion in excluded if exclusion.path not in gone]
        ready_at = result.vectors_ready_at
        return wire.WrittenOut.of(
            result,
            latency_ms=_elapsed_ms(started),
            sync_pending=ready_at is not None,
            estimated_sync_completion=result.written_at if ready_at is None else ready_at,
            returned=returned[:MAX_LISTED] or None,
        )

    @operation("memory.read", "admin", "GET /memory/read/exact", errors=_STORE_ERRORS)
    async def read(
        self, caller: Caller, path: PathQuery, vault: VaultQuery = DEFAULT_VAULT, task: TaskHeader = None
    ) -> wire.ReadOut:
        """Read one document by its exact path."""
        started = time.perf_counter()
        memory_caller = self._identify(caller, task)
        try:
            document, etag = await self._vaults.get(vault).memory.read(memory_caller, path)
        except NoSuchNote:
            return wire.ReadOut(status="not_found", document=None, latency_ms=_elapsed_ms(started))
        invalid = await self._find_exclusion(vault, document)
        return wire.ReadOut(
            status="success",
            document=_document(document),
            latency_ms=_elapsed_ms(started),
            etag=etag,
            invalid=None if invalid is None else wire.ExclusionOut.model_validate(invalid),
        )

    async def _find_exclusion(self, vault: str, document: NoteDocument) -> Exclusion | None:
        """Return why searches do not find a document; None if they do."""
        # A note without keys in its frontmatter cannot be excluded, so few reads query the index.
        if KEYS.isdisjoint(document.frontmatter):
            return None
        return await self._vaults.get(vault).index.find_exclusion(document.path)

    @operation("memory.list", "admin", "GET /memory/list")
    async def list_documents(
        self,
        caller: Caller,
        vault: VaultQuery = DEFAULT_VAULT,
        folder: Annotated[
            str | None, Query(max_length=4096, description="Exactly this folder; empty: the root.")
        ] = None,
        tag: Annotated[str, Query(max_length=255)] = "",
        limit: Annotated[int, Query(ge=1, le=500)] = 100,
        cursor: Annotated[str | None, Query(max_length=8192)] = None,
    ) -> wire.ListOut:
        """List documents, the latest changed first, with the number of documents in each folder and with each tag."""
        self._identify(caller)
        if "\0" in f"{folder}{tag}":
            raise InvalidRequest("folder, tag: must not contain the character NUL.")
        before = (MAX_TIME, "") if cursor is None else decode_cursor(cursor, int, str)
        index = self._vaults.get(vault).index
        rows = await index.list_recent(folder, tag, before, limit + 1)
        folders, tags = await index.outline()
        page = rows[:limit]
        following = encode_cursor(page[-1].modified_at, page[-1].path) if len(rows) > limit else None
        documents = [wire.ListedOut.of(row) for row in page]
        return wire.ListOut(documents=documents, folders=folders, tags=tags, next_cursor=following)

    @operation("memory.backlinks", "admin", "GET /memory/backlinks")
    async def backlinks(self, caller: Caller, path: PathQuery, vault: VaultQuery = DEFAULT_VAULT) -> wire.BacklinksOut:
        """List the documents that link to a document, resolved as Obsidian does; also to one that does not exist."""
        self._identify(caller)
        path = _linkable(path)
        return wire.BacklinksOut(path=path, backlinks=await self._vaults.get(vault).index.find_backlinks(path))

    @operation("memory.neighbourhood", "admin", "GET /memory/neighbourhood")
    async def neighbourhood(
        self,
        caller: Caller,
        path: PathQuery,
        vault: VaultQuery = DEFAULT_VAULT,
        limit: Annotated[int, Query(ge=1, le=200, description="Documents at most, this one included.")] = 40,
    ) -> wire.NeighbourhoodOut:
        """List the documents at most two links away from a document, in either direction, and the links among them."""
        self._identify(caller)
        path = _linkable(path)
        neighbourhood = await self._vaults.get(vault).index.find_neighbourhood(path, limit)
        links = [wire.LinkOut(source=source, target=target) for source, target in neighbourhood.links]
        documents = [wire.NeighbourOut.of(document) for document in neighbourhood.documents]
        return wire.NeighbourhoodOut(path=path, documents=documents, links=links, omitted=neighbourhood.omitted)

    @operation("memory.versions", "admin", "GET /memory/versions", errors=_STORE_ERRORS)
    async def versions(self, caller: Caller, path: PathQuery, vault: VaultQuery = DEFAULT_VAULT) -> wire.VersionsOut:
        """List the stored versions of a document, newest first; also of a deleted one."""
        self._identify(caller)
        history = self._vaults.get(vault).history
        versions, current = await history.list_versions(path)
        writers = await history.find_writers(caller.tenant, path, versions)
        rows = [
            wire.VersionOut.of(
                version,
                current=version.content_hash == current,
                by=(writer := writers.get(version.content_hash, NOBODY)).by,
                agent_id=writer.agent_id,
            )
            for version in versions
        ]
        return wire.VersionsOut(path=path, current=current, versions=rows)

    @operation("memory.version", "admin", "GET /memory/versions/{version}", errors=(404,))
    async def one_version(
        self,
        caller: Caller,
        version: VersionId,
        path: PathQuery,
        vault: VaultQuery = DEFAULT_VAULT,
        task: TaskHeader = None,
    ) -> wire.VersionDocumentOut:
        """A document as it was: write its content and frontmatter to go back to it."""
        memory_caller = self._identify(caller, task)
        document = await self._vaults.get(vault).history.read_version(memory_caller, path, version)
        return wire.VersionDocumentOut(path=document.path, version=version, document=_document(document))

    @operation("memory.name_version", "admin", "PUT /memory/versions/{version}/name", errors=(404, 409))
    async def name_version(self, caller: Caller, version: VersionId, body: wire.VersionNameIn) -> wire.VersionNameOut:
        """Give a version of a document a name, or remove it (null). A version with a name is kept."""
        memory_caller = self._identify(caller)
        await self._vaults.get(body.vault).history.name_version(memory_caller, body.path, version, body.name)
        return wire.VersionNameOut(path=body.path, version=version, name=body.name)

    @operation("memory.keyword", "admin", "POST /memory/search/keyword", errors=(404,), fast=True)
    async def search_keyword(self, caller: Caller, body: wire.KeywordIn, task: TaskHeader = None) -> wire.KeywordOut:
        """Search documents by words, in any of their forms; the best match first."""
        started = time.perf_counter()
        search, memory_caller = self._vaults.get(body.vault).search, self._identify(caller, task)
        scope = parse_scope(body.as_of, include_invalid=body.include_invalid)
        incomplete = None if await search.is_complete() else True
        found, total = await search.keyword(
            memory_caller, body.terms, body.fields, body.match_mode, body.limit, scope=scope
        )
        matches = [wire.KeywordMatch.of(match, vault=body.vault) for match in found]
        return wire.KeywordOut(
            matches=matches, total_matches=total, search_latency_ms=_elapsed_ms(started), incomplete=incomplete
        )

    @operation("memory.semantic", "admin", "POST /memory/search/semantic", errors=(404,), fast=True)
    async def search_semantic(self, caller: Caller, body: wire.SemanticIn, task: TaskHeader = None) -> wire.SemanticOut:
        """Search documents by meaning; the nearest first.

        Leaves out what is less similar than SERVICE_EMBEDDING_FLOOR. In a large vault with pgvector `total_matches` is
        a number above `top_k` when there are more.
        """
        started = time.perf_counter()
        memory_caller = self._identify(caller, task)
        if not body.query and body.embedding is None:
            raise InvalidRequest("query: say what to look for, or give an embedding.")
        search, filters = self._vaults.get(body.vault).search, body.filters.to_filters()
        scope = parse_scope(body.as_of, include_invalid=body.include_invalid)
        incomplete = None if await search.is_complete() else True
        found, total = await search.semantic(memory_caller, body.query, body.embedding, body.top_k, filters, scope)
        matches = [wire.SemanticMatchOut.of(match, vault=body.vault, weak=match.weak or None) for match in found]
        return wire.SemanticOut(
            matches=matches, total_matches=total, search_latency_ms=_elapsed_ms(started), incomplete=incomplete
        )

    @operation("memory.hybrid", "admin", "POST /memory/search/hybrid", errors=(404,), fast=True)
    async def search_hybrid(self, caller: Caller, body: wire.HybridIn, task: TaskHeader = None) -> wire.HybridOut:
        """Search documents by words and by meaning together; the best match first."""
        started = time.perf_counter()
        search, memory_caller = self._vaults.get(body.vault).search, self._identify(caller, task)
        filters, scope = body.filters.to_filters(), parse_scope(body.as_of, include_invalid=body.include_invalid)
        incomplete = None if await search.is_complete() else True
        found, total = await search.hybrid(memory_caller, body.query, body.limit, filters, scope)
        matches = [wire.HybridMatchOut.of(match, vault=body.vault, weak=match.weak or None) for match in found]
        return wire.HybridOut(
            matches=matches, total_matches=total, search_latency_ms=_elapsed_ms(started), incomplete=incomplete
        )

    @operation("memory.invalidate", "admin", "POST /memory/invalidate", errors=_WRITE_ERRORS)
    async def invalidate(self, caller: Caller, body: InvalidateIn, task: TaskHeader = None) -> InvalidatedOut:
        """Mark a note, a passage of one or a source as invalid: searches leave out all that was derived from it."""
        memory_caller = self._identify(caller, task)
        self._vaults.get(body.vault)
        outcome = await self._invalidations.invalidate(memory_caller, body.vault, body.to_target(), body.reason)
        return InvalidatedOut(left=[InvalidNoteOut.of_note(note) for note in outcome.notes], total=outcome.total)

    @operation("memory.restore", "admin", "POST /memory/restore", errors=_WRITE_ERRORS)
    async def restore(self, caller: Caller, body: RestoreIn, task: TaskHeader = None) -> RestoredOut:
        """Remove the mark of a note, a passage or a source: searches find again what nothing else keeps out."""
        memory_caller = self._identify(caller, task)
        self._vaults.get(body.vault)
        outcome = await self._invalidations.restore(memory_caller, body.vault, body.to_target(), body.reason)
        return RestoredOut(returned=[InvalidNoteOut.of_note(note) for note in outcome.notes], total=outcome.total)

    @operation("memory.invalid", "admin", "GET /memory/invalid")
    async def list_invalid(
        self,
        caller: Caller,
        vault: VaultQuery = DEFAULT_VAULT,
        limit: Annotated[int, Query(ge=1, le=500)] = 100,
        cursor: Annotated[str | None, Query(max_length=8192)] = None,
    ) -> InvalidListOut:
        """List the sources, passages and notes that are invalid, each with the reason, who marked it and when."""
        self._identify(caller)
        (after,) = ("",) if cursor is None else decode_cursor(cursor, str)
        index = self._vaults.get(vault).index
        found = await index.list_exclusions()
        rest = [exclusion for exclusion in found if exclusion.path > after]
        notes = [InvalidNoteOut.of_note(VaultExclusion(vault, exclusion)) for exclusion in rest[:limit]]
        sources = [InvalidSourceOut.of(source) for source in await self._invalidations.list_sources()]
        following = encode_cursor(notes[-1].path) if len(rest) > limit else None
        claims = [wire.CauseOut.of(claim) for claim in (await index.list_claims())[:MAX_LISTED]]
        return InvalidListOut(sources=sources, claims=claims, notes=notes, total=len(found), next_cursor=following)

    @operation("memory.reindex", "admin", "POST /memory/reindex", errors=(502, 504))
    async def reindex(self, caller: Caller, body: wire.BatchIn) -> wire.BatchOut:
        """Index the next notes again, in the order of their paths; repeat it with `next` until that is null."""
        self._identify(caller)
        return wire.BatchOut.of(await self._vaults.get(body.vault).maintenance.reindex(body.after, body.limit))

    @operation("memory.verify", "admin", "POST /memory/verify", errors=(502, 504))
    async def verify(self, caller: Caller, body: wire.BatchIn) -> wire.VerifyOut:
        """Compare the next notes with the index and change nothing; call it again as `reindex`."""
        self._identify(caller)
        step = await self._vaults.get(body.vault).maintenance.verify(body.after, body.limit)
        return wire.VerifyOut.model_validate(step)

    @operation("memory.health", "admin", "GET /memory/health")
    async def report(self, caller: Caller, vault: VaultQuery = DEFAULT_VAULT) -> wire.HealthOut:
        """Check the note store and the vector store of one vault."""
        self._identify(caller)
        health = await self._vaults.get(vault).health.report()
        return wire.HealthOut.model_validate({**health, "vaults": self._vaults.names})


def _linkable(path: str) -> str:
    if "\0" in path:
        raise InvalidRequest("path: must not contain the character NUL.")
    return path


def _document(document: NoteDocument) -> wire.DocumentOut:
    validity, _ = read_document(document)
    return wire.DocumentOut.of(document, frontmatter_problem=document.problem or validity.problem)


def _elapsed_ms(started: float) -> float:
    return round((time.perf_counter() - started) * 1000, 3)
