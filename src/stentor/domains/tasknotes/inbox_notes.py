"""Parses a note of the inbox into a task draft, and decides whether to submit it. Pure."""

from __future__ import annotations

import re
import uuid
from typing import Any, Literal, TypeGuard, TypeVar

import msgspec

from stentor.core.jsontext import JsonObject
from stentor.core.validation.text_checks import is_invisible
from stentor.domains.tasknotes.model import INBOX_FOLDER
from stentor.domains.tasks.model import DEFAULT_TIMEOUT_SECONDS, MAX_TIMEOUT_SECONDS, TaskDraft, TaskMetadata
from stentor_vault.notes import frontmatter
from stentor_vault.notes.frontmatter import InvalidFrontmatter
from stentor_vault.notes.paths import UNPORTABLE_CHARACTERS

MAX_REQUEST_BYTES = 1_000_000
MAX_NAMES, MAX_NAME_LENGTH = 64, 255
MAX_STEM_BYTES = 200
_NAMESPACE = uuid.UUID("7d1f6b0e-6f0b-5d8e-9a61-2f6d5f0c3b7a")
"""Namespace of the ids of tasks from notes; changing it would submit notes again."""
_ANSWER = re.compile(r" \(answer(?: \d+)?\)\.md\Z", re.IGNORECASE)
# Names that Dropbox and Syncthing give to conflict copies: each would be submitted as a second task.
_COPY = re.compile(r"\(conflicted copy\b|\.sync-conflict-", re.IGNORECASE)

NOTE_PRIORITIES: tuple[Literal["high", "normal", "low"], ...] = ("high", "normal", "low")
Choice = TypeVar("Choice", bound=str)
InboxState = Literal["asked", "answered", "refused"]
InboxStep = Literal["nothing", "adopt", "ask"]


class InvalidTaskNote(ValueError):
    """The note cannot become a task; each of `problems` is a sentence that says what to change."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__(" ".join(problems))
        self.problems = problems


class InboxNote(msgspec.Struct, frozen=True):
    """The stored state of a note that was submitted. `attempt` counts from 0; times in microseconds.

    State `asked`: the task was submitted or the note has a problem. `refused`: answered with what to change.
    """

    path: str
    content_hash: str
    modified_at: int
    attempt: int
    task_id: str | None
    problem: str | None
    state: InboxState
    answer_path: str | None = None
    answer_hash: str | None = None


def is_candidate(path: str) -> bool:
    """Return whether a path may be a user's note in the inbox, and not an answer or a conflict copy of a sync."""
    folder, _, name = path.rpartition("/")
    return (
        folder == INBOX_FOLDER
        and name.lower().endswith(".md")
        and _ANSWER.search(name) is None
        and _COPY.search(name) is None
    )


def build_answer_path(path: str, number: int = 1) -> str:
    """Return the path of an answer: for `Tasks/Inbox/a.md` `Tasks/Inbox/a (answer).md`, then `a (answer 2).md`.

    A very long name is cut, one with characters that are not valid on every system loses them, and both get a digest.
    """
    # Without `.md`, which `is_candidate` has checked.
    stem = path.rpartition("/")[2][:-3]
    raw = UNPORTABLE_CHARACTERS.sub("", stem).encode()
    # A digest even if only characters are lost: another note may have exactly that name, and would then get no answer.
    if len(raw) > MAX_STEM_BYTES or raw != stem.encode():
        digest = uuid.uuid5(_NAMESPACE, stem).hex[:8]
        stem = f"{raw[: MAX_STEM_BYTES - 9].decode(errors='ignore').rstrip()} {digest}"
    return f"{INBOX_FOLDER}/{stem} (answer{'' if number == 1 else f' {number}'}).md"


def derive_task_id(path: str, content_hash: str, attempt: int) -> str:
    """Return the id of a note's task, always the same for the same arguments."""
    return str(uuid.uuid5(_NAMESPACE, f"{path}\0{content_hash}\0{attempt}"))


def choose_step(
    known: InboxNote | None, content_hash: str, modified_at: int, *, has_answer: bool
) -> tuple[InboxStep, int]:
    """Return what to do with a quiet note, and the number of the attempt.

    `has_answer`: the folder has its answer. An unknown note with an answer was submitted before the database was
    replaced, so it is adopted and not submitted again.
    """
    if known is None:
        return ("adopt" if has_answer else "ask"), 0
    is_changed = known.content_hash != content_hash
    if known.state == "refused" and is_changed:
        return "ask", known.attempt + 1
    # Deleting the answer and saving the note asks again, even with the same content.
    if known.state != "asked" and not has_answer and (is_changed or known.modified_at != modified_at):
        return "ask", known.attempt + 1
    return "nothing", known.attempt


def parse_task_note(content: bytes) -> TaskDraft | None:
    """Return the draft of a note, without an id; None for a note without frontmatter. Raises InvalidTaskNote."""
    text = _text(content)
    if text is None:
        return None
    parts = frontmatter.split(text)
    if parts.block is None or not parts.block.strip():
        return None
    try:
        values = frontmatter.parse_values(parts)
    except InvalidFrontmatter as error:
        raise InvalidTaskNote([error.message]) from None
    return _draft(values, parts.body.strip())


def _text(content: bytes) -> str | None:
    """Return the text; None for a file that cannot have frontmatter. Raises InvalidTaskNote."""
    is_utf16 = content.startswith(("\ufeff---".encode("utf-16-le"), "\ufeff---".encode("utf-16-be")))
    may_have_frontmatter = content.removeprefix(b"\xef\xbb\xbf").startswith(b"---")
    if not may_have_frontmatter and not is_utf16:
        return None
    if len(content) > MAX_REQUEST_BYTES:
        raise InvalidTaskNote([f"The note has {len(content):,} bytes; at most {MAX_REQUEST_BYTES:,} are allowed."])
    try:
        text = content.decode()
    except UnicodeDecodeError:
        raise InvalidTaskNote(["The note is not encoded as UTF-8."]) from None
    if "\0" in text:
        raise InvalidTaskNote(["The note has a NUL character, which is not allowed."])
    return text


def _draft(values: JsonObject, body: str) -> TaskDraft:
    reader = _FrontmatterReader(values)
    kind = reader.name("type", "for example `summarize`")
    capabilities = reader.names("required_capabilities", required=True)
    timeout = reader.number("timeout_seconds", 1, MAX_TIMEOUT_SECONDS, DEFAULT_TIMEOUT_SECONDS)
    preference = reader.uuid("agent_preference")
    priority = reader.choice("priority", NOTE_PRIORITIES)
    tags = reader.names("tags")
    if not body:
        reader.problems.append("Below the frontmatter there is no text; the text is the input of the task.")
    if reader.problems:
        raise InvalidTaskNote(reader.problems)
    meta = TaskMetadata(priority=priority, tags=tags)
    return TaskDraft(kind, body, None, capabilities, timeout, preference, meta)


class _FrontmatterReader:
    """Reads fields of a frontmatter and collects their problems. Unknown fields are ignored."""

    def __init__(self, values: JsonObject) -> None:
        self.problems: list[str] = []
        nested = values.get("metadata")
        self._values = {**values, **(nested if isinstance(nested, dict) else {})}

    def name(self, key: str, example: str) -> str:
        value = self._values.get(key)
        if _is_name(value) and not is_invisible(value):
            return value
        self.problems.append(f"`{key}` must be a name of at most {MAX_NAME_LENGTH} characters, {example}.")
        return ""

    def names(self, key: str, *, required: bool = False) -> tuple[str, ...]:
        """Read a list, or one string with commas."""
        value = self._values.get(key)
        names = [part.strip() for part in value.split(",")] if isinstance(value, str) else value
        if names is None or names == [] or names == [""]:
            if required:
                self.problems.append(f"`{key}` must name at least one capability, for example `summarize`.")
            return ()
        if (
            isinstance(names, list)
            and len(names) <= MAX_NAMES
            and all(isinstance(name, str) and _is_name(name) for name in names)
        ):
            return tuple(dict.fromkeys(names))
        self.problems.append(f"`{key}` must be a list of at most {MAX_NAMES} names.")
        return ()

    def number(self, key: str, low: int, high: int, default: int) -> int:
        value = self._values.get(key)
        if value is None:
            return default
        # In Python True is an int.
        if isinstance(value, int) and not isinstance(value, bool) and low <= value <= high:
            return value
        self.problems.append(f"`{key}` must be a whole number from {low:,} to {high:,}.")
        return default

    def uuid(self, key: str) -> str | None:
        value = self._values.get(key)
        if value is None:
            return None
        try:
            return str(uuid.UUID(value))
        except (ValueError, AttributeError, TypeError):
            self.problems.append(f"`{key}` must be the id of an agent, as `stentor agent list` shows it.")
            return None

    def choice(self, key: str, allowed: tuple[Choice, ...]) -> Choice | None:
        value = self._values.get(key)
        if value is None:
            return None
        for choice in allowed:
            if choice == value:
                return choice
        self.problems.append(f"`{key}` must be one of {', '.join(allowed)}.")
        return None


def _is_name(value: Any) -> TypeGuard[str]:
    return isinstance(value, str) and 0 < len(value) <= MAX_NAME_LENGTH and value.isprintable()
