"""Keeps prompts and answers of model calls beside the run log, and deletes them: on request, and after their days.

The run log has only SHA-256 of them, so it still verifies when they are gone. Fails closed: what cannot be redacted is
not stored.
"""

from __future__ import annotations

import asyncio
import logging
import time
from functools import partial

from stentor.auth.principal import Principal
from stentor.core import jsontext
from stentor.core.clock import DAY, format_iso_or_none
from stentor.core.db import NO_LOCKS, Database, Tx
from stentor.core.db.locks.leader import LeaderElection
from stentor.core.jsontext import JsonObject
from stentor.core.runlog import EventDraft, RunLog
from stentor.core.security.content_redaction import ContentRedactor
from stentor.core.security.pattern_process import PatternProcess, PatternsTooSlow
from stentor.domains.llm import queries
from stentor.domains.llm.contents import store
from stentor.domains.llm.contents.model import CallContent, Content, KeptText, compress
from stentor.domains.llm.contents.store import START, Position

INTERVAL_SECONDS = 60.0
BATCH = 500
"""Contents that one transaction deletes."""
FOREVER = 2**62
NOT_REDACTED = "[not kept: it could not be redacted]"
log = logging.getLogger(__name__)


class ContentKeeper:
    """Redacts contents: the service's own patterns in a thread, the operator's in another process."""

    def __init__(self, redactor: ContentRedactor, patterns: PatternProcess | None) -> None:
        self._redactor, self._patterns = redactor, patterns

    async def redact(self, request: bytes, response: bytes) -> CallContent:
        """Return what may be stored. Never raises: what cannot be redacted is replaced by a mark."""
        try:
            if self._patterns is None:
                # Most texts are short, so one thread for both.
                return await asyncio.to_thread(self._redact_all, request, response)
            return CallContent(*[await self._redact(data, self._patterns) for data in (request, response)])
        except PatternsTooSlow as error:
            log.warning("llm: content not kept, SERVICE_LLM_REDACT_PATTERNS failed error=%s", error)
        except Exception:
            log.exception("llm: content not kept, it could not be redacted")
        failed = KeptText(compress(jsontext.encode(NOT_REDACTED)), redacted=True)
        return CallContent(failed, failed)

    def _redact_all(self, *parts: bytes) -> CallContent:
        masked = [self._mask_secrets(data) for data in parts]
        return CallContent(*[part and part[0].finish(part[1]) for part in masked])

    async def _redact(self, data: bytes, patterns: PatternProcess) -> KeptText | None:
        masked = await asyncio.to_thread(self._mask_secrets, data)
        if masked is None:
            return None
        content, texts = masked
        return await asyncio.to_thread(content.finish, await patterns.redact(texts))

    def _mask_secrets(self, data: bytes) -> tuple[Content, list[str]] | None:
        if not data:
            return None
        content = Content(data)
        return content, [self._redactor.redact(text) for text in content.texts]

    async def close(self) -> None:
        if self._patterns is not None:
            await self._patterns.close()


class ContentService:
    """Deletes contents. `days` is how long they are kept, 0 for good; `keeps` whether new ones are kept."""

    def __init__(self, db: Database, runlog: RunLog, *, keeps: bool, days: int) -> None:
        self._db, self._runlog = db, runlog
        self.keeps, self.days = keeps, days

    def expires_at(self, kept_at: int) -> int | None:
        """Return when content is deleted, in microseconds; None for never."""
        return kept_at + self.days * DAY if self.days else None

    async def delete_one(self, caller: Principal, call_id: str) -> int:
        """Delete the content of a call; return 1, or 0 if none was kept. Raises NotFound for an unknown call."""

        def work(tx: Tx) -> int:
            queries.require_call(tx, caller.tenant, call_id)
            deleted = int(store.delete_content(tx, caller.tenant, call_id))
            self._record(tx, caller, deleted, {"call_id": call_id})
            return deleted

        return await self._db.write(work, NO_LOCKS)

    async def delete_many(self, caller: Principal, key: str | None, before: int | None) -> int:
        """Delete the contents of a key, or those kept before a time (microseconds), or both; return how many."""
        # In batches with a cursor: one transaction over all contents of a key would block the writer for seconds.
        total, after = 0, START
        limit = FOREVER if before is None else before
        scope = {"of_key": key, "before": format_iso_or_none(before)}

        def delete_batch(tx: Tx, after: Position) -> tuple[int, Position | None]:
            found = store.list_contents(tx, caller.tenant, key or "", limit, after, BATCH)
            deleted = sum(store.delete_content(tx, caller.tenant, call_id) for _, call_id in found)
            self._record(tx, caller, deleted, scope)
            return deleted, found[-1] if len(found) == BATCH else None

        while True:
            deleted, last = await self._db.write(partial(delete_batch, after=after), NO_LOCKS)
            total += deleted
            if last is None:
                return total
            after = last

    def _record(self, tx: Tx, caller: Principal, deleted: int, scope: JsonObject) -> None:
        """Record a deletion that found something."""
        if deleted:
            metadata = {"by": caller.name, "deleted": deleted, **scope}
            text = f"{caller.name} deleted the content of {deleted} model call{'' if deleted == 1 else 's'}."
            self._runlog.append(tx, caller.tenant, [EventDraft("content_deleted", "llm", text, metadata)])

    async def run(self, leader: LeaderElection) -> None:
        """Delete expired contents forever, while this process is the leader."""
        if self.days:
            # One process is enough, and several would only wait for each other's rows.
            await leader.tick_while_leader("expired contents", INTERVAL_SECONDS, self.delete_expired)

    async def delete_expired(self) -> int:
        """Delete the contents that are older than their days, in small transactions; return how many."""
        total = 0
        while True:
            started = time.monotonic()
            # A transaction that writes nothing is not worth its place in the queue of the writer.
            expired = await self._db.read(lambda tx: store.list_expired(tx, tx.now - self.days * DAY, BATCH))
            if expired:
                total += await self._db.write(partial(store.delete_contents, ids=expired), NO_LOCKS)
            if len(expired) < BATCH:
                return total
            # As long as the work took, so that tasks have at least half of the writer.
            await asyncio.sleep(time.monotonic() - started)
