"""What a note says about its validity, with its text: the passages that are invalid, and what it lacks. Pure."""

from __future__ import annotations

import msgspec

from stentor.domains.memory.validity import frontmatter_keys
from stentor.domains.memory.validity.frontmatter_keys import NoteValidity
from stentor_vault.text.documents import NoteDocument
from stentor_vault.text.passages import CutText, cut_passages


def read_document(document: NoteDocument) -> tuple[NoteValidity, CutText | None]:
    """Return what the note says, and its text without the invalid passages; None if there are none."""
    validity = frontmatter_keys.read_validity(document.frontmatter)
    if not validity.claims:
        return validity, None
    cut = cut_passages(document.content, (claim.anchor for claim in validity.claims))
    if cut.missing:
        missing = (f"{frontmatter_keys.INVALID_CLAIMS}: the note has no passage {anchor!r}." for anchor in cut.missing)
        validity = msgspec.structs.replace(validity, problems=(*validity.problems, *missing))
    return validity, cut
