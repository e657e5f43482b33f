"""What the routes answer of a note: its JSON form, its map, its tags. Pure."""

from __future__ import annotations

import re
from typing import Any

from stentor.domains.memory.documents import Document, parse
from stentor.domains.memory.text.outline import sections
from stentor.domains.notes.model import Note

_FENCE = re.compile(r"(?ms)^(```|~~~).*?^\1[^\n]*$|`[^`\n]*`")
_TAG = re.compile(r"(?<![\w/#&])#([^\W\d_][\w/-]*|\d+[^\W\d_][\w/-]*)")
_BLOCK = re.compile(r"(?m)(?:^|\s)\^([A-Za-z0-9-]+)[ \t]*$")


def document_of(note: Note) -> Document | None:
    """The note as text; None for other files."""
    return parse(note.path, note.content)


def tags_of(document: Document) -> list[str]:
    """Of the frontmatter and of the text, each once; what stands in code is none."""
    inline = _TAG.findall(_FENCE.sub("", document.content))
    return list(dict.fromkeys([*document.tags, *inline]))


def as_json(note: Note, document: Document) -> dict[str, Any]:
    """`stat` has times in milliseconds, as the plugin."""
    stat = note.stat
    times = {"ctime": stat.created_at // 1000, "mtime": stat.modified_at // 1000, "size": stat.size}
    return {
        "path": note.path,
        "content": note.content.decode(),
        "frontmatter": document.frontmatter,
        "tags": tags_of(document),
        "stat": times,
    }


def document_map(document: Document) -> dict[str, Any]:
    """Headings with those above them, joined by `::`; block ids; frontmatter keys."""
    above: list[tuple[int, str]] = []
    headings: list[str] = []
    for section in sections(document.content):
        if section.level:
            above = [(level, name) for level, name in above if level < section.level]
            above.append((section.level, section.heading))
            headings.append("::".join(name for _, name in above))
    blocks = _BLOCK.findall(_FENCE.sub("", document.content))
    return {"headings": headings, "blocks": blocks, "frontmatterFields": list(document.frontmatter)}
