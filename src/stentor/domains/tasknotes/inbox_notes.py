"""A person's note as a task: what of its frontmatter counts, and what to say when it cannot be one. Pure."""

from __future__ import annotations

import re
import uuid
from typing import Any, Literal

import msgspec

from stentor.domains.notes import frontmatter
from stentor.domains.notes.frontmatter import InvalidFrontmatter
from stentor.domains.tasknotes.model import INBOX_FOLDER
from stentor.domains.tasks.model import DEFAULT_TIMEOUT_SECONDS, MAX_TIMEOUT_SECONDS, TaskDraft, TaskMetadata

MAX_REQUEST_BYTES = 1_000_000
MAX_NAMES, MAX_NAME_LENGTH = 64, 255
MAX_STEM_BYTES = 200
_SPACE = uuid.UUID("7d1f6b0e-6f0b-5d8e-9a61-2f6d5f0c3b7a")
"""Of the ids of tasks that notes became; any fixed one does."""
_ANSWER = re.compile(r" \(answer(?: \d+)?\)\.md\Z", re.IGNORECASE)
_COPY = re.compile(r"\(conflicted copy\b|\.sync-conflict-", re.IGNORECASE)

InboxState = Literal["asked", "answered", "refused"]
InboxStep = Literal["nothing", "adopt", "ask"]


class InvalidTaskNote(ValueError):
    """The note is no task as it stands; each sentence says what to change."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__(" ".join(problems))
        self.problems = problems


class InboxNote(msgspec.Struct, frozen=True):
    """What is known of a note that was asked. `attempt` counts how often, from 0; times in microseconds.

    `refused` is one that was answered with what is wrong with it.
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
    """Whether a file of the vault may be a person's note in the inbox: no answer, no copy that a sync made."""
    folder, _, name = path.rpartition("/")
    return (
        folder == INBOX_FOLDER
        and name.lower().endswith(".md")
        and _ANSWER.search(name) is None
        and _COPY.search(name) is None
    )


def build_answer_path(path: str, number: int = 1) -> str:
    """`Tasks/Inbox/a.md`: `Tasks/Inbox/a (answer).md`, then `a (answer 2).md`; a very long name is cut."""
    stem = path.rpartition("/")[2][:-3]
    raw = stem.encode()
    if len(raw) > MAX_STEM_BYTES:
        mark = uuid.uuid5(_SPACE, stem).hex[:8]
        stem = f"{raw[: MAX_STEM_BYTES - 9].decode(errors='ignore').rstrip()} {mark}"
    return f"{INBOX_FOLDER}/{stem} (answer{'' if number == 1 else f' {number}'}).md"


def derive_task_id(path: str, content_hash: str, attempt: int) -> str:
    """The same for the same note, whoever takes it and how often."""
    return str(uuid.uuid5(_SPACE, f"{path}\0{content_hash}\0{attempt}"))


def choose_step(
    known: InboxNote | None, content_hash: str, modified_at: int, *, has_answer: bool
) -> tuple[InboxStep, int]:
    """What becomes of a note that has come to rest, and the number of the attempt.

    `answered`: its answer lies beside it. A note of which nothing is known but its answer was asked in
    another life of the database, and is not asked again.
    """
    if known is None:
        return ("adopt" if has_answer else "ask"), 0
    changed = known.content_hash != content_hash
    if known.state == "refused" and changed:
        return "ask", known.attempt + 1
    if known.state != "asked" and not has_answer and (changed or known.modified_at != modified_at):
        return "ask", known.attempt + 1
    return "nothing", known.attempt


def parse_task_note(content: bytes) -> TaskDraft | None:
    """The task that a note asks for, without an id; None for a note without frontmatter. Raises Malformed."""
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
    """None for what cannot have frontmatter: a file that is no text."""
    opened = content.removeprefix(b"\xef\xbb\xbf").startswith(b"---")
    if not opened:
        return None
    if len(content) > MAX_REQUEST_BYTES:
        raise InvalidTaskNote([f"The note has {len(content):,} bytes; {MAX_REQUEST_BYTES:,} are the most."])
    try:
        text = content.decode()
    except UnicodeDecodeError:
        raise InvalidTaskNote(["The note is not saved as UTF-8."]) from None
    if "\0" in text:
        raise InvalidTaskNote(["The note has a NUL character in it, which no text has."])
    return text


def _draft(values: dict[str, Any], body: str) -> TaskDraft:
    found = _FrontmatterReader(values)
    kind = found.name("type", "for example `summarize`")
    capabilities = found.names("required_capabilities", required=True)
    timeout = found.number("timeout_seconds", 1, MAX_TIMEOUT_SECONDS, DEFAULT_TIMEOUT_SECONDS)
    preference = found.uuid("agent_preference")
    priority = found.choice("priority", ("high", "normal", "low"))
    tags = found.names("tags")
    if not body:
        found.problems.append("Below the frontmatter there is no text; the text is what the agent is given.")
    if found.problems:
        raise InvalidTaskNote(found.problems)
    meta = TaskMetadata(priority=priority, tags=tags)  # type: ignore[arg-type]
    return TaskDraft(kind, body, None, capabilities, timeout, preference, meta)


class _FrontmatterReader:
    """Reads keys of a frontmatter and collects what is wrong with them. Keys of its own a person may have besides."""

    def __init__(self, values: dict[str, Any]) -> None:
        self.problems: list[str] = []
        nested = values.get("metadata")
        self._values = {**values, **(nested if isinstance(nested, dict) else {})}

    def name(self, key: str, like: str) -> str:
        value = self._values.get(key)
        if _is_name(value):
            return str(value)
        self.problems.append(f"`{key}` must be a name of at most {MAX_NAME_LENGTH} characters, {like}.")
        return ""

    def names(self, key: str, *, required: bool = False) -> tuple[str, ...]:
        """A list, or one text with commas."""
        value = self._values.get(key)
        given = [part.strip() for part in value.split(",")] if isinstance(value, str) else value
        if given is None or given == [] or given == [""]:
            if required:
                self.problems.append(f"`{key}` must name at least one capability, for example `summarize`.")
            return ()
        if (
            isinstance(given, list)
            and len(given) <= MAX_NAMES
            and all(isinstance(x, str) and _is_name(x) for x in given)
        ):
            return tuple(dict.fromkeys(given))
        self.problems.append(f"`{key}` must be a list of at most {MAX_NAMES} names.")
        return ()

    def number(self, key: str, low: int, high: int, default: int) -> int:
        value = self._values.get(key)
        if value is None:
            return default
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

    def choice(self, key: str, allowed: tuple[str, ...]) -> str | None:
        value = self._values.get(key)
        if value is None or value in allowed:
            return value
        self.problems.append(f"`{key}` must be one of {', '.join(allowed)}.")
        return None


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= MAX_NAME_LENGTH and value.isprintable()
