"""The four uses of the governed memory. Source: second contract, "Governed memory server"."""

from __future__ import annotations

import asyncio
from typing import NoReturn

import msgspec

from stentor.auth.authority.context import AuthorityContext
from stentor.core import jsontext
from stentor.core.clock import format_iso
from stentor.core.db import Database, Tx, idempotency
from stentor.core.db.idempotency import IdempotencyKey, StoredResponse
from stentor.core.errors import AuthorityDenied, Conflict, NotFound, PreconditionFailed
from stentor.domains.memory.documents import NoteDocument
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
from stentor.domains.memory.model import WriteDraft
from stentor.domains.memory.service import MemoryCaller, WriteResult
from stentor.domains.memory.text.tokenizer import drop_stop_words
from stentor.domains.memory.vaults import VaultParts, VaultRegistry
from stentor.domains.notes.model import ANY_STATE, NoSuchNote

IDEMPOTENCY_ROUTE = "mcp write-memory"


class GovernedMemory:
    """Each use raises AuthorityDenied when the gate denies it, and InvalidRequest for what it cannot mean, such as a
    vault that is not configured: only after the gate, so that who reaches nothing learns nothing of it.
    """

    def __init__(self, gate: MemoryAuthorizer, vaults: VaultRegistry, db: Database) -> None:
        self._gate = gate
        self._vaults = vaults
        self._db = db
        self._locks = [asyncio.Lock() for _ in range(64)]

    async def deny(self, tool: str) -> NoReturn:
        """A call of nobody's: the denial is recorded, and raised."""
        await self._gate.authorize(None, AccessRequest(tool, "", ""), _nothing)
        raise AuthorityDenied("The call has no verified authority.")

    async def write(self, who: AuthorityContext | None, asked: WriteAsked) -> WrittenRecord:
        """Create or replace a record. Raises Conflict when `base_hash` is not its state or the key is that of another
        record in other letters, IdempotencyMismatch."""
        target = records.resolve_record(asked.namespace, asked.key)
        key = _replay_key(who, asked)
        use = AccessRequest("write-memory", WRITE_CAPABILITY, target.namespace)
        async with self._locks[hash(target) % len(self._locks)]:
            caller, known = await self._gate.authorize(
                who, use, lambda tx: idempotency.find_response(tx, key) if key else None
            )
            if known is not None:
                replayed = msgspec.convert(known.body, WrittenRecord)
                again = {"disposition": "replayed", "provenance_id": caller.parent_event_id or "", "path": target.path}
                return msgspec.structs.replace(replayed, **again)
            return await self._write(caller, target, asked, key)

    async def _write(
        self, caller: MemoryCaller, target: RecordAddress, asked: WriteAsked, key: IdempotencyKey | None
    ) -> WrittenRecord:
        parts = self._vaults.get(target.vault)
        draft = WriteDraft("write", target.path, asked.content, asked.metadata, expected_hash=asked.base_hash)
        if asked.base_hash is None and records.is_vault_namespace(target.namespace):
            draft = msgspec.structs.replace(draft, if_none_match=frozenset((ANY_STATE,)))
        try:
            done = await parts.memory.write(caller, draft)
        except PreconditionFailed:
            raise Conflict(
                f"{target.path!r} is a note already; read it, and write with the base_hash you read."
            ) from None
        except Conflict as conflict:
            if asked.base_hash is None:
                raise  # a name that is taken in other letters, or a record that changes all the time: it says which
            raise Conflict("The record is not in the state that base_hash names; read it again.") from conflict
        return await self._db.write(lambda tx: _keep(tx, caller, target, parts.memory.key_prefix, done, key))

    async def read(self, who: AuthorityContext | None, asked: ReadAsked) -> ReadRecord:
        """Raises NotFound."""
        target = records.resolve_record(asked.namespace, asked.key)
        caller, _ = await self._gate.authorize(
            who, AccessRequest("read-memory", READ_CAPABILITY, target.namespace), _nothing
        )
        parts = self._vaults.get(target.vault)
        kept = parts.memory.key_prefix + target.path
        document, state = await _document(parts, caller, target)
        version = await self._db.read(lambda tx: records.find_version(tx, kept, state))
        if version is None:
            # Somebody else changed the note. Read again with the writers of the record held off, so that what is
            # counted as seen is what is there, and not what one of them has replaced meanwhile.
            async with self._locks[hash(target) % len(self._locks)]:
                document, state = await _document(parts, caller, target)
                version = await self._db.write(lambda tx: records.record_versions(tx, kept, state))
        return ReadRecord(
            target.record_id, target.namespace, target.key, document.content, document.frontmatter, version,
            document.content_hash, caller.parent_event_id or "", target.path,
        )  # fmt: skip

    async def search(self, who: AuthorityContext | None, asked: SearchAsked) -> FoundRecords:
        """Records of exactly this namespace, or notes of the vault in this folder and below, the best first.

        Raises EmbeddingUnavailable for the semantic mode.
        """
        space = records.normalize_namespace(asked.namespace)
        caller, _ = await self._gate.authorize(who, AccessRequest("search-memory", READ_CAPABILITY, space), _nothing)
        parts = self._vaults.get(records.vault_of_namespace(space))
        same = [space, asked.query, asked.mode]
        offset = records.decode_cursor(asked.cursor, same)
        folders = await _folders(parts, who, space)
        matches, total = await _find(parts, caller, asked, folders, offset + asked.limit)
        vault = records.vault_of_namespace(space)
        results = [one for match in matches[offset:] if (one := await self._found(parts, vault, match)) is not None]
        end = offset + asked.limit
        following = records.encode_cursor(end, same) if total > end and end <= records.MAX_OFFSET else None
        return FoundRecords(space, asked.query, asked.mode, results, total, following, caller.parent_event_id or "")

    async def status(self, who: AuthorityContext | None, asked: StatusAsked) -> MemoryStatus:
        """Raises NotFound for a record that is not there."""
        space = records.normalize_namespace(asked.namespace)
        caller, _ = await self._gate.authorize(
            who, AccessRequest("get-memory-status", READ_CAPABILITY, space), _nothing
        )
        target = None if asked.record_id is None else records.parse_record_id(asked.record_id)
        if target is not None and target.namespace != space:
            raise NotFound(f"There is no record {asked.record_id!r} in the namespace {space!r}.")
        parts = self._vaults.get(records.vault_of_namespace(space))
        stats = await parts.index.folder_stats(await _folders(parts, who, space))
        return MemoryStatus(
            space,
            stats.documents,
            stats.size,
            stats.with_vectors,
            None if stats.modified_at is None else format_iso(stats.modified_at),
            parts.embedding_worker.problem,
            None if target is None else await self._state(parts, target),
            caller.parent_event_id or "",
        )

    async def _found(self, parts: VaultParts, vault: str, match: tuple[str, str, float]) -> FoundRecord | None:
        path, excerpt, score = match
        known = await parts.index.find_document(path)
        if known is None or not path.endswith(records.NOTE_SUFFIX):
            return None  # it went meanwhile, or is no note
        one = records.record_at_path(path, vault)
        version = await self._db.read(
            lambda tx: records.find_version(tx, parts.memory.key_prefix + path, known.raw_hash)
        )
        return FoundRecord(
            one.record_id, path, one.key, known.title or one.key, excerpt, score, version, known.content_hash
        )

    async def _state(self, parts: VaultParts, target: RecordAddress) -> RecordStatus:
        known = await parts.index.find_document(target.path)
        if known is None:
            raise NotFound(f"There is no record {target.key!r} in the namespace {target.namespace!r}.")
        version = await self._db.read(
            lambda tx: records.find_version(tx, parts.memory.key_prefix + target.path, known.raw_hash)
        )
        return RecordStatus(
            target.record_id, version, known.content_hash, known.size, format_iso(known.modified_at), True,
            known.model is not None,
        )  # fmt: skip


async def _folders(parts: VaultParts, who: AuthorityContext | None, space: str) -> Folders:
    """Of a namespace: one; of a vault, all at and below it that the caller reaches."""
    if not records.is_vault_namespace(space):
        return records.folder_of_namespace(space)
    vault = records.vault_of_namespace(space)
    found = ((folder, records.namespace_of_folder(folder, vault)) for folder in await parts.index.list_folders())
    return tuple(folder for folder, name in found if who and f"{name}/".startswith(f"{space}/") and who.can_reach(name))


async def _document(parts: VaultParts, caller: MemoryCaller, target: RecordAddress) -> tuple[NoteDocument, str]:
    try:
        return await parts.memory.read(caller, target.path)
    except NoSuchNote:
        raise NotFound(f"There is no record {target.key!r} in the namespace {target.namespace!r}.") from None


async def _find(
    parts: VaultParts, caller: MemoryCaller, asked: SearchAsked, folder: Folders, most: int
) -> tuple[list[tuple[str, str, float]], int]:
    """Path, excerpt and score of each match; and how many there are."""
    if asked.mode == "keyword":
        words, total = await parts.search.keyword(
            caller, drop_stop_words(asked.query), SEARCH_FIELDS, "any", most, folder
        )
        return [(one.path, one.excerpt, one.relevance_score) for one in words], total
    filters = SearchFilters(folder=folder)
    if asked.mode == "semantic":
        near, total = await parts.search.semantic(caller, asked.query, None, most, filters)
        return [(one.path, one.content_preview, one.similarity_score) for one in near], total
    both, total = await parts.search.hybrid(caller, asked.query, most, filters)
    return [(one.path, one.excerpt, one.score) for one in both], total


def _keep(
    tx: Tx, caller: MemoryCaller, target: RecordAddress, scope: str, done: WriteResult, key: IdempotencyKey | None
) -> WrittenRecord:
    version = records.record_versions(tx, scope + target.path, done.before_hash, done.etag)
    answer = WrittenRecord(
        target.record_id, target.namespace, target.key, version, done.content_hash,
        "updated" if done.before_hash else "created", caller.parent_event_id or "", target.path,
    )  # fmt: skip
    if key is not None:
        idempotency.store_response(tx, key, StoredResponse(200, msgspec.to_builtins(answer)))
    return answer


def _replay_key(who: AuthorityContext | None, asked: WriteAsked) -> IdempotencyKey | None:
    """In the scope of the principal; the body is the whole write."""
    if asked.idempotency_key is None or who is None:
        return None
    body = jsontext.sorted_digest(msgspec.to_builtins(asked))
    return IdempotencyKey(who.tenant, who.principal, IDEMPOTENCY_ROUTE, asked.idempotency_key, body)


def _nothing(tx: Tx) -> None:
    pass
