"""SQL of the kept prompts and answers of model calls. They are compressed, and in a table of their own: the run log has
only their hashes, so they can be deleted.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from stentor.core.db import AppendOnlyTable, Sql, Tx
from stentor.domains.llm.contents.model import CallContent, decompress

_CONTENTS = AppendOnlyTable(
    "llm_contents",
    ("call_id", "tenant", "key_name", "request", "response", "redacted", "truncated", "kept_at"),
)
_FIND = Sql(
    """select request, response, redacted, truncated, kept_at from llm_contents
    where call_id = :call_id and tenant = :tenant"""
)
IDS_PER_STATEMENT = 50
MAX_SHORT_BYTES = 16 * 1024
"""Largest compressed text that is read for a list of calls, which must be fast."""
_IDS = ", ".join(f":id_{n}" for n in range(IDS_PER_STATEMENT))
_SHORT = Sql(
    f"""select call_id, case when length(request) <= {MAX_SHORT_BYTES} then request end,
    case when length(response) <= {MAX_SHORT_BYTES} then response end
    from llm_contents where tenant = :tenant and call_id in ({_IDS})"""
)
_DELETE = Sql("delete from llm_contents where call_id = :call_id and tenant = :tenant")
_EXPIRED = Sql("select call_id, tenant from llm_contents where kept_at < :before order by kept_at limit :limit")
# A row comparison, so that contents of the same microsecond are neither skipped nor listed twice.
_LIST = Sql(
    """select call_id, kept_at from llm_contents
    where (kept_at, call_id) > (:after_time, :after_id) and kept_at < :before and tenant = :tenant
    and (:key_name = '' or key_name = :key_name) order by kept_at, call_id limit :limit"""
)
Position = tuple[int, str]
START: Position = (-1, "")
"""Before the first content."""


class StoredContent(msgspec.Struct, frozen=True):
    """The kept texts of a call; None for one that the call did not have.

    `kept_at` in microseconds; None for a content that is not in this table.
    """

    request: str | None
    response: str | None
    redacted: bool
    truncated: bool
    kept_at: int | None


NO_CONTENT = StoredContent(None, None, redacted=False, truncated=False, kept_at=None)


def insert_content(tx: Tx, call_id: str, tenant: str, key_name: str, content: CallContent) -> None:
    """Store the content of a call, if the call had any."""
    parts = [part for part in (content.request, content.response) if part is not None]
    if not parts:
        return
    flags = int(any(part.redacted for part in parts)), int(any(part.truncated for part in parts))
    texts = [part and part.data for part in (content.request, content.response)]
    tx.append(_CONTENTS, (call_id, tenant, key_name, *texts, *flags, tx.now))


def find_content(tx: Tx, tenant: str, call_id: str) -> StoredContent | None:
    row = tx.row(_FIND, tenant=tenant, call_id=call_id)
    if row is None:
        return None
    *texts, redacted, truncated, kept_at = row
    request, response = map(_decompress, texts)
    return StoredContent(request, response, bool(redacted), bool(truncated), kept_at)


def find_short_texts(tx: Tx, tenant: str, call_ids: Sequence[str]) -> dict[str, tuple[str | None, str | None]]:
    """Return request and response of at most IDS_PER_STATEMENT calls; None for a text that is long or not there."""
    ids = {f"id_{n}": call_ids[n] if n < len(call_ids) else "" for n in range(IDS_PER_STATEMENT)}
    rows = tx.rows(_SHORT, tenant=tenant, **ids)
    return {str(call_id): (_decompress(request), _decompress(response)) for call_id, request, response in rows}


def _decompress(data: bytes | None) -> str | None:
    return None if data is None else decompress(data)


def delete_content(tx: Tx, tenant: str, call_id: str) -> bool:
    """Delete the content of a call; return whether it was there."""
    return tx.run(_DELETE, tenant=tenant, call_id=call_id) > 0


def list_expired(tx: Tx, before: int, limit: int) -> list[tuple[str, str]]:
    """Return call id and tenant of the oldest contents of all tenants that were kept before a time."""
    return [(str(call_id), str(tenant)) for call_id, tenant in tx.rows(_EXPIRED, before=before, limit=limit)]


def delete_contents(tx: Tx, ids: list[tuple[str, str]]) -> int:
    """Delete contents by call id and tenant; return how many were there."""
    return sum(delete_content(tx, tenant, call_id) for call_id, tenant in ids)


def list_contents(tx: Tx, tenant: str, key_name: str, before: int, after: Position, limit: int) -> list[Position]:
    """Return the positions (time and call id) of contents after one, oldest first; an empty key means all."""
    after_time, after_id = after
    rows = tx.rows(
        _LIST,
        tenant=tenant,
        key_name=key_name,
        before=before,
        after_time=after_time,
        after_id=after_id,
        limit=limit,
    )
    return [(int(kept_at), str(call_id)) for call_id, kept_at in rows]
