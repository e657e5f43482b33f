"""The zone memory: the bus, and searches in it.

Zones that the contract has and a service may have switched off: their messages are taken, and fail.
"""

from __future__ import annotations

from typing import Any

import msgspec

from stentor.auth.principal import Permission, Principal
from stentor.core.clock import format_iso, micros_from_datetime
from stentor.core.db import Database
from stentor.core.errors import Conflict, FeatureNotImplemented, PreconditionFailed
from stentor.domains.atp import bodies
from stentor.domains.atp.bodies import (
    BODY_TYPES,
    ActionBody,
    DeleteDocumentBody,
    MemoryQueryBody,
    UpdateDocumentBody,
    VaultBody,
    WriteDocumentBody,
)
from stentor.domains.atp.model import AtpHeader
from stentor.domains.memory.index.model import SEARCH_FIELDS, SearchFilters
from stentor.domains.memory.model import WriteDraft
from stentor.domains.memory.service import MemoryCaller, WriteResult
from stentor.domains.memory.vaults import DEFAULT_VAULT, VaultParts, VaultRegistry
from stentor.domains.messaging import store
from stentor.domains.messaging.model import ActionContext, ActionResult, CommitStep, MessageRoute, ZoneAction
from stentor.domains.notes.model import ANY_STATE

ITSELF = MessageRoute((), "The memory bus does it itself.")
WRITTEN_STATUSES = frozenset(("success", "conflict"))


class MemoryZone:
    """Each action raises InvalidRequest for a vault that is not configured."""

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
        return {("memory", name): ZoneAction("admin", act, _itself, self._tenant) for name, act in actions.items()}

    async def query(self, work: ActionContext) -> CommitStep:
        body = work.body
        assert isinstance(body, MemoryQueryBody)
        kind = body.query_type or ("semantic" if work.header.action_type == "query" else "keyword")
        shown = await (self._exact(work, body.path or "") if kind == "exact" else self._find(work, body, kind))
        return lambda tx: ActionResult(shown, ITSELF)

    async def _exact(self, work: ActionContext, path: str) -> dict[str, Any]:
        """Raises NotFound."""
        document, etag = await self._vault(work).memory.read(_caller(work), path)
        shown = {"path": document.path, "content": document.content, "frontmatter": document.frontmatter}
        return {"query_type": "exact", "document": shown, "etag": etag}

    async def _find(self, work: ActionContext, body: MemoryQueryBody, kind: str) -> dict[str, Any]:
        """Raises EmbeddingUnavailable for a search by meaning without a model."""
        text, filters, caller = body.text or "", _filters(body.filters), _caller(work)
        search = self._vault(work).search
        matches: list[Any]
        if kind == "keyword":
            found, total = await search.keyword(caller, text.split(), SEARCH_FIELDS, "any", body.top_k)
            matches = list(found)
        elif kind == "hybrid":
            both, total = await search.hybrid(caller, text, body.top_k, filters)
            matches = list(both)
        else:
            near, total = await search.semantic(caller, text, None, body.top_k, filters)
            matches = list(near)
        shown = [msgspec.structs.asdict(match) | {"vault": body.vault or DEFAULT_VAULT} for match in matches]
        return {"query_type": kind, "matches": shown, "total_matches": total}

    async def write(self, work: ActionContext) -> CommitStep:
        """Create, upsert, update or delete. What an earlier carrier wrote before it was killed is not written again."""
        if work.message.epoch > 1:
            done = await self._db.read(lambda tx: store.find_memory_write(tx, work.message.provenance_id))
            if done is not None and done["status"] in WRITTEN_STATUSES:
                return lambda tx: ActionResult(_recorded(done), ITSELF)
        draft = _draft(work)
        try:
            written = await self._vault(work).memory.write(_caller(work), draft)
        except PreconditionFailed:
            raise Conflict(f"There is a document {draft.path!r} already; update or upsert it.") from None
        return lambda tx: ActionResult(_written(draft.path, written), ITSELF)

    async def status(self, work: ActionContext) -> CommitStep:
        report = msgspec.to_builtins(await self._vault(work).health.report())
        return lambda tx: ActionResult(report, ITSELF)

    def _vault(self, work: ActionContext) -> VaultParts:
        assert isinstance(work.body, VaultBody)
        return self._vaults.get(work.body.vault or DEFAULT_VAULT)


def _caller(work: ActionContext) -> MemoryCaller:
    """The event that its use of the memory hangs under is the message's first: the same whoever carries it."""
    return MemoryCaller(work.principal, work.message.sender_agent, None, work.message.provenance_id)


def _draft(work: ActionContext) -> WriteDraft:
    body = work.body
    if isinstance(body, DeleteDocumentBody):
        options = {"base_hash": body.base_hash, "resolution": body.conflict_resolution}
        return WriteDraft("delete", body.path, **options)  # type: ignore[arg-type]
    if isinstance(body, UpdateDocumentBody):
        options = {"base_hash": body.base_hash, "resolution": body.conflict_resolution}
        return WriteDraft("update", body.path, body.content, body.frontmatter, **options)  # type: ignore[arg-type]
    assert isinstance(body, WriteDocumentBody)
    excluded = frozenset([ANY_STATE] if work.header.action_type == "create" else [])
    return WriteDraft("write", body.path, body.content, body.frontmatter, if_none_match=excluded)


def _written(path: str, written: WriteResult) -> dict[str, Any]:
    return {
        "path": path,
        "status": written.status,
        "write_id": written.write_id,
        "timestamp": format_iso(written.written_at),
        "content_hash": written.content_hash,
        "etag": written.etag,
        "merged": written.merged,
        "conflict_copy": written.conflict_copy,
    }


def _recorded(event: dict[str, Any]) -> dict[str, Any]:
    """As much of `_written` as the run log knows."""
    return {name: event[name] for name in ("path", "status", "write_id")} | {"etag": event["after_hash"]}


def _filters(given: bodies.MemoryQueryFilters) -> SearchFilters:
    after = None if given.created_after is None else micros_from_datetime(given.created_after)
    return SearchFilters(given.hebbian_weight_min, after)


def _itself(principal: Principal, header: AtpHeader, body: ActionBody) -> MessageRoute:
    return ITSELF


OPTIONAL_ZONES: dict[str, Permission] = {"memory": "admin"}
"""Zone to the permission that it needs where it is switched on."""


def unavailable_actions() -> dict[tuple[str, str], ZoneAction]:
    """An action for every pair of these zones; the real ones take their places."""
    return {
        (zone, name): ZoneAction(
            OPTIONAL_ZONES[zone], _reject_unavailable, _route_unavailable, unavailable_reason=_unavailable_reason(zone)
        )
        for zone, name in BODY_TYPES
        if zone in OPTIONAL_ZONES
    }


async def _reject_unavailable(work: ActionContext) -> CommitStep:
    raise FeatureNotImplemented(_unavailable_reason(work.header.target_zone))


def _unavailable_reason(zone: str) -> str:
    return f"The zone {zone} is part of the API, but this service does not have it."


def _route_unavailable(principal: Principal, header: AtpHeader, body: ActionBody) -> MessageRoute:
    return MessageRoute((), _unavailable_reason(header.target_zone))
