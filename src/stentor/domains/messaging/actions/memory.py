"""The actions of the zone memory: searches, reads and writes of documents, and the health of a vault.

Where a service has no memory, `unavailable_actions` takes their place: the messages are accepted and fail.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from stentor.auth.principal import Permission
from stentor.core.clock import format_iso, micros_from_datetime
from stentor.core.db import Database
from stentor.core.errors import Conflict, FeatureNotImplemented, PreconditionFailed
from stentor.core.jsontext import JsonObject
from stentor.domains.atp.bodies import (
    BODY_TYPES,
    DeleteDocumentBody,
    MemoryQueryBody,
    UpdateDocumentBody,
    VaultBody,
    WriteDocumentBody,
)
from stentor.domains.memory.index.model import SEARCH_FIELDS, SearchFilters
from stentor.domains.memory.model import MemoryCaller, WriteDraft, WriteResult
from stentor.domains.memory.search import parse_scope
from stentor.domains.memory.vaults import DEFAULT_VAULT, VaultParts, VaultRegistry
from stentor.domains.messaging import store
from stentor.domains.messaging.model import (
    ActionContext,
    ActionResult,
    CommitStep,
    MessageRoute,
    ZoneAction,
    fixed_route,
)
from stentor_vault.notes.model import ANY_STATE

INTERNAL_ROUTE = MessageRoute((), "Executed by the memory; no agent is needed.")
WRITTEN_STATUSES = frozenset(("success", "conflict"))
OPTIONAL_ZONES: dict[str, Permission] = {"memory": "admin"}
"""The zones that a service may lack, and the permission that their actions need."""


class MemoryZone:
    """Actions on documents. Each raises InvalidRequest for a vault that is not configured."""

    def __init__(self, db: Database, vaults: VaultRegistry, tenant: str) -> None:
        self._db = db
        self._vaults = vaults
        self._tenant = tenant

    def actions(self) -> dict[tuple[str, str], ZoneAction]:
        actions = {
            "query": self.query,
            "search": self.query,
            "create": self.write,
            "upsert": self.write,
            "update": self.write,
            "delete": self.write,
            "get_status": self.status,
        }
        return {
            ("memory", name): ZoneAction("admin", prepare, fixed_route(INTERNAL_ROUTE), self._tenant)
            for name, prepare in actions.items()
        }

    async def query(self, context: ActionContext) -> CommitStep:
        body = context.body
        assert isinstance(body, MemoryQueryBody)
        query_type = body.query_type or ("semantic" if context.header.action_type == "query" else "keyword")
        if query_type == "exact":
            document, etag = await self._vault(context).memory.read(_caller(context), body.path or "")
            fields = {"path": document.path, "content": document.content, "frontmatter": document.frontmatter}
            response = {"query_type": "exact", "document": fields, "etag": etag}
        else:
            response = await self._search(context, body, query_type)
        return lambda tx: ActionResult(response, INTERNAL_ROUTE)

    async def _search(self, context: ActionContext, body: MemoryQueryBody, query_type: str) -> JsonObject:
        """Return the matches. Raises EmbeddingUnavailable for a semantic search without an embedding model."""
        text, caller, search = body.text or "", _caller(context), self._vault(context).search
        created_after = body.filters.created_after
        after = None if created_after is None else micros_from_datetime(created_after)
        filters = SearchFilters(body.filters.hebbian_weight_min, after)
        scope = parse_scope(body.as_of, include_invalid=body.include_invalid)
        is_complete = await search.is_complete()
        matches: Sequence[msgspec.Struct]
        if query_type == "keyword":
            matches, total = await search.keyword(caller, text.split(), SEARCH_FIELDS, "any", body.top_k, scope=scope)
        elif query_type == "hybrid":
            matches, total = await search.hybrid(caller, text, body.top_k, filters, scope)
        else:
            matches, total = await search.semantic(caller, text, None, body.top_k, filters, scope)
        response = [msgspec.to_builtins(match) | {"vault": body.vault or DEFAULT_VAULT} for match in matches]
        state = {} if is_complete else {"incomplete": True}
        return {"query_type": query_type, "matches": response, "total_matches": total} | state

    async def write(self, context: ActionContext) -> CommitStep:
        """Create, upsert, update or delete a document. Raises Conflict for an existing document, if it must be new."""
        # The vault is not part of the transaction: an earlier claim may have written and died before its commit.
        # The run log tells; writing again would fail or overwrite a later change.
        if context.message.epoch > 1:
            recorded = await self._db.read(lambda tx: store.find_memory_write(tx, context.message.provenance_id))
            if recorded is not None and recorded["status"] in WRITTEN_STATUSES:
                response = {name: recorded[name] for name in ("path", "status", "write_id")}
                response["etag"] = recorded["after_hash"]
                return lambda tx: ActionResult(response, INTERNAL_ROUTE)
        draft = _draft(context)
        try:
            result = await self._vault(context).memory.write(_caller(context), draft)
        except PreconditionFailed:
            raise Conflict(f"The document {draft.path!r} already exists. Use the action update or upsert.") from None
        return lambda tx: ActionResult(_write_to_json(draft.path, result), INTERNAL_ROUTE)

    async def status(self, context: ActionContext) -> CommitStep:
        report = msgspec.to_builtins(await self._vault(context).health.report())
        return lambda tx: ActionResult(report, INTERNAL_ROUTE)

    def _vault(self, context: ActionContext) -> VaultParts:
        assert isinstance(context.body, VaultBody)
        return self._vaults.get(context.body.vault or DEFAULT_VAULT)


def _caller(context: ActionContext) -> MemoryCaller:
    """Return the caller whose memory events have the message's first event as parent: the same in every claim."""
    return MemoryCaller(context.principal, context.message.sender_agent, None, context.message.provenance_id)


def _draft(context: ActionContext) -> WriteDraft:
    body = context.body
    if isinstance(body, DeleteDocumentBody):
        options = {"base_hash": body.base_hash, "resolution": body.conflict_resolution}
        return WriteDraft("delete", body.path, **options)
    if isinstance(body, UpdateDocumentBody):
        options = {"base_hash": body.base_hash, "resolution": body.conflict_resolution}
        return WriteDraft("update", body.path, body.content, body.frontmatter, **options)
    assert isinstance(body, WriteDocumentBody)
    excluded = frozenset([ANY_STATE] if context.header.action_type == "create" else [])
    return WriteDraft("write", body.path, body.content, body.frontmatter, if_none_match=excluded)


def _write_to_json(path: str, result: WriteResult) -> JsonObject:
    return {
        "path": path,
        "status": result.status,
        "write_id": result.write_id,
        "timestamp": format_iso(result.written_at),
        "content_hash": result.content_hash,
        "etag": result.etag,
        "merged": result.merged,
        "conflict_copy": result.conflict_copy,
    }


def unavailable_actions() -> dict[tuple[str, str], ZoneAction]:
    """Return a failing action for every action of the optional zones; the real actions replace them."""
    return {(zone, name): _unavailable_action(zone) for zone, name in BODY_TYPES if zone in OPTIONAL_ZONES}


def _unavailable_action(zone: str) -> ZoneAction:
    reason = f"The zone {zone} is not available in this service. Configure it, then restart."

    async def reject(context: ActionContext) -> CommitStep:
        raise FeatureNotImplemented(reason)

    route = fixed_route(MessageRoute((), reason))
    return ZoneAction(OPTIONAL_ZONES[zone], reject, route, unavailable_reason=reason)
