"""Renders notes: Markdown with links to other notes, highlighted search terms, diffs of versions. Pure functions."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, MutableMapping, Sequence
from functools import lru_cache
from typing import Any
from urllib.parse import unquote, urlencode

import msgspec
from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.rules_core import StateCore
from markdown_it.rules_inline import StateInline
from markdown_it.token import Token
from markupsafe import Markup, escape

from stentor.core import jsontext
from stentor.core.jsontext import JsonObject
from stentor.domains.memory.text import tokenizer
from stentor.domains.memory.vaults import DEFAULT_VAULT
from stentor.surfaces.dashboard.presenters.filters import (
    add_scrolling,
    escape_bidi,
    is_expensive_markdown,
    render_plain_text,
)
from stentor.surfaces.dashboard.presenters.obsidian_markdown import add_obsidian_rules

MAX_COMPARED_LINES = 4_000
"""Lines of both versions together: the diff takes time in proportion to the product of their lengths."""
MAX_NOTE_BRACKETS = 20_000
"""Opening brackets of a note that is rendered as Markdown. Higher than for other texts, as notes render in a thread."""
CONTEXT_LINES = 3
"""Unchanged lines displayed before and after a change."""
# Bounded repetitions: without a bound a line of brackets would take quadratic time.
_WIKI = re.compile(r"!?\[\[([^\[\]|\n]{1,1000})(?:\|([^\[\]\n]{0,1000}))?\]\]")
_MARKS = re.compile(r"(?<!\S)(?:#{1,6}|>|[-*+] \[[ xX]\]|\[![\w-]{1,40}\][+-]?)(?!\S)")
"""Headings, quotations, boxes and callouts of Markdown, among the words of a line."""
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:|//|#")


class NoteDiffLine(msgspec.Struct, frozen=True):
    """`kind` is add, del, same or gap; the `text` of a gap is the number of unchanged lines left out."""

    kind: str
    text: str


def render_note(text: str, source: dict[str, str]) -> Markup:
    """Render an untrusted note as HTML. Links to other notes are resolved when they are opened; their URLs carry the
    parameters `source`, which identify this note.
    """
    if is_expensive_markdown(text, MAX_NOTE_BRACKETS):
        return render_plain_text(escape_bidi(text))
    return Markup(_markdown().render(text, {"source": source}))  # noqa: S704 - the renderer escapes everything it does not generate


def strip_markup(excerpt: str) -> str:
    """Return an excerpt, a single line, without the marks of Markdown that mean nothing there."""
    return " ".join(_MARKS.sub(" ", _WIKI.sub(lambda link: link[2] or link[1], excerpt)).split())


def highlight_terms(text: str, terms: frozenset[str]) -> Markup:
    """Escape a text and put the words that match the terms, in any inflection, into `<mark>`."""
    parts, position = [], 0
    for start, end in tokenizer.find_spans(text, terms):
        parts += [escape(text[position:start]), Markup("<mark>{}</mark>").format(text[start:end])]
        position = end
    return Markup("").join([*parts, escape(text[position:])])


def document_text(document: JsonObject) -> str:
    """Return a document as text for a diff: a line for each key of its frontmatter, then its content."""
    keys = [f"{name}: {jsontext.dump(value)}" for name, value in document["frontmatter"].items()]
    return "\n".join([*keys, *([""] if keys else []), document["content"]])


def diff_texts(old: str, new: str) -> list[NoteDiffLine] | None:
    """Return the changes from one text to another; None when they are too long to compare."""
    before, after = old.splitlines(), new.splitlines()
    if len(before) + len(after) > MAX_COMPARED_LINES:
        return None
    # Keep the `autojunk` heuristic on: it ignores very frequent lines, which could take minutes.
    matcher = difflib.SequenceMatcher(None, before, after)
    lines: list[NoteDiffLine] = []
    for tag, i1, i2, j1, j2 in matcher.get_opcodes():
        if tag == "equal":
            lines += _unchanged_lines(before[i1:i2], first=i1 == 0, last=i2 == len(before) and j2 == len(after))
        else:
            lines += [NoteDiffLine("del", line) for line in before[i1:i2]] + [
                NoteDiffLine("add", line) for line in after[j1:j2]
            ]
    return lines


def _unchanged_lines(lines: Sequence[str], *, first: bool, last: bool) -> Iterator[NoteDiffLine]:
    head, tail = (0 if first else CONTEXT_LINES), (0 if last else CONTEXT_LINES)
    hidden_count = len(lines) - head - tail
    if hidden_count <= 1:
        yield from (NoteDiffLine("same", line) for line in lines)
        return
    yield from (NoteDiffLine("same", line) for line in lines[:head])
    yield NoteDiffLine("gap", str(hidden_count))
    yield from (NoteDiffLine("same", line) for line in lines[len(lines) - tail :])


@lru_cache(1)
def _markdown() -> MarkdownIt:
    markdown = MarkdownIt("js-default", {"html": False, "linkify": False}).disable("image")
    markdown.inline.ruler.before("link", "wikilink", _parse_wikilink)
    markdown.add_render_rule("link_open", _render_link_open)
    add_obsidian_rules(markdown)
    add_scrolling(markdown)
    markdown.core.ruler.push("lower_headings", _lower_headings)
    markdown.core.ruler.push("escape_bidi", _escape_bidi)
    return markdown


def _escape_bidi(state: StateCore) -> None:
    """Show what changes the direction of a text; the address of a link keeps it, as a name of a note may have it."""
    for token in state.tokens:
        for part in token.children or [token]:
            part.content = escape_bidi(part.content)


def _lower_headings(state: StateCore) -> None:
    """Lower the headings of a note by one level, below the heading of the page."""
    for token in state.tokens:
        if token.type in ("heading_open", "heading_close"):
            token.tag = f"h{min(6, int(token.tag[1]) + 1)}"


def _parse_wikilink(state: StateInline, silent: bool) -> bool:
    match = _WIKI.match(state.src, state.pos, state.posMax)
    if match is None:
        return False
    if not silent:
        token = state.push("link_open", "a", 1)
        # `[[target\|label]]`, the form for table cells, leaves a backslash after the target.
        token.attrs = {"href": match[1].strip().rstrip("\\")}
        token.meta = {"wiki": True}
        state.push("text", "", 0).content = (match[2] or match[1]).strip()
        state.push("link_close", "a", -1)
    state.pos = match.end()
    return True


def _render_link_open(
    self: RendererHTML, tokens: Sequence[Token], index: int, options: Any, env: MutableMapping[str, Any]
) -> str:
    token = tokens[index]
    address = str(token.attrs.get("href", ""))
    # A relative Markdown link leads to a note too; one with a scheme or a mere fragment stays as it is.
    if token.meta.get("wiki") or not _SCHEME.match(address):
        name = address if token.meta.get("wiki") else unquote(address)
        token.attrSet("href", "/memory/open?" + urlencode({**env["source"], "name": name.partition("#")[0]}))
    return self.renderToken(tokens, index, options, env)


def note_url(path: str, vault: str = DEFAULT_VAULT, **parameters: str) -> str:
    """Return the URL of a note's page."""
    return "/memory/note?" + urlencode({"path": path, **vault_param(vault), **parameters})


def vault_param(vault: str) -> dict[str, str]:
    return {} if vault == DEFAULT_VAULT else {"vault": vault}
