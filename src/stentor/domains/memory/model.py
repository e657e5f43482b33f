"""A write as a caller asks for it, and what is decided of it. Pure.

Folders of the vault where agents do not write: what lies there acts with more authority than theirs.

Names for a version that could not be merged and stays beside its note, as Obsidian's users know them. Pure.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec

from stentor.auth.principal import Principal
from stentor.core.clock import SECOND
from stentor.core.errors import Conflict, Forbidden, InvalidRequest, NotFound, PreconditionFailed
from stentor.domains.memory import documents
from stentor.domains.notes import merge
from stentor.domains.notes.model import ANY_STATE, NO_FILE, content_hash
from stentor.domains.notes.paths import MAX_PATH_LENGTH, MAX_SEGMENT_BYTES

WriteOperation = Literal["write", "update", "delete"]
ConflictResolution = Literal["last_write_wins", "abort", "merge"]
Priority = Literal["high", "normal", "low"]


class WriteDraft(msgspec.Struct, frozen=True):
    """`content` and `frontmatter` are None where the caller leaves them as they are.

    `base_hash` is the state that the caller knew (of the file or of the content); `expected` is one of the file or of
    the content that must hold even when the write would change nothing. Of the states `if_match` of the file one must
    hold, of `if_none_match` none may; ANYTHING among them is any file.
    """

    operation: WriteOperation
    path: str
    content: str | None = None
    frontmatter: dict[str, Any] | None = None
    source_agent: str | None = None
    priority: Priority = "normal"
    resolution: ConflictResolution = "last_write_wins"
    base_hash: str | None = None
    if_match: frozenset[str] | None = None
    expected_hash: str | None = None
    if_none_match: frozenset[str] = frozenset()


class WriteDecision(msgspec.Struct, frozen=True):
    """What to do with the file: `after` are its bytes (None: it goes), unless it is a conflict.

    `loser` are the bytes that the caller wanted and that are kept beside the note.
    """

    after: bytes | None
    conflict: bool = False
    merged: bool = False
    losing_content: bytes | None = None


def decide_write(draft: WriteDraft, present: bytes | None, known: frozenset[str], base: bytes | None) -> WriteDecision:
    """`present` are the file's bytes, `known` the hashes of states that the caller has seen, `base` the
    bytes of the last of them, where they are known.

    Raises NotFound for an update or deletion of nothing, PreconditionFailed for If-Match or If-None-Match,
    Conflict for another state than the expected one.
    """
    _require(draft, present)
    if draft.resolution == "last_write_wins" or not _conflicting(draft, present, known):
        return WriteDecision(_wanted(draft, present))
    if draft.resolution == "abort" or draft.operation == "delete":
        return WriteDecision(present, conflict=True)
    if present is None:
        return WriteDecision(_wanted(draft, None))  # of a removal and a change, the change is kept
    return _merged(draft, present, base)


def _require(draft: WriteDraft, present: bytes | None) -> None:
    if draft.if_match is not None and not _holds(draft.if_match, present):
        raise PreconditionFailed(f"{draft.path!r} is not in the state that If-Match names; read it again.")
    if _holds(draft.if_none_match, present):
        raise PreconditionFailed(f"{draft.path!r} is there, in a state that If-None-Match names.")
    if draft.expected_hash is not None and draft.expected_hash not in _hashes(draft.path, present):
        raise Conflict(f"{draft.path!r} is not in the state that was expected; read it again.")
    if present is None and draft.operation != "write":
        raise NotFound(f"There is no document {draft.path!r} to {draft.operation}.")
    if draft.operation == "write" and draft.content is None:
        raise InvalidRequest("document.content: a write needs the content; update leaves it as it is.")


def _holds(states: frozenset[str], present: bytes | None) -> bool:
    return present is not None and (ANY_STATE in states or content_hash(present) in states)


def _conflicting(draft: WriteDraft, present: bytes | None, known: frozenset[str]) -> bool:
    """Whether the caller changes a state that it has not seen. Who names the state with If-Match has seen it.

    That there is nothing is a state like others for who knows of another; who knows of none makes a new note.
    """
    if draft.if_match is not None:
        return False
    seen = {draft.base_hash} if draft.base_hash is not None else known
    if present is None:
        return bool(seen) and NO_FILE not in seen and ANY_STATE not in draft.if_none_match
    return _hashes(draft.path, present).isdisjoint(seen) and _wanted(draft, present) != present


def _hashes(path: str, present: bytes | None) -> set[str]:
    """Of the file, and of its content alone; none of what is not there."""
    if present is None:
        return set()
    document = documents.parse_document(path, present)
    return {content_hash(present)} | ({document.content_hash} if document else set())


def _wanted(draft: WriteDraft, present: bytes | None) -> bytes | None:
    if draft.operation == "delete":
        return None
    return documents.edit_document(
        present, draft.content, draft.frontmatter, replace_frontmatter=draft.operation == "write"
    )


def _merged(draft: WriteDraft, present: bytes, base: bytes | None) -> WriteDecision:
    """The caller's change of what it knew, together with the changes since; else its version goes beside the note."""
    wanted = _wanted(draft, base if base is not None else present)
    assert wanted is not None
    if base is not None:
        try:
            text = merge.merge_notes(base.decode(), wanted.decode(), present.decode())
        except (merge.MergeConflict, UnicodeDecodeError):
            pass
        else:
            return WriteDecision(text.encode(), merged=True)
    return WriteDecision(present, conflict=True, losing_content=wanted)


TASKS_FOLDER, RECORDS_FOLDER = "tasks", "memory"
"""Notes below `Tasks/Inbox` become tasks, those below `Memory/` are records of the governed memory's namespaces."""


def require_writable_path(principal: Principal, path: str, *, is_governed: bool) -> None:
    """Refuse an agent's write below `Tasks/`, and below `Memory/` unless the governed memory admitted it (`governed`).

    Compares as file systems do that fold case. Raises Forbidden.
    """
    if principal.role == "admin":
        return
    top = unicodedata.normalize("NFKC", path).casefold().partition("/")[0].strip()
    if top == TASKS_FOLDER or (top == RECORDS_FOLDER and not is_governed):
        raise Forbidden(f"Agents do not write to {path.partition('/')[0]!r}: submit a task, or use the memory server.")


MAX_CONFLICT_COPIES = 1_000
MAX_SUFFIX_BYTES = 16
"""Bytes of what counts as the kind of a file, and is never cut."""


def conflict_copy_names(path: str, now: int) -> Iterator[str]:
    """Names for copies that are made at this time (in microseconds), in the order in which they are to be tried."""
    folder, slash, name = path.rpartition("/")
    stem, dot, suffix = name.rpartition(".")
    if not stem or len(suffix.encode()) > MAX_SUFFIX_BYTES:
        stem, dot, suffix = name, "", ""
    when = datetime.fromtimestamp(now / SECOND, UTC).strftime("%Y%m%d%H%M%S")
    for number in range(1, MAX_CONFLICT_COPIES + 1):
        end = f" (Conflicted copy stentor {when}{f' {number}' if number > 1 else ''}){dot}{suffix}"
        room = MAX_PATH_LENGTH - len(folder) - len(slash) - len(end)
        yield f"{folder}{slash}{_truncate_bytes(stem, MAX_SEGMENT_BYTES - len(end.encode()))[: max(room, 0)]}{end}"


def _truncate_bytes(text: str, size: int) -> str:
    """As much of the text as these bytes hold."""
    return text.encode()[:size].decode(errors="ignore")
