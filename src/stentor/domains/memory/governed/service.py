"""The four calls of the governed memory: write, read, search and status of records.

Each is first authorized by `authorization`; records and their versions are in `records`, the wire types in `model`.
Source: second contract, "Governed memory server".
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import NoReturn

import msgspec

from stentor.auth.authority.context import TASKS_NAMESPACE, AuthorityContext, realm
from stentor.core import jsontext
from stentor.core.clock import format_iso
from stentor.core.db import Database, Tx, idempotency
from stentor.core.db.idempotency import IdempotencyKey, StoredResponse
from stentor.core.errors import AuthorityDenied, Conflict, InvalidRequest, NotFound, PreconditionFailed
from stentor.domains.memory.governed import records
from stentor.domains.memory.governed.authorization import (
    READ_CAPABILITY,
    WRITE_CAPABILITY,
    AccessRequest,
    MemoryAuthorizer,
)
from stentor.domains.memory.governed.model import (
    FoundRecord,
    FoundRecords,
    MemoryStatus,
    ReadAsked,
    ReadRecord,
    RecordStatus,
    SearchAsked,
    StatusAsked,
    WriteAsked,
    WrittenRecord,
)
from stentor.domains.memory.governed.records import RecordAddress
from stentor.domains.memory.index.model import SEARCH_FIELDS, Folders, SearchFilters
from stentor.domains.memory.model import MemoryCaller, WriteDraft, WriteResult
from stentor.domains.memory.search import VALID_NOW, SearchScope, parse_scope
from stentor.domains.memory.service import NO_HOOKS, WriteHooks
from stentor.domains.memory.validity.frontmatter_keys import KEYS
from stentor.domains.memory.validity.model import Cause, ChainLink, Exclusion
from stentor.domains.memory.vaults import VaultParts, VaultRegistry
from stentor_vault.notes.frontmatter import BOM
from stentor_vault.notes.model import ANY_STATE, NO_FILE, NoSuchNote, ReadOnlyNote, content_hash
from stentor_vault.text.documents import NoteDocument

IDEMPOTENCY_ROUTE = "mcp write-memory"
LOCK_COUNT = 64
UNREACHABLE = "(not accessible)"
"""In place of a note that the caller cannot read."""
_JOURNALED = 102
"""In place of a response's status: the write was decided, and has not failed; its response is to come."""
_Match = tuple[str, str, float, Exclusion | None, bool]
"""The path, the excerpt, the score and the mark of a match, and whether it is weak."""


class _Journaled(msgspec.Struct, frozen=True):
    """The hashes of a record's file before and after a write that was decided."""

    before_hash: str
    after_hash: str


class GovernedMemory:
    """The calls. Each raises AuthorityDenied if it is not authorized, and InvalidRequest for invalid arguments.

    A vault that is not configured is reported only after the authorization: a caller without access must not learn
    which vaults exist.
    """

    def __init__(self, authorizer: MemoryAuthorizer, vaults: VaultRegistry, db: Database) -> None:
        self._authorizer = authorizer
        self._vaults = vaults
        self._db = db
        self._locks = [asyncio.Lock() for _ in range(LOCK_COUNT)]

    async def deny(self, tool: str) -> NoReturn:
        """Record the denial of a call without any authority, and raise it."""
        await self._authorizer.authorize(None, AccessRequest(tool, "", ""), _do_nothing)
        raise AuthorityDenied("The call has no verified authority.")

    async def write(self, context: AuthorityContext | None, request: WriteAsked) -> WrittenRecord:
        """Create or replace a record.

        Raises IdempotencyMismatch, and Conflict if the record is not in the state of `base_hash` or its name differs
        from an existing one only in case.
        """
        address = records.resolve_record(request.namespace, request.key)
        key = _idempotency_key(context, request)
        access = AccessRequest("write-memory", WRITE_CAPABILITY, address.namespace)
        # Held from the lookup of the idempotency key to the storage of the response, so that a repeated call that
        # arrives during the first one is replayed and not executed again.
        async with self._locks[hash(address) % len(self._locks)]:
            caller, stored = await self._authorizer.authorize(
                context, access, lambda tx: idempotency.find_response(tx, key) if key else None
            )
            if stored is not None and stored.status_code != _JOURNALED:
                return _replay(stored, caller, address)
            parts = self._vaults.get(address.vault)
            result = None if stored is None else await _find_earlier(stored, parts, caller, address, request)
            if result is None:
                result = await self._write(context, caller, address, request, key)
            if isinstance(result, WrittenRecord):
                return result
            return await self._db.write(
                lambda tx: _store_result(tx, caller, address, parts.memory.stored_path(address.path), result, key)
            )

    async def _write(
        self,
        context: AuthorityContext | None,
        caller: MemoryCaller,
        address: RecordAddress,
        request: WriteAsked,
        key: IdempotencyKey | None,
    ) -> WriteResult | WrittenRecord:
        """Write, and return the result, or the response of another call with the same key."""
        parts = self._vaults.get(address.vault)
        caller = msgspec.structs.replace(caller, may_write=partial(_may_write, context, address.vault))
        draft = WriteDraft("write", address.path, request.content, request.metadata, expected_hash=request.base_hash)
        # A note of a vault may be a person's: without `base_hash` it can be created, but not replaced.
        if request.base_hash is None and records.is_vault_namespace(address.namespace):
            draft = msgspec.structs.replace(draft, if_none_match=frozenset((ANY_STATE,)))

        try:
            return await parts.memory.write(caller, draft, NO_HOOKS if key is None else _key_hooks(key))
        except (PreconditionFailed, Conflict) as problem:
            # After a lost response, the caller's own write is what conflicts with the repeated call.
            stored = None if key is None else await self._db.write(lambda tx: idempotency.find_response(tx, key))
            if stored is not None and stored.status_code != _JOURNALED:
                return _replay(stored, caller, address)
            earlier = None if stored is None else await _find_earlier(stored, parts, caller, address, request)
            return earlier or _raise_conflict(problem, address, request)

    async def read(self, context: AuthorityContext | None, request: ReadAsked) -> ReadRecord:
        """Return a record. Raises NotFound, and InvalidRequest for a file that is not UTF-8."""
        address = records.resolve_record(request.namespace, request.key)
        caller, _ = await self._authorizer.authorize(
            context, AccessRequest("read-memory", READ_CAPABILITY, address.namespace), _do_nothing
        )
        parts = self._vaults.get(address.vault)
        stored_path = parts.memory.stored_path(address.path)
        document, raw_hash = await _read_document(parts, caller, address)
        version = await self._db.read(lambda tx: records.find_version(tx, stored_path, raw_hash))
        if version is None:
            # The note was changed outside this server. Read it again under the lock of the record's writers, or the
            # version recorded here could be one that a writer has replaced in the meantime.
            async with self._locks[hash(address) % len(self._locks)]:
                document, raw_hash = await _read_document(parts, caller, address)
                version = await self._db.write(lambda tx: records.record_versions(tx, stored_path, raw_hash))
        exclusion = None
        if not KEYS.isdisjoint(document.frontmatter):
            exclusion = await parts.index.find_exclusion(address.path)
        return ReadRecord(
            address.record_id, address.namespace, address.key, document.content, document.frontmatter, version,
            document.content_hash, caller.parent_event_id or "", address.path,
            invalid=msgspec.UNSET if exclusion is None else _without_unreachable(context, address.vault, exclusion),
        )  # fmt: skip

    async def search(self, context: AuthorityContext | None, request: SearchAsked) -> FoundRecords:
        """Search the records of exactly this namespace, or the notes in a vault folder and its subfolders.

        Raises EmbeddingUnavailable for the semantic mode.
        """
        namespace = records.normalize_namespace(request.namespace)
        caller, _ = await self._authorizer.authorize(
            context, AccessRequest("search-memory", READ_CAPABILITY, namespace), _do_nothing
        )
        vault = records.vault_of_namespace(namespace)
        parts = self._vaults.get(vault)
        scope = _scope(request)
        search_key = [namespace, request.query, request.mode]
        if scope != VALID_NOW:
            search_key += [str(request.as_of), str(request.include_invalid)]
        offset = records.decode_cursor(request.cursor, search_key)
        end = offset + request.limit
        folders = await _accessible_folders(parts, context, namespace)
        # From the first result on, because a search has no offset; what comes before is cut off below.
        is_complete = await parts.search.is_complete()
        matches, total = await _search(parts, caller, request, folders, end, scope)
        candidates = [await self._found_record(context, parts, vault, match) for match in matches[offset:]]
        results = [record for record in candidates if record is not None]
        next_cursor = records.encode_cursor(end, search_key) if total > end and end <= records.MAX_OFFSET else None
        return FoundRecords(
            namespace, request.query, request.mode, results, total, next_cursor, caller.parent_event_id or "",
            incomplete=not is_complete,
        )  # fmt: skip

    async def status(self, context: AuthorityContext | None, request: StatusAsked) -> MemoryStatus:
        """Return the figures of a namespace, and the state of one record if requested. Raises NotFound."""
        namespace = records.normalize_namespace(request.namespace)
        caller, _ = await self._authorizer.authorize(
            context, AccessRequest("get-memory-status", READ_CAPABILITY, namespace), _do_nothing
        )
        address = None if request.record_id is None else records.parse_record_id(request.record_id)
        # Access was checked for the namespace only, so a record of another one must not be reported.
        if address is not None and address.namespace != namespace:
            raise NotFound(f"The record {request.record_id!r} does not exist in the namespace {namespace!r}.")
        parts = self._vaults.get(records.vault_of_namespace(namespace))
        stats = await parts.index.folder_stats(await _accessible_folders(parts, context, namespace))
        return MemoryStatus(
            namespace,
            stats.documents,
            stats.size,
            stats.with_vectors,
            None if stats.modified_at is None else format_iso(stats.modified_at),
            parts.embedding_worker.problem,
            None if address is None else await self._record_status(parts, address),
            caller.parent_event_id or "",
        )

    async def _found_record(
        self, context: AuthorityContext | None, parts: VaultParts, vault: str, match: _Match
    ) -> FoundRecord | None:
        path, excerpt, score, exclusion, weak = match
        document = await parts.index.find_document(path)
        if document is None or not path.endswith(records.NOTE_SUFFIX):
            return None  # deleted since the search, or not a note
        address = records.record_at_path(path, vault)
        version = await self._db.read(
            lambda tx: records.find_version(tx, parts.memory.stored_path(path), document.raw_hash)
        )
        return FoundRecord(
            address.record_id, path, address.key, document.title or address.key, excerpt, score, version,
            document.content_hash, None if exclusion is None else _without_unreachable(context, vault, exclusion), weak,
        )  # fmt: skip

    async def _record_status(self, parts: VaultParts, address: RecordAddress) -> RecordStatus:
        document = await parts.index.find_document(address.path)
        if document is None:
            raise _not_found(address)
        version = await self._db.read(
            lambda tx: records.find_version(tx, parts.memory.stored_path(address.path), document.raw_hash)
        )
        return RecordStatus(
            address.record_id, version, document.content_hash, document.size, format_iso(document.modified_at), True,
            document.model is not None,
        )  # fmt: skip


def _key_hooks(key: IdempotencyKey) -> WriteHooks:
    """Return the hooks that record a decided write under the key, and delete that if a repeat must redo it."""

    def on_journaled(tx: Tx, before_hash: str, after_hash: str) -> None:
        body = msgspec.to_builtins(_Journaled(before_hash, after_hash))
        idempotency.store_response(tx, key, StoredResponse(_JOURNALED, body))

    return WriteHooks(on_journaled, lambda tx: idempotency.forget_response(tx, key, _JOURNALED))


async def _find_earlier(
    stored: StoredResponse, parts: VaultParts, caller: MemoryCaller, address: RecordAddress, request: WriteAsked
) -> WriteResult | None:
    """Return the result of the write that an earlier call decided, None if it may not have been applied yet.

    If others have written since, `etag` is empty.
    """
    journaled = msgspec.convert(stored.body, _Journaled)
    written_hash = content_hash(request.content.removeprefix(BOM).encode())
    try:
        document, raw_hash = await parts.memory.read(caller, address.path)
        if raw_hash == journaled.after_hash:
            written_hash = document.content_hash
    except (NoSuchNote, InvalidRequest):  # deleted since, or overwritten by what is no text
        raw_hash = NO_FILE
    if raw_hash != journaled.after_hash:
        if await parts.memory.journal.is_open(address.path, journaled.after_hash):
            return None
        raw_hash = NO_FILE
    return WriteResult("success", "", 0, written_hash, raw_hash, journaled.before_hash)


def _replay(stored: StoredResponse, caller: MemoryCaller, address: RecordAddress) -> WrittenRecord:
    response = msgspec.convert(stored.body, WrittenRecord)
    changes = {"disposition": "replayed", "provenance_id": caller.parent_event_id or "", "path": address.path}
    return msgspec.structs.replace(response, **changes)


def _raise_conflict(problem: PreconditionFailed | Conflict, address: RecordAddress, request: WriteAsked) -> NoReturn:
    if isinstance(problem, PreconditionFailed):
        raise Conflict(
            f"{address.path!r} already exists as a note; read it, and write with the base_hash that you read."
        ) from None
    if request.base_hash is None or isinstance(problem, ReadOnlyNote):
        raise problem  # a case collision or a record that keeps changing: the message says which
    raise Conflict("The record is not in the state that base_hash names; read it again.") from problem


def _may_write(context: AuthorityContext | None, vault: str, path: str) -> bool:
    namespace = records.record_at_path(path, vault).namespace
    return context is not None and realm(namespace) != TASKS_NAMESPACE and context.can_write(namespace)


async def _accessible_folders(parts: VaultParts, context: AuthorityContext | None, namespace: str) -> Folders:
    """Return the one folder of a record namespace, or all folders at and below a vault's that the caller may access."""
    if not records.is_vault_namespace(namespace):
        return records.folder_of_namespace(namespace)
    vault = records.vault_of_namespace(namespace)
    pairs = ((folder, records.namespace_of_folder(folder, vault)) for folder in await parts.index.list_folders())
    return tuple(
        folder
        for folder, name in pairs
        # With the slashes, so that `vault/Project` does not include `vault/Projects`.
        if context and f"{name}/".startswith(f"{namespace}/") and context.can_reach(name)
    )


async def _read_document(parts: VaultParts, caller: MemoryCaller, address: RecordAddress) -> tuple[NoteDocument, str]:
    try:
        return await parts.memory.read(caller, address.path)
    except NoSuchNote:
        raise _not_found(address) from None


def _not_found(address: RecordAddress) -> NotFound:
    return NotFound(f"The record {address.key!r} does not exist in the namespace {address.namespace!r}.")


async def _search(
    parts: VaultParts, caller: MemoryCaller, request: SearchAsked, folders: Folders, limit: int, scope: SearchScope
) -> tuple[list[_Match], int]:
    """Return the matches, and their total number."""
    if request.mode == "keyword":
        words = request.query.split()
        results, total = await parts.search.keyword(caller, words, SEARCH_FIELDS, "any", limit, folders, scope)
        return [(found.path, found.excerpt, found.relevance_score, found.invalid, False) for found in results], total
    filters = SearchFilters(folder=folders)
    if request.mode == "semantic":
        near, total = await parts.search.semantic(caller, request.query, None, limit, filters, scope)
        return [(match.path, match.excerpt, match.similarity_score, match.invalid, match.weak) for match in near], total
    hybrid, total = await parts.search.hybrid(caller, request.query, limit, filters, scope)
    return [(match.path, match.excerpt, match.score, match.invalid, match.weak) for match in hybrid], total


def _scope(request: SearchAsked) -> SearchScope:
    return parse_scope(request.as_of, include_invalid=request.include_invalid)


def _without_unreachable(context: AuthorityContext | None, vault: str, exclusion: Exclusion) -> Exclusion:
    """Return the exclusion without the names of notes that the caller cannot read, and what is said of them."""

    def can_read(path: str) -> bool:
        return context is not None and context.can_reach(records.record_at_path(path, vault).namespace)

    chain = tuple(link if can_read(link.path) else ChainLink(UNREACHABLE, UNREACHABLE) for link in exclusion.chain)
    cause = exclusion.cause
    if cause.kind != "source" and not can_read(cause.path):
        cause = Cause(at=cause.at, kind=cause.kind, target=UNREACHABLE)
    return Exclusion(exclusion.path, cause, chain)


def _store_result(
    tx: Tx,
    caller: MemoryCaller,
    address: RecordAddress,
    stored_path: str,
    result: WriteResult,
    key: IdempotencyKey | None,
) -> WrittenRecord:
    hashes = (result.before_hash, result.etag) if result.etag else ()
    version = records.record_versions(tx, stored_path, *hashes)
    response = WrittenRecord(
        address.record_id, address.namespace, address.key, version, result.content_hash,
        "updated" if result.before_hash else "created", caller.parent_event_id or "", address.path,
    )  # fmt: skip
    if key is not None:
        idempotency.store_response(tx, key, StoredResponse(200, msgspec.to_builtins(response)))
    return response


def _idempotency_key(context: AuthorityContext | None, request: WriteAsked) -> IdempotencyKey | None:
    """Return the key in the scope of the principal; its digest covers the whole request."""
    if request.idempotency_key is None or context is None:
        return None
    digest = jsontext.sorted_digest(msgspec.to_builtins(request))
    return IdempotencyKey(context.tenant, context.principal, IDEMPOTENCY_ROUTE, request.idempotency_key, digest)


def _do_nothing(tx: Tx) -> None:
    pass
