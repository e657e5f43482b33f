"""What a note says about its validity: when it holds, what it was derived from and what is wrong with it. Pure.

The keys of its frontmatter are flat texts, lists and dates, as Obsidian's properties are. Values that cannot be read
are a problem of the note and have no effect.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import msgspec

from stentor.core.clock import DAY, micros_from_datetime
from stentor.core.jsontext import JsonObject
from stentor_vault.text.passages import (
    MAX_ANCHOR_CHARS,
    CutText,
    anchor_key,
    cut_passages,
    normalize_anchor,
    split_anchor,
)

if TYPE_CHECKING:
    from stentor_vault.text.documents import NoteDocument  # loads YAML, which commands that need only the keys do not

VALID_FROM, VALID_TO, DERIVED_FROM, TASK_ID = "valid_from", "valid_to", "derived_from", "task_id"
INVALID, INVALID_BY, INVALID_AT, INVALID_CLAIMS = "invalid", "invalid_by", "invalid_at", "invalid_claims"
MARK_KEYS = (INVALID, INVALID_BY, INVALID_AT, INVALID_CLAIMS)
KEYS = frozenset((VALID_FROM, VALID_TO, DERIVED_FROM, TASK_ID, *MARK_KEYS))
TASK_SOURCE = "task:"
MAX_SOURCES = 200
"""Entries of `derived_from` and of `invalid_claims` that are read."""
MAX_SOURCE_CHARS = MAX_ANCHOR_CHARS
SEPARATOR = " | "
"""Between the parts of a claim: anchor, reason, who and when. No heading that can be linked to has it."""
_NO, _YES = {"", "no", "false", "off", "0", "n"}, {"yes", "true", "on", "1", "y"}
FLAG_WORDS = _NO | _YES
"""Texts of `invalid` that are no reason: people type them for true and false."""
_LINK = re.compile(r"!?\[\[([^\[\]|]+)(?:\|[^\[\]]*)?\]\]")
_MARKDOWN_LINK = re.compile(r"\[[^\[\]]*\]\(<?([^()<>\s]+)>?\)")
_FILE = re.compile(r"(?i).+?\.md(?=\s*(?:[#^]|$))")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")


class Mark(msgspec.Struct, frozen=True):
    """Why something is invalid, as far as it is known; `at` is the text of the note or an ISO time."""

    reason: str | None = None
    by: str | None = None
    at: str | None = None


class ClaimMark(msgspec.Struct, frozen=True):
    """A passage of the note that is invalid."""

    anchor: str
    mark: Mark


class Source(msgspec.Struct, frozen=True):
    """An entry of `derived_from`.

    `name` is the text by which the source is invalidated; `target` the path or name of a note that it may mean (empty
    if it cannot), with the normalized anchor of a passage there.
    """

    text: str
    name: str
    target: str = ""
    anchor: str = ""


class NoteValidity(msgspec.Struct, frozen=True):
    """What a note's frontmatter says; times in microseconds. It holds from `valid_from` on and before `valid_to`."""

    valid_from: int | None = None
    valid_to: int | None = None
    mark: Mark | None = None
    claims: tuple[ClaimMark, ...] = ()
    sources: tuple[Source, ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def problem(self) -> str | None:
        return " ".join(self.problems) or None


EMPTY = NoteValidity()


def read_document(document: NoteDocument) -> tuple[NoteValidity, CutText | None]:
    """Return what the frontmatter says of validity, and the text without its invalid passages, None if it has none."""
    validity = read_validity(document.frontmatter)
    if not validity.claims:
        return validity, None
    cut = cut_passages(document.content, (claim.anchor for claim in validity.claims))
    if cut.missing:
        missing = (f"{INVALID_CLAIMS}: the note has no passage {anchor!r}." for anchor in cut.missing)
        validity = msgspec.structs.replace(validity, problems=(*validity.problems, *missing))
    return validity, cut


def read_validity(frontmatter: Mapping[str, Any]) -> NoteValidity:
    """Return what the frontmatter says."""
    if KEYS.isdisjoint(frontmatter):
        return EMPTY
    problems: list[str] = []
    valid_from, valid_to = (_read_time(frontmatter, key, problems) for key in (VALID_FROM, VALID_TO))
    if valid_from is not None and valid_to is not None and valid_to <= valid_from:
        problems.append(f"{VALID_TO} is not after {VALID_FROM}, so the note is never valid.")
    texts = _read_texts(frontmatter, DERIVED_FROM, problems)
    sources = [parse_source(text) for text in texts]
    task_id = frontmatter.get(TASK_ID)
    if isinstance(task_id, str) and task_id.strip():
        sources.append(parse_source(f"{TASK_SOURCE}{task_id.strip()}"))
    claims = [_parse_claim(text, problems) for text in _read_texts(frontmatter, INVALID_CLAIMS, problems)]
    return NoteValidity(
        valid_from,
        valid_to,
        _read_mark(frontmatter, problems),
        tuple(claim for claim in claims if claim is not None),
        tuple(dict.fromkeys(sources)),
        tuple(problems),
    )


def parse_source(text: str) -> Source:
    """Return what an entry of `derived_from` means: a wikilink, a link, the path of a note, or any other source."""
    text = text.strip()
    if match := _LINK.fullmatch(text):
        target, anchor = split_anchor(match[1])
        return Source(text, _source_name(match[1]), target, anchor_key(anchor))
    if match := _MARKDOWN_LINK.fullmatch(text):
        address = match[1] if _SCHEME.match(match[1]) else unquote(match[1])
        return msgspec.structs.replace(parse_source(address), text=text)
    if _SCHEME.match(text):
        return Source(text, _source_name(text))
    target, anchor = split_path(text)
    return Source(text, _source_name(text), target, anchor_key(anchor))


def split_path(text: str) -> tuple[str, str]:
    """Split like `split_anchor`, but after the extension of a file: `C# guide.md#Costs`, and `C# guide.md` is whole."""
    file = _FILE.match(text)
    return split_anchor(text, file.end() if file else 0)


def find_record(source: Source, prefix: str) -> Source:
    """Return a source with the note that it means if it is the id of a record; `prefix` begins those of the vault."""
    if not prefix or not source.name.startswith(prefix):
        return source
    target, anchor = split_path(source.name.removeprefix(prefix))
    return msgspec.structs.replace(source, target=target, anchor=anchor_key(anchor))


def _source_name(text: str) -> str:
    """Return the text as sources are compared: ids of tasks in any case, all else exactly."""
    name = " ".join(text.split())
    return name.lower() if name.lower().startswith(TASK_SOURCE) else name


def format_claim(anchor: str, mark: Mark) -> str:
    """Return an entry of `invalid_claims`."""
    parts = (anchor, mark.reason or "", mark.by or "", mark.at or "")
    return SEPARATOR.join(part.replace(SEPARATOR.strip(), "/") for part in parts).rstrip(" |")


def parse_time(text: str) -> int:
    """Return a date (its beginning, in UTC) or an ISO time (UTC without a zone) in microseconds. Raises ValueError."""
    moment = datetime.fromisoformat(text.strip())
    try:
        return micros_from_datetime(moment if moment.tzinfo else moment.replace(tzinfo=UTC))
    except OverflowError as error:
        raise ValueError("the time is out of range") from error


def parse_as_of(text: str) -> int:
    """Return the time of a question in microseconds: of a date the end of that day, in UTC. Raises ValueError."""
    at = parse_time(text)
    try:
        date.fromisoformat(text.strip())
    except ValueError:
        return at
    return at + DAY - 1


def _read_time(frontmatter: Mapping[str, Any], key: str, problems: list[str]) -> int | None:
    value = frontmatter.get(key)
    if value is None or value == "":
        return None  # Obsidian stores a property without a value so
    try:
        if isinstance(value, str):
            return parse_time(value)
    except ValueError:
        pass
    problems.append(f"{key}: {str(value)[:40]!r} is not a date such as 2026-03-01 or an ISO time; it has no effect.")
    return None


def _read_mark(frontmatter: JsonObject | Mapping[str, Any], problems: list[str]) -> Mark | None:
    value = frontmatter.get(INVALID)
    if value is None or value is False:
        return None
    reason = None
    if isinstance(value, str):
        word = value.strip().lower()
        if word in _NO:
            return None
        reason = None if word in _YES else _text(value)
    elif value is not True:
        problems.append(f"{INVALID}: is neither true nor a reason; it has no effect.")
        return None
    return Mark(reason, _text(frontmatter.get(INVALID_BY)), _text(frontmatter.get(INVALID_AT)))


def read_claim(entry: Any) -> ClaimMark | None:
    """Return what an entry of `invalid_claims` says; None if it cannot be read."""
    return next((claim for text in _flatten(entry) if text and (claim := _parse_claim(_clean(text), []))), None)


def _parse_claim(text: str, problems: list[str]) -> ClaimMark | None:
    match = _LINK.fullmatch(text)
    anchor, *rest = (part.strip() for part in (match[1] if match else text).split(SEPARATOR.strip()))
    anchor = split_anchor(anchor)[1] if match else anchor
    if not normalize_anchor(anchor) or anchor[0] not in "#^":
        problems.append(f"{INVALID_CLAIMS}: {text[:40]!r} is neither #Heading nor ^block-id; it has no effect.")
        return None
    reason, by, at = (*rest, "", "", "")[:3]
    return ClaimMark(anchor, Mark(reason or None, by or None, at or None))


def _read_texts(frontmatter: Mapping[str, Any], key: str, problems: list[str]) -> list[str]:
    value = frontmatter.get(key)
    values = value if isinstance(value, list) else [] if value is None else [value]
    texts = [text for item in values for text in _flatten(item)]
    if any(not text for text in texts) or len(texts) > MAX_SOURCES:
        problems.append(f"{key}: only the first {MAX_SOURCES} texts of up to {MAX_SOURCE_CHARS} characters count.")
    return [_clean(text) for text in texts if text][:MAX_SOURCES]


def _flatten(item: Any) -> Iterator[str]:
    """Yield the text of an item, empty for one that is not a text.

    `[[Note]]` without quotation marks is a list of a list in YAML; people type it often.
    """
    while isinstance(item, list) and len(item) == 1 and isinstance(item[0], list):
        item = item[0]
    if isinstance(item, list):
        yield f"[[{', '.join(map(str, item))}]]" if all(isinstance(part, str) for part in item) and item else ""
        return
    text = item.strip() if isinstance(item, str) else str(item) if isinstance(item, int) else ""
    yield text if len(text) <= MAX_SOURCE_CHARS else ""


def _clean(text: str) -> str:
    """Return the text without what a database cannot store."""
    return text.replace("\0", "\ufffd").encode(errors="replace").decode().strip()


def _text(value: Any) -> str | None:
    return _clean(value) or None if isinstance(value, str) else None
