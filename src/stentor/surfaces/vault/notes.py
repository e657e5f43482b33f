"""What the routes answer of a note: its JSON form and its tags. Pure."""

from __future__ import annotations

import re
from typing import Any

from stentor.domains.memory.documents import NoteDocument, parse_document
from stentor.domains.notes.model import Note, Stat
from stentor.surfaces.vault.links import Linked

_FENCE = re.compile(r"(?ms)^(```|~~~).*?^\1[^\n]*$|`[^`\n]*`")
_TAG = re.compile(r"(?<![\w/#&])#([^\W\d_][\w/-]*|\d+[^\W\d_][\w/-]*)")


def document_of(note: Note) -> NoteDocument | None:
    """The note as text; None for other files."""
    return parse_document(note.path, note.content)


def tags_of(document: NoteDocument) -> list[str]:
    """Of the frontmatter and of the text, each once; what stands in code is none."""
    inline = _TAG.findall(_FENCE.sub("", document.content)) if "#" in document.content else []
    return list(dict.fromkeys([*document.tags, *inline]))


def times(stat: Stat) -> dict[str, int]:
    """In milliseconds, as the plugin."""
    return {"ctime": stat.created_at // 1000, "mtime": stat.modified_at // 1000, "size": stat.size}


def linked(found: Linked) -> dict[str, list[str]]:
    return {"links": found.links, "backlinks": found.backlinks, "unresolvedLinks": found.unresolved}


def as_json(note: Note, document: NoteDocument, links: Linked) -> dict[str, Any]:
    return {
        "path": note.path,
        "content": note.content.decode(),
        "frontmatter": document.frontmatter,
        "tags": tags_of(document),
        "stat": times(note.stat),
        **linked(links),
        "version": note.hash,
    }
