"""Two forms of Obsidian's Markdown: callouts (`> [!warning] Title`) and task lists (`- [ ] to do`).

As rules of markdown-it's parser; links between notes are in `note_rendering`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.rules_core import StateCore
from markdown_it.token import Token

_CALLOUT = re.compile(r"\[!([A-Za-z][\w-]{0,30})\]([+-]?)[ \t]*([^\n]*)(?:\n|$)")
_TASK = re.compile(r"\[([^\]\n])\][ \t]+")
CALLOUT_COLOURS: Mapping[str, str] = {
    **dict.fromkeys(("tip", "hint", "important", "success", "check", "done"), "good"),
    **dict.fromkeys(("warning", "caution", "attention", "question", "help", "faq"), "warn"),
    **dict.fromkeys(("failure", "fail", "missing", "danger", "error", "bug"), "bad"),
    **dict.fromkeys(("quote", "cite", "example"), "calm"),
}
"""Kind of a callout to the end of its CSS class; other kinds have the colour of a note."""


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
