"""Who calls the memory, and decisions about writes: the requested write, its result, conflict detection, reserved
folders, names of conflict copies. Pure.

`service` reads the current note, calls `decide_write` and carries the decision out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Literal

import msgspec

from stentor.auth.principal import Principal
from stentor.core.clock import SECOND
from stentor.core.errors import Conflict, Forbidden, InvalidRequest, NotFound, PreconditionFailed
from stentor.core.jsontext import JsonObject
from stentor.core.validation.text_checks import to_visible
from stentor_vault.notes import merge
from stentor_vault.notes.model import ANY_STATE, NO_FILE, content_hash
from stentor_vault.notes.paths import MAX_PATH_LENGTH, MAX_SEGMENT_BYTES
from stentor_vault.text import documents

WriteOperation = Literal["write", "update", "delete"]
ConflictResolution = Literal["last_write_wins", "abort", "merge"]
Priority = Literal["high", "normal", "low"]
TASKS_FOLDER, RECORDS_FOLDER = "tasks", "memory"
"""Notes below `Tasks/Inbox` become tasks, those below `Memory/` are records with access rules of their own."""
MAX_CONFLICT_COPIES = 1_000
MAX_SUFFIX_BYTES = 16
"""A longer file name suffix is treated as a part of the name, which may be truncated."""
_CONFLICT_COPY = re.compile(r"(.+) \(Conflicted copy stentor \d{14}(?: \d+)?\)(\.[^./]+)?", re.DOTALL)

VersionCause = Literal["found", "edited", "written", "restored"]
"""The origin of a version: present before the service, an edit on disk, a write, a restored older version."""
CallerIdentity = tuple[str, str, str | None]
"""Tenant, key name, and the agent that the key claims to act for."""
MaySearch = Callable[[str], bool]
"""Whether the notes of a folder of the default vault may be found."""


def _may_write_none(path: str) -> bool:
    return False


class MemoryCaller(msgspec.Struct, frozen=True):
    """The caller, and the task or else the event that the call belongs to.

    `is_governed`: the governed memory authorized the call. `may_write` tells of an agent which other notes of the vault
    it may write; it is asked before its mark takes notes out of searches, and denies without being set.
    """

    principal: Principal
    agent_id: str | None = None
    task_id: str | None = None
    parent_event_id: str | None = None
    is_governed: bool = False
    may_write: Callable[[str], bool] = _may_write_none

    @property
    def identity(self) -> CallerIdentity:
        return self.principal.tenant, self.principal.name, self.agent_id

    @property
    def author(self) -> str:
        """The name at marks: the key of a person; of an agent its id if that is verified, else the key's name."""
        if self.principal.is_person:
            return self.principal.name
        # A key with admin may name any agent, so only the key is certain.
        verified = self.agent_id if self.principal.is_bound_agent else None
        return f"agent:{verified or self.principal.name}"


class WriteDraft(msgspec.Struct, frozen=True):
    """A requested write. None for `content` or `frontmatter` leaves it unchanged.

    `base_hash` is the version that the caller read last, as hash of the file or of its content. `expected_hash` is one
    that must be current even if the write would change nothing. Of the file hashes `if_match` one must be current, of
    `if_none_match` none may be; ANY_STATE among them stands for any file. `mark_reason` is why a mark is removed.
    With `knows_last_written`, a caller of whom the service knows no read or write of the note counts as one who knows
    the state that was written last through the service.
    """

    operation: WriteOperation
    path: str
    content: str | None = None
    frontmatter: JsonObject | None = None
    source_agent: str | None = None
    priority: Priority = "normal"
    resolution: ConflictResolution = "last_write_wins"
    base_hash: str | None = None
    if_match: frozenset[str] | None = None
    expected_hash: str | None = None
    if_none_match: frozenset[str] = frozenset()
    mark_reason: str | None = None
    knows_last_written: bool = False


class WriteDecision(msgspec.Struct, frozen=True):
    """What a write does: `after` are the file's new bytes (None deletes it), in a conflict the current ones.

    `losing_content` are the requested bytes that could not be merged, to be stored as a conflict copy.
    """

    after: bytes | None
    conflict: bool = False
    merged: bool = False
    losing_content: bytes | None = None


class WriteResult(msgspec.Struct, frozen=True):
    """The outcome of a write.

    `etag` and `before_hash` are hashes of the file's bytes after and before the write, empty for no file.
    `content_hash` covers the content without frontmatter; after a deletion it is the deleted content's, empty if there
    was none. `vectors_ready_at` estimates when semantic search covers the change, in microseconds; None if it already
    does.
    """

    status: Literal["success", "conflict"]
    write_id: str
    written_at: int
    content_hash: str
    etag: str
    before_hash: str
    merged: bool = False
    conflict_copy: str | None = None
    vectors_ready_at: int | None = None


def decide_write(
    draft: WriteDraft, current: bytes | None, seen_hashes: frozenset[str], base: bytes | None
) -> WriteDecision:
    """Decide a write to a file with these bytes (None for no file).

    `seen_hashes` are the versions that the caller read last, `base` the bytes of the latest of them if they are stored.
    Raises NotFound for an update or deletion of a missing note, PreconditionFailed for If-Match or If-None-Match,
    Conflict if the expected version is not current.
    """
    _require_preconditions(draft, current)
    if draft.resolution == "last_write_wins" or not _is_conflict(draft, current, seen_hashes):
        return WriteDecision(_requested_content(draft, current))
    # A deletion cannot be merged, and must not remove text that its caller never saw.
    if draft.resolution == "abort" or draft.operation == "delete":
        return WriteDecision(current, conflict=True)
    if current is None:
        # Deleted by one, changed by the other: the change wins, so that no content is lost.
        return WriteDecision(_requested_content(draft, None))
    return _merge(draft, current, base)


def require_writable_path(principal: Principal, path: str, *, is_governed: bool) -> None:
    """Raise Forbidden for an agent's write below `Tasks/`, or below `Memory/` without the governed memory.

    Notes in these folders act with more authority than an agent's own. Keys with the role `admin` may write anywhere.
    """
    if principal.is_person:
        return
    # Compares names like a file system that ignores case, Unicode forms and invisible characters, such as ext4 with
    # `casefold` and HFS+: there `TASKS/` is the same folder.
    top = to_visible(path).casefold().partition("/")[0].strip()
    if top == TASKS_FOLDER or (top == RECORDS_FOLDER and not is_governed):
        raise Forbidden(f"Agents cannot write to {path.partition('/')[0]!r}: submit a task or use the memory server.")


def conflict_copy_names(path: str, now: int) -> Iterator[str]:
    """Yield names for a conflict copy at this time (microseconds), in the form that Obsidian users know."""
    folder, slash, name = path.rpartition("/")
    stem, dot, suffix = name.rpartition(".")
    if not stem or len(suffix.encode()) > MAX_SUFFIX_BYTES:
        stem, dot, suffix = name, "", ""
    when = datetime.fromtimestamp(now / SECOND, UTC).strftime("%Y%m%d%H%M%S")
    for number in range(1, MAX_CONFLICT_COPIES + 1):
        end = f" (Conflicted copy stentor {when}{f' {number}' if number > 1 else ''}){dot}{suffix}"
        room = MAX_PATH_LENGTH - len(folder) - len(slash) - len(end)
        yield f"{folder}{slash}{_truncate_bytes(stem, MAX_SEGMENT_BYTES - len(end.encode()))[: max(room, 0)]}{end}"


def find_copied_path(path: str) -> str | None:
    """Return the path of the note of which this is a conflict copy; None if it is none. A long one was cut off."""
    match = _CONFLICT_COPY.fullmatch(path)
    return f"{match[1]}{match[2] or ''}" if match else None


def _truncate_bytes(text: str, size: int) -> str:
    """Return the longest beginning of the text that fits into this many bytes of UTF-8."""
    return text.encode()[:size].decode(errors="ignore")


def _require_preconditions(draft: WriteDraft, current: bytes | None) -> None:
    if draft.if_match is not None and not _matches(draft.if_match, current):
        raise PreconditionFailed(f"{draft.path!r} is not in the state that If-Match names; read it again.")
    if _matches(draft.if_none_match, current):
        raise PreconditionFailed(f"{draft.path!r} exists in a version that If-None-Match lists.")
    if draft.expected_hash is not None and draft.expected_hash not in version_hashes(draft.path, current):
        raise Conflict(f"{draft.path!r} is not in the expected state; read it again.")
    if current is None and draft.operation != "write":
        raise NotFound(f"The document {draft.path!r} does not exist, so there is nothing to {draft.operation}.")
    if draft.operation == "write" and draft.content is None:
        raise InvalidRequest("document.content: is required for a write; an update leaves it unchanged.")


def _matches(hashes: frozenset[str], current: bytes | None) -> bool:
    return current is not None and (ANY_STATE in hashes or content_hash(current) in hashes)


def _is_conflict(draft: WriteDraft, current: bytes | None, seen_hashes: frozenset[str]) -> bool:
    """Return whether the write changes a version that the caller has not seen.

    A caller that names the version with If-Match has seen it. A missing file is a conflict only for a caller that has
    seen a version of it: the note was deleted since. Any other caller creates a new note.
    """
    if draft.if_match is not None:
        return False
    seen = {draft.base_hash} if draft.base_hash is not None else seen_hashes
    if current is None:
        return bool(seen) and NO_FILE not in seen and ANY_STATE not in draft.if_none_match
    # A write without effect is not a conflict, whatever the caller has seen.
    return version_hashes(draft.path, current).isdisjoint(seen) and _requested_content(draft, current) != current


def version_hashes(path: str, current: bytes | None) -> set[str]:
    """Return the hashes of the file and of its content without the frontmatter, by which callers may name a version."""
    if current is None:
        return set()
    document = documents.parse_document(path, current)
    return {content_hash(current)} | ({document.content_hash} if document else set())


def _requested_content(draft: WriteDraft, current: bytes | None) -> bytes | None:
    if draft.operation == "delete":
        return None
    return documents.edit_document(
        current, draft.content, draft.frontmatter, replace_frontmatter=draft.operation == "write"
    )


def _merge(draft: WriteDraft, current: bytes, base: bytes | None) -> WriteDecision:
    """Merge the caller's change of the base with the changes since; if that fails, decide on a conflict copy."""
    # The request refers to the version that the caller read: an update of the frontmatter keeps the text of the base.
    requested = _requested_content(draft, base if base is not None else current)
    assert requested is not None
    if base is not None:
        try:
            text = merge.merge_notes(base.decode(), requested.decode(), current.decode())
        except (merge.MergeConflict, UnicodeDecodeError):
            pass
        else:
            return WriteDecision(text.encode(), merged=True)
    return WriteDecision(current, conflict=True, losing_content=requested)
