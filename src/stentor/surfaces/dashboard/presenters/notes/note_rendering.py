"""Renders notes: Markdown with links to other notes, highlighted search terms, diffs of versions. Pure functions.

Of Obsidian's Markdown also callouts (`> [!warning] Title`) and task lists (`- [ ] to do`).
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
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
_CALLOUT = re.compile(r"\[!([A-Za-z][\w-]{0,30})\]([+-]?)[ \t]*([^\n]*)(?:\n|$)")
_TASK = re.compile(r"\[([^\]\n])\][ \t]+")
CALLOUT_COLOURS: Mapping[str, str] = {
    **dict.fromkeys(("tip", "hint", "important", "success", "check", "done"), "good"),
    **dict.fromkeys(("warning", "caution", "attention", "question", "help", "faq"), "warn"),
    **dict.fromkeys(("failure", "fail", "missing", "danger", "error", "bug"), "bad"),
    **dict.fromkeys(("quote", "cite", "example"), "calm"),
}
"""Kind of a callout to the end of its CSS class; other kinds have the colour of a note."""


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


def add_obsidian_rules(markdown: MarkdownIt) -> None:
    markdown.core.ruler.before("inline", "callouts", _mark_callouts)
    markdown.core.ruler.after("inline", "tasks", _mark_tasks)
    markdown.add_render_rule("task_box", _render_box)


def _mark_callouts(state: StateCore) -> None:
    """Make callouts of the quotes that begin with a kind in brackets; one with `-` or `+` can be folded."""
    tokens: list[Token] = []
    closing_tags: list[str] = []
    # An iterator, so that the tokens of an empty paragraph can be skipped from inside the loop.
    rest = iter(range(len(state.tokens)))
    for at in rest:
        token = state.tokens[at]
        if token.type == "blockquote_close":
            token.tag = closing_tags.pop()
        tokens.append(token)
        if token.type != "blockquote_open":
            continue
        match = _match_callout(state.tokens, at)
        if match is not None:
            token.tag = "details" if match[2] else "div"
            token.attrs = {"class": f"callout as-{CALLOUT_COLOURS.get(match[1].lower(), 'note')}"}
            token.attrs |= {"open": ""} if match[2] == "+" else {}
            paragraph, text = state.tokens[at + 1], state.tokens[at + 2]
            tokens += _title_tokens(match, paragraph, text)
            text.content = text.content[match.end() :]
            if not text.content:
                for _ in range(3):  # the paragraph had nothing but the title
                    next(rest)
        # Quotes nest, and each closing token needs the tag of its own opening one.
        closing_tags.append(token.tag)
    state.tokens = tokens


def _match_callout(tokens: Sequence[Token], at: int) -> re.Match[str] | None:
    is_text = [token.type for token in tokens[at + 1 : at + 3]] == ["paragraph_open", "inline"]
    return _CALLOUT.match(tokens[at + 2].content) if is_text else None


def _title_tokens(match: re.Match[str], paragraph: Token, text: Token) -> list[Token]:
    tag = "summary" if match[2] else "p"
    opening = Token("paragraph_open", tag, 1, attrs={"class": "title"}, level=paragraph.level, block=True)
    title = Token("inline", "", 0, content=match[3].strip() or match[1].capitalize(), level=text.level, block=True)
    title.children = []
    return [opening, title, Token("paragraph_close", tag, -1, level=paragraph.level, block=True)]


def _mark_tasks(state: StateCore) -> None:
    """Put a box before the text of list items that begin with a character in brackets, a space for an open task."""
    for item, paragraph, text in zip(state.tokens, state.tokens[1:], state.tokens[2:], strict=False):
        if (item.type, paragraph.type, text.type) != ("list_item_open", "paragraph_open", "inline"):
            continue
        first = text.children[0] if text.children else None
        match = _TASK.match(first.content) if first is not None and first.type == "text" else None
        if first is not None and text.children is not None and match is not None:
            item.attrSet("class", "task")
            first.content = first.content[match.end() :]
            text.children.insert(0, Token("task_box", "", 0, meta={"is_done": match[1] != " "}))


def _render_box(
    self: RendererHTML, tokens: Sequence[Token], index: int, options: Any, env: MutableMapping[str, Any]
) -> str:
    # Not a checkbox, which a reader could tick without any effect on the note.
    label, box = ("done", "☑") if tokens[index].meta["is_done"] else ("to do", "☐")
    return f'<span class="box" role="img" aria-label="{label}">{box}</span> '
