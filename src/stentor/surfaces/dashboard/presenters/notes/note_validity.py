"""What a note's page says about its validity: why it is invalid, which passages are, and what could be marked. Pure."""

from __future__ import annotations

from urllib.parse import urlencode

import msgspec

from stentor.core.jsontext import JsonObject
from stentor.domains.memory.validity.frontmatter_keys import (
    TASK_SOURCE,
    VALID_FROM,
    VALID_TO,
    Source,
    read_document,
)
from stentor.domains.memory.validity.model import Cause
from stentor.surfaces.dashboard.gateway import quote_segment
from stentor.surfaces.dashboard.presenters.notes.note_rendering import note_url, vault_param
from stentor_vault.text import markdown
from stentor_vault.text.documents import NoteDocument
from stentor_vault.text.passages import normalize_anchor

MAX_HEADINGS = 200


class DerivationStep(msgspec.Struct, frozen=True):
    """What a note was derived from; `address` is None for what has no page."""

    text: str
    address: str | None


class MarkedPassage(msgspec.Struct, frozen=True):
    anchor: str
    reason: str | None
    by: str | None
    at: str | None


class NoteValidityView(msgspec.Struct, frozen=True):
    """`invalid` is the cause, None for a valid note; `is_marked` tells that its own mark is the cause.

    `sources` are what it was derived from, `steps` lead from one of them to the cause. `source` is the cause if it is
    one.
    """

    invalid: JsonObject | None
    is_marked: bool
    sources: list[DerivationStep]
    steps: list[DerivationStep]
    source: str | None
    passages: list[MarkedPassage]
    anchors: list[str]
    period: tuple[str | None, str | None]


def present_validity(document: JsonObject, invalid: JsonObject | None, vault: str) -> NoteValidityView:
    """Return the view of a document and of the exclusion that the memory API gives with it."""
    parsed = NoteDocument(document["path"], document["content"], document["frontmatter"])
    validity, cut = read_document(parsed)
    marked = {normalize_anchor(claim.anchor) for claim in validity.claims if cut and claim.anchor in cut.anchors}
    headings = dict.fromkeys(section.heading for section in markdown.split_sections(parsed.content) if section.heading)
    return NoteValidityView(
        None if invalid is None else invalid["cause"],
        validity.mark is not None,
        [_present_source(source, document["path"], vault) for source in validity.sources],
        [] if invalid is None else _steps(invalid, vault),
        invalid["cause"]["target"] if invalid and invalid["cause"]["kind"] == "source" else None,
        [MarkedPassage(one.anchor, one.mark.reason, one.mark.by, one.mark.at) for one in validity.claims],
        [f"#{heading}" for heading in headings if normalize_anchor(f"#{heading}") not in marked][:MAX_HEADINGS],
        (_text(document, VALID_FROM), _text(document, VALID_TO)),
    )


def _present_source(source: Source, path: str, vault: str) -> DerivationStep:
    address = None
    if source.name.startswith(TASK_SOURCE):
        address = f"/tasks/{quote_segment(source.name.removeprefix(TASK_SOURCE))}"
    elif source.target:
        address = "/memory/open?" + urlencode({"from": path, **vault_param(vault), "name": source.target})
    return DerivationStep(source.name, address)


def _steps(invalid: JsonObject, vault: str) -> list[DerivationStep]:
    cause = msgspec.convert(invalid["cause"], Cause)
    steps = [DerivationStep(link["path"], note_url(link["path"], vault)) for link in invalid["chain"][1:]]
    if not invalid["chain"]:
        return steps
    return [*steps, DerivationStep(cause.target, note_url(cause.path, vault) if cause.path else None)]


def _text(document: JsonObject, key: str) -> str | None:
    value = document["frontmatter"].get(key)
    return value if isinstance(value, str) and value else None
