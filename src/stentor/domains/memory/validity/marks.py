"""Marks in the frontmatter of notes: setting and removing them, and what agents may change about them. Pure.

An agent's mark names it as `agent:<id or name>`, so that it is never mistaken for a person's. Fails closed: an agent
may neither remove nor change a mark of somebody else.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from stentor.core.errors import Conflict, Forbidden, InvalidRequest, NotFound
from stentor.core.jsontext import JsonObject
from stentor.domains.memory.validity.frontmatter_keys import (
    DERIVED_FROM,
    EMPTY,
    FLAG_WORDS,
    INVALID,
    INVALID_AT,
    INVALID_BY,
    INVALID_CLAIMS,
    MAX_SOURCES,
    ClaimMark,
    Mark,
    NoteValidity,
    format_claim,
    parse_source,
    read_claim,
    read_document,
)
from stentor_vault.text import documents
from stentor_vault.text.documents import NoteDocument
from stentor_vault.text.passages import anchor_key

AGENT_PREFIX = "agent:"


class MarkChange(msgspec.Struct, frozen=True):
    """A mark that a write sets or removes; `anchor` is empty for the whole note, `mark` the new or removed one."""

    anchor: str
    mark: Mark
    is_set: bool


class MarkedNote(msgspec.Struct, frozen=True):
    """What a version of a note says about its validity, and all anchors in the passages of each claim that it has."""

    validity: NoteValidity = EMPTY
    anchors: dict[str, tuple[str, ...]] = {}

    @property
    def marks(self) -> dict[str, Mark]:
        """The marks by normalized anchor; the empty anchor is the whole note."""
        own = {} if self.validity.mark is None else {"": self.validity.mark}
        return own | {anchor_key(claim.anchor): claim.mark for claim in self.validity.claims}


def read_marks(path: str, content: bytes | None) -> MarkedNote:
    """Return what the bytes of a note say; nothing for no file, or one that is not text."""
    document = None if content is None else documents.parse_document(path, content)
    if document is None:
        return MarkedNote()
    validity, cut = read_document(document)
    anchors = {} if cut is None else cut.anchors
    return MarkedNote(validity, {anchor_key(claim): names for claim, names in anchors.items()})


def list_changes(before: MarkedNote, after: MarkedNote) -> list[MarkChange]:
    """Return the marks that differ; one that only got other words counts as set."""
    old, new = before.marks, after.marks
    changes = [MarkChange(anchor, mark, True) for anchor, mark in new.items() if old.get(anchor) != mark]
    return changes + [MarkChange(anchor, mark, False) for anchor, mark in old.items() if anchor not in new]


def require_own_marks(path: str, before: MarkedNote, after: MarkedNote, agent: str) -> None:
    """Raise Forbidden if an agent's write removes or changes a mark that is not its own, or the marked passage."""
    for anchor, mark in before.marks.items():
        if mark.by == agent:
            continue
        # Also of what is inside the passage: notes may be derived from that.
        is_lost = not set(before.anchors.get(anchor, ())) <= set(after.anchors.get(anchor, ()))
        if after.marks.get(anchor) != mark or is_lost:
            what = f"the passage {anchor!r} of {path!r}" if anchor else repr(path)
            raise Forbidden(f"{what} was marked invalid by {mark.by or 'a person'}; an agent cannot change that mark.")


def lost_sources(before: MarkedNote, after: MarkedNote) -> set[str]:
    """Return the sources that a write removes from `derived_from`."""
    return {source.name for source in before.validity.sources} - {source.name for source in after.validity.sources}


def stamp(document: NoteDocument, changes: Sequence[MarkChange], agent: str, at: str) -> JsonObject:
    """Return the frontmatter values that name the agent as the one who set these marks."""
    values: JsonObject = {}
    if any(change.is_set and not change.anchor for change in changes):
        values |= {INVALID_BY: agent, INVALID_AT: at}
    anchors = {change.anchor for change in changes if change.is_set and change.anchor}
    if anchors:
        values[INVALID_CLAIMS] = [
            text if claim is None or anchor_key(claim.anchor) not in anchors
            else format_claim(claim.anchor, Mark(claim.mark.reason, agent, at))
            for text, claim in _claims(document)
        ]  # fmt: skip
    return values


def set_mark(document: NoteDocument, anchor: str, mark: Mark) -> JsonObject:
    """Return the frontmatter values that mark a note, or a passage of it. Raises InvalidRequest, NotFound."""
    if mark.reason is not None and mark.reason.lower() in FLAG_WORDS:
        raise InvalidRequest(f"reason: {mark.reason!r} is a flag in the frontmatter; say in words what is wrong.")
    if not anchor:
        return {INVALID: mark.reason or True, INVALID_BY: mark.by, INVALID_AT: mark.at}
    entry = format_claim(anchor, mark)
    key = anchor_key(anchor)
    claims = [text for text, claim in _claims(document) if claim is None or anchor_key(claim.anchor) != key]
    values = {INVALID_CLAIMS: [*claims, entry]}
    _, cut = read_document(NoteDocument(document.path, document.content, {INVALID_CLAIMS: [entry]}))
    if cut is None or cut.missing:
        raise NotFound(f"{document.path!r} has no passage {anchor!r}: name a #Heading or a block (^id) of it.")
    return values


def remove_mark(document: NoteDocument, anchor: str) -> JsonObject:
    """Return the whole frontmatter without a mark. Raises Conflict if there is none."""
    validity, _ = read_document(document)
    values = dict(document.frontmatter)
    if not anchor:
        if validity.mark is None:
            raise Conflict(f"{document.path!r} is not marked invalid itself.")
        for key in (INVALID, INVALID_BY, INVALID_AT):
            values.pop(key, None)
        return values
    claims = list(_claims(document))
    rest = [text for text, claim in claims if claim is None or anchor_key(claim.anchor) != anchor_key(anchor)]
    if len(rest) == len(claims):
        raise Conflict(f"The passage {anchor!r} of {document.path!r} is not marked invalid.")
    del values[INVALID_CLAIMS]
    return values | ({INVALID_CLAIMS: rest} if rest else {})


def add_source(path: str, content: bytes, source: str) -> bytes:
    """Return the note with one more entry in `derived_from`; unchanged if its frontmatter cannot be edited."""
    document = documents.parse_document(path, content)
    if document is None or document.problem is not None:
        return content
    validity, _ = read_document(document)
    present = {entry.name for entry in validity.sources}
    if parse_source(source).name in present or len(present) >= MAX_SOURCES:
        return content
    given = document.frontmatter.get(DERIVED_FROM)
    entries = given if isinstance(given, list) else [] if given in (None, "") else [given]
    values = {DERIVED_FROM: [*entries, source]}
    return documents.edit_document(content, None, values, replace_frontmatter=False)


def _claims(document: NoteDocument) -> Iterator[tuple[object, ClaimMark | None]]:
    """Yield the entries of `invalid_claims` as they stand there, each with what it means."""
    given = document.frontmatter.get(INVALID_CLAIMS)
    for entry in given if isinstance(given, list) else [] if given in (None, "") else [given]:
        yield entry, read_claim(entry)
