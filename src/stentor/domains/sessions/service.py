"""Makes sessions, and reads and changes their items and values. A session that the caller may not use is NotFound.

Every change takes the session's lock, so that positions and counts are right, and is one transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec

from stentor.auth.principal import IsActive, Principal, require_active
from stentor.core import ids, jsontext
from stentor.core.db import Database, Tx, idempotency
from stentor.core.db.idempotency import IdempotencyKey
from stentor.core.db.locks import locks
from stentor.core.errors import Conflict, InvalidRequest, NotFound
from stentor.core.jsontext import JsonObject
from stentor.core.runlog import EventDraft, RunLog
from stentor.domains.contents import store as contents
from stentor.domains.sessions import item_store, model, store, value_store
from stentor.domains.sessions.model import Item, ItemDraft, KeySpan, Session, StoredValue, ValueDraft, ValueQuery

T = TypeVar("T")


class SessionService:
    """The use cases of sessions."""

    def __init__(self, db: Database, runlog: RunLog, is_active: IsActive) -> None:
        self._db, self._runlog, self._is_active = db, runlog, is_active

    async def create(
        self, caller: Principal, session_id: str | None, name: str | None, metadata: JsonObject
    ) -> tuple[Session, bool]:
        """Make a session; return it, and whether it is new: one with this id stays as it is.

        Raises InvalidRequest, Conflict for an id whose session the caller may not use, and Forbidden for the key of
        stopped agents.
        """
        _check_metadata(metadata)
        session_id = session_id or ids.new_id()

        def work(tx: Tx) -> tuple[Session, bool]:
            session = store.find(tx, caller.tenant, session_id)
            if session is not None:
                if not session.is_visible_to(caller):
                    raise Conflict(f"The id {session_id!r} is taken: use another one.")
                return session, False
            require_active(caller, self._is_active, "create sessions")
            session = Session(caller.tenant, session_id, name, metadata, caller.name, tx.now, tx.now)
            store.insert(tx, session)
            meta = {"session_id": session_id, "by": caller.name}
            event = EventDraft("session_created", "sessions", f"Session {session_id} created.", meta)
            self._runlog.append(tx, caller.tenant, [event])
            return session, True

        return await self._db.write(work, (locks.session_lock(caller.tenant, session_id),))

    async def get(self, caller: Principal, session_id: str) -> Session:
        """Raises NotFound."""
        return await self._db.read(lambda tx: require_usable(tx, caller, session_id))

    async def list_page(self, caller: Principal, before: tuple[int, str] | None, limit: int) -> list[Session]:
        """Return sessions that the caller may use, by their last change, the newest first."""
        creator = caller.name if caller.is_bound_agent else None
        return await self._db.read(lambda tx: store.list_page(tx, caller.tenant, creator, before or (2**62, ""), limit))

    async def list_by_reference(self, caller: Principal, text: str, limit: int) -> list[Session]:
        """Return sessions that the caller may use, by the beginning or the end of their id or by their name."""
        creator = caller.name if caller.is_bound_agent else None
        return await self._db.read(lambda tx: store.list_by_reference(tx, caller.tenant, creator, text, limit))

    async def change(self, caller: Principal, session_id: str, changes: dict[str, Any]) -> Session:
        """Change the name or the metadata. Raises NotFound and InvalidRequest."""
        if "metadata" in changes:
            _check_metadata(changes["metadata"])

        def work(tx: Tx, session: Session) -> Session:
            changed = msgspec.structs.replace(session, **changes, updated_at=tx.now)
            store.update(tx, changed)
            return changed

        return await self._change(caller, session_id, work)

    async def delete(self, caller: Principal, session_id: str) -> None:
        """Delete a session with its items and values. What tasks have recorded stays theirs. Raises NotFound."""

        def work(tx: Tx, session: Session) -> None:
            self._clear(tx, session, caller, items=True, spans=[KeySpan.of_prefix("")], change="deleted")
            store.delete(tx, session)

        await self._change(caller, session_id, work)

    async def clear(self, caller: Principal, session_id: str, *, items: bool, spans: Sequence[KeySpan]) -> Session:
        """Remove all items, or the values of some keys, or both. Raises NotFound."""

        def work(tx: Tx, session: Session) -> Session:
            self._clear(tx, session, caller, items=items, spans=spans, change="cleared")
            return require_session(tx, caller, session_id)

        return await self._change(caller, session_id, work)

    async def append(
        self,
        caller: Principal,
        session_id: str,
        drafts: Sequence[ItemDraft],
        expected_count: int | None,
        key: IdempotencyKey | None = None,
    ) -> Session:
        """Append items, all or none; return the session after it. A repeated call with the same key appends nothing.

        Raises NotFound, and Conflict if it has not `expected_count` items.
        """

        def append(tx: Tx, session: Session) -> Session:
            if expected_count is not None and expected_count != session.item_count:
                raise Conflict(
                    f"The session has {session.item_count} items, not {expected_count}: somebody has changed it. "
                    "Read the items again.",
                    {"item_count": session.item_count, "expected_count": expected_count},
                )
            append_in_tx(tx, session, drafts, None)
            return require_usable(tx, caller, session_id)

        def work(tx: Tx) -> Session:
            session = require_usable(tx, caller, session_id)
            self._require_active(tx, session, caller)
            # With the check of the count inside: a repeated request would fail it because of its own items.
            return idempotency.run_once(tx, _key_of(session, key), Session, lambda: append(tx, session))

        return await self._db.write(work, (locks.session_lock(caller.tenant, session_id),))

    async def begin_turn(self, caller: Principal, session_id: str, task_id: str | None) -> list[Item]:
        """Return the last summary of a session and the items after it, for a request that continues it.

        `task_id` is the task for which the request is made. Raises NotFound, and Conflict while another task continues
        the conversation.
        """

        def read(tx: Tx) -> list[Item]:
            session = require_usable(tx, caller, session_id)
            other = store.find_other_work(tx, session, caller.name, task_id)
            if other is not None:
                raise Conflict(
                    f"Task {other} is continuing the conversation of the session {session_id!r}. Ask again when it "
                    "has ended."
                )
            return item_store.list_since_summary(tx, session)

        return await self._db.read(read)

    async def append_turn(
        self, caller: Principal, session_id: str, drafts: Sequence[ItemDraft], last_position: int
    ) -> None:
        """Append a question and its answer.

        `last_position` is the position of the session's last item when the question was asked; 0 for an empty session.
        Raises NotFound, and Conflict if the items have changed since: the answer would be to another
        conversation.
        """

        def work(tx: Tx) -> None:
            session = require_usable(tx, caller, session_id)
            if item_store.find_last_position(tx, session) != last_position:
                raise Conflict(
                    f"The session {session_id!r} has changed since the question was asked, so neither the question "
                    "nor the answer was added. Ask again."
                )
            append_in_tx(tx, session, drafts, None)

        await self._db.write(work, (locks.session_lock(caller.tenant, session_id),))

    async def list_items(
        self, caller: Principal, session_id: str, after: int, before: int | None, limit: int
    ) -> tuple[Session, list[Item]]:
        """Return the session, and its items after a position or the last ones before one, oldest first.

        There may be fewer than `limit` where the page would be too large. Raises NotFound.
        """

        def read(tx: Tx) -> tuple[Session, list[Item]]:
            session = require_usable(tx, caller, session_id)
            if before is not None:
                return session, item_store.list_newest(tx, session, before, limit)
            return session, item_store.list_after(tx, session, after, limit)

        return await self._db.read(read)

    async def pop(self, caller: Principal, session_id: str, key: IdempotencyKey | None = None) -> Item | None:
        """Remove the last item and return it, or None for a session without items. Raises NotFound.

        A repeated call with the same key removes nothing, and returns the same item.
        """

        def pop(tx: Tx, session: Session) -> list[Item]:
            items = item_store.list_newest(tx, session, session.last_number + 1, 1)
            for item in items:
                count, size, hashes = item_store.delete_from(tx, session, item.position)
                # The last number stays: no two items of a session ever have the same position.
                store.note_change(tx, session, session.last_number, items=-count, size=-size)
                contents.remove_unused(tx, session.tenant, hashes)
            return items

        # A list, so that the stored response can also say that there was no item.
        def work(tx: Tx, session: Session) -> list[Item]:
            return idempotency.run_once(tx, _key_of(session, key), list[Item], lambda: pop(tx, session))

        return next(iter(await self._change(caller, session_id, work)), None)

    async def set_values(
        self, caller: Principal, session_id: str, drafts: Sequence[ValueDraft], *, if_absent: bool = False
    ) -> Session:
        """Set values, all or none; return the session after it. Raises NotFound.

        With `if_absent` a key that has a value keeps it.
        """

        def work(tx: Tx, session: Session) -> Session:
            number, added, size, replaced = session.last_number, 0, 0, list[str]()
            for draft in drafts:
                old_size, old_hash = value_store.find_size(tx, session, draft.key) or (None, None)
                if if_absent and old_size is not None:
                    continue
                number += 1
                value_store.set_value(tx, session, number, draft, is_new=old_size is None)
                added += old_size is None
                size += len(draft.content) - (old_size or 0)
                replaced += [old_hash] if old_hash is not None else []
            store.note_change(tx, session, number, values=added, size=size)
            contents.remove_unused(tx, session.tenant, replaced)
            return require_session(tx, caller, session_id)

        return await self._change(caller, session_id, work)

    async def get_values(self, caller: Principal, session_id: str, keys: Sequence[str]) -> list[StoredValue]:
        """Return the values of these keys; those that do not exist are left out.

        Raises NotFound for the session, and InvalidRequest if several have more than a page may have together.
        """

        def read(tx: Tx) -> list[StoredValue]:
            session = require_session(tx, caller, session_id)
            wanted = list(dict.fromkeys(keys))
            # A single value is read whatever its size, because no request could ask for less.
            sizes = (value_store.find_size(tx, session, key) for key in wanted if len(wanted) > 1)
            total = sum(found[0] for found in sizes if found is not None)
            if total > model.MAX_PAGE_BYTES:
                raise InvalidRequest(
                    f"key: these values have {total:,} bytes together, more than {model.MAX_PAGE_BYTES:,}: read fewer "
                    "at once."
                )
            found = (value_store.find(tx, session, key) for key in wanted)
            return [value for value in found if value is not None]

        return await self._db.read(read)

    async def list_values(
        self, caller: Principal, session_id: str, query: ValueQuery
    ) -> tuple[list[StoredValue], bool]:
        """Return the values of a query, and whether there are more. Raises NotFound."""

        def read(tx: Tx) -> tuple[list[StoredValue], bool]:
            session = require_session(tx, caller, session_id)
            return value_store.list_page(tx, session, query)

        return await self._db.read(read)

    async def hold(
        self, tenant: str, session_id: str, task_id: str, epoch: int, first_run: str | None = None
    ) -> list[Item]:
        """Let the attempt of a task continue the conversation; return the last summary and the items after it.

        With `first_run`, the task with whose steps this one continues, return what that one had. Raises NotFound, and
        Conflict while the attempt of another task continues it.
        """

        def work(tx: Tx) -> None:
            holder = store.hold(tx, tenant, session_id, task_id, epoch)
            if holder is not None:
                raise Conflict(
                    f"Task {holder} is continuing the conversation of the session {session_id!r}. Submit the task "
                    "again when that one has ended, or submit it with `after` that task."
                )

        def read(tx: Tx) -> list[Item]:
            session = store.find(tx, tenant, session_id)
            if session is None:
                raise NotFound(f"The session {session_id!r} was deleted.")
            return item_store.list_since_summary(tx, session, first_run)

        # Read apart from the write: other writers would wait while long items are read.
        await self._db.write(work, (locks.session_lock(tenant, session_id),))
        return await self._db.read(read)

    async def list_before(self, caller: Principal, session_id: str, task_id: str) -> list[Item]:
        """Return what `hold` gave a task that has added its items since, or would give it. Raises NotFound."""
        return await self._db.read(
            lambda tx: item_store.list_since_summary(tx, require_session(tx, caller, session_id), task_id)
        )

    async def _change(self, caller: Principal, session_id: str, work: Callable[[Tx, Session], T]) -> T:
        """Run `work` in a transaction that holds the session's lock."""

        def change(tx: Tx) -> T:
            session = require_session(tx, caller, session_id)
            self._require_active(tx, session, caller)
            return work(tx, session)

        return await self._db.write(change, (locks.session_lock(caller.tenant, session_id),))

    def _require_active(self, tx: Tx, session: Session, caller: Principal) -> None:
        """Raise Forbidden for the key of stopped agents, unless one of them still executes a task of the session."""
        if not self._is_active(caller) and not store.has_work(tx, session, caller.name):
            require_active(caller, self._is_active, "change sessions, except for a task that one of them executes")

    def _clear(
        self, tx: Tx, session: Session, caller: Principal, *, items: bool, spans: Sequence[KeySpan], change: str
    ) -> None:
        """Remove items and values, and record how many."""
        item_count, item_bytes, hashes = item_store.delete_from(tx, session, 0) if items else (0, 0, [])
        value_count, value_bytes = 0, 0
        for span in spans:
            count, length, more = value_store.delete_span(tx, session, span)
            value_count, value_bytes, hashes = value_count + count, value_bytes + length, hashes + more
        size = item_bytes + value_bytes
        store.note_change(tx, session, session.last_number, items=-item_count, values=-value_count, size=-size)
        contents.remove_unused(tx, session.tenant, hashes)
        if change == "deleted" or item_count or value_count:
            counts = {"items": item_count, "values": value_count, "bytes": size}
            meta = {"session_id": session.session_id, "change": change, "by": caller.name} | counts
            text = f"Session {session.session_id} {change}."
            self._runlog.append(tx, session.tenant, [EventDraft("session_deleted", "sessions", text, meta)])


def _key_of(session: Session, key: IdempotencyKey | None) -> IdempotencyKey | None:
    """Return the key of a request to this session: to a later one of the same id it is another request."""
    return key and msgspec.structs.replace(key, body_hash=f"{key.body_hash}/{session.created_at}")


def append_of_task(tx: Tx, tenant: str, session_id: str, task_id: str, drafts: Sequence[ItemDraft]) -> None:
    """Append what a task said, in the transaction that ends the task; nothing if the session has been deleted.

    Another one with its id is not held by the task. A summary is left out if the session was changed since: it would
    hide what was appended, and bring back what was removed.
    """
    # Positions continue from the session's last one, which is read below.
    tx.lock(locks.session_lock(tenant, session_id))
    session = store.find(tx, tenant, session_id)
    if session is not None and store.find_holder(tx, tenant, session_id) == task_id:
        last = item_store.find_last_position(tx, session)
        append_in_tx(tx, session, [draft for draft in drafts if draft.covers in (None, last)], task_id)


def append_in_tx(tx: Tx, session: Session, drafts: Sequence[ItemDraft], task_id: str | None) -> None:
    """Append items under the session's lock."""
    position, size = session.last_number, 0
    for draft in drafts:
        position += 1
        size += item_store.insert(tx, session, position, draft, task_id)
    store.note_change(tx, session, position, items=len(drafts), size=size)


def require_session(tx: Tx, caller: Principal, session_id: str) -> Session:
    """Return a session that the caller may use. Raises NotFound."""
    session = store.find(tx, caller.tenant, session_id)
    if session is None or not session.is_visible_to(caller):
        raise NotFound(f"There is no session {session_id!r}.")
    return session


def require_usable(tx: Tx, caller: Principal, session_id: str) -> Session:
    """Return a session that the caller may read and append to. Raises NotFound.

    A key that is bound to its agents may also while one of them executes a task of the session. Fails closed: when the
    task has ended or its lease is lost, it may not any more.
    """
    session = store.find(tx, caller.tenant, session_id)
    if session is None or not (session.is_visible_to(caller) or store.has_work(tx, session, caller.name)):
        raise NotFound(f"There is no session {session_id!r}.")
    return session


def _check_metadata(metadata: JsonObject) -> None:
    if len(jsontext.encode(metadata)) > model.MAX_METADATA_BYTES:
        raise InvalidRequest(f"metadata: must have at most {model.MAX_METADATA_BYTES:,} bytes as JSON.")
