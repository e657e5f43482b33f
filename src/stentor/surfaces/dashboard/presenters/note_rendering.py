"""A note's text on a page: its links lead to notes, and two of its states are compared by line. Pure."""

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
from stentor.domains.memory.text import tokenizer
from stentor.domains.memory.vaults import DEFAULT_VAULT
from stentor.surfaces.dashboard.presenters.filters import is_expensive_markdown, render_plain_text

MAX_COMPARED_LINES = 4_000
"""Of both states together: comparing takes time with the product of their lines."""
MAX_NOTE_BRACKETS = 20_000
"""Opening ones, of a note that is read as Markdown: a thread of its own has the time."""
CONTEXT_LINES = 3
"""Lines without a change that are shown beside one with it."""
_WIKI = re.compile(r"!?\[\[([^\[\]|\n]{1,1000})(?:\|([^\[\]\n]{0,1000}))?\]\]")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:|//|#")


class NoteDiffLine(msgspec.Struct, frozen=True):
    """`kind` is add, del, same or gap; a gap stands for `text` lines without a change."""

    kind: str
    text: str


def render_note(text: str, source: dict[str, str]) -> Markup:
    """HTML of a note that nobody vouches for. Links to other notes are looked up when somebody follows them: `source`
    is what their addresses say of the note that has them.
    """
    if is_expensive_markdown(text, MAX_NOTE_BRACKETS):
        return render_plain_text(text)
    return Markup(_markdown().render(text, {"source": source}))  # noqa: S704 - the renderer escapes all that it does not make itself


def highlight_terms(text: str, wanted: frozenset[str]) -> Markup:
    """A text with the words in `<mark>` that a search found, whatever their form."""
    parts, at = [], 0
    for start, end in tokenizer.find_spans(text, wanted):
        if start >= at:
            parts += [escape(text[at:start]), Markup("<mark>{}</mark>").format(text[start:end])]
            at = end
    return Markup("").join([*parts, escape(text[at:])])


def document_text(document: dict[str, Any]) -> str:
    """A document as lines to compare: a line for each key of its frontmatter, then its content."""
    keys = [f"{name}: {jsontext.dump(value)}" for name, value in document["frontmatter"].items()]
    return "\n".join([*keys, *([""] if keys else []), document["content"]])


def diff_texts(old: str, new: str) -> list[NoteDiffLine] | None:
    """What changed from one text to another; None when they are too long to compare."""
    before, after = old.splitlines(), new.splitlines()
    if len(before) + len(after) > MAX_COMPARED_LINES:
        return None
    # With its heuristic on: a line that is everywhere begins no match, else such lines alone take minutes.
    matcher = difflib.SequenceMatcher(None, before, after)
    lines: list[NoteDiffLine] = []
    for tag, i1, i2, j1, j2 in matcher.get_opcodes():
        if tag == "equal":
            lines += _same(before[i1:i2], first=i1 == 0, last=i2 == len(before) and j2 == len(after))
        else:
            lines += [NoteDiffLine("del", line) for line in before[i1:i2]] + [
                NoteDiffLine("add", line) for line in after[j1:j2]
            ]
    return lines


def _same(lines: Sequence[str], *, first: bool, last: bool) -> Iterator[NoteDiffLine]:
    head, tail = (0 if first else CONTEXT_LINES), (0 if last else CONTEXT_LINES)
    left_out = len(lines) - head - tail
    if left_out <= 1:
        yield from (NoteDiffLine("same", line) for line in lines)
        return
    yield from (NoteDiffLine("same", line) for line in lines[:head])
    yield NoteDiffLine("gap", str(left_out))
    yield from (NoteDiffLine("same", line) for line in lines[len(lines) - tail :])


@lru_cache(1)
def _markdown() -> MarkdownIt:
    made = MarkdownIt("js-default", {"html": False, "linkify": False}).disable("image")
    made.inline.ruler.before("link", "wikilink", _wikilink)
    made.add_render_rule("link_open", _link_open)
    made.core.ruler.push("lowered", _lowered)
    return made


def _lowered(state: StateCore) -> None:
    """The headings of a note stand below that of the page."""
    for token in state.tokens:
        if token.type in ("heading_open", "heading_close"):
            token.tag = f"h{min(6, int(token.tag[1]) + 1)}"


def _wikilink(state: StateInline, silent: bool) -> bool:
    found = _WIKI.match(state.src, state.pos, state.posMax)
    if found is None:
        return False
    if not silent:
        opened = state.push("link_open", "a", 1)
        opened.attrs = {"href": found[1].strip().rstrip("\\")}
        opened.meta = {"wiki": True}
        state.push("text", "", 0).content = (found[2] or found[1]).strip()
        state.push("link_close", "a", -1)
    state.pos = found.end()
    return True


def _link_open(
    self: RendererHTML, tokens: Sequence[Token], at: int, options: Any, env: MutableMapping[str, Any]
) -> str:
    token = tokens[at]
    address = str(token.attrs.get("href", ""))
    if token.meta.get("wiki") or not _SCHEME.match(address):
        name = address if token.meta.get("wiki") else unquote(address)
        token.attrSet("href", "/memory/open?" + urlencode({**env["source"], "name": name.partition("#")[0]}))
    return self.renderToken(tokens, at, options, env)


def note_url(path: str, vault: str = DEFAULT_VAULT, **more: str) -> str:
    """Return the address of a note's page."""
    return "/memory/note?" + urlencode({"path": path, **vault_param(vault), **more})


def vault_param(vault: str) -> dict[str, str]:
    return {} if vault == DEFAULT_VAULT else {"vault": vault}
