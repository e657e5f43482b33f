"""Template filters: format times, numbers, scores, ids, JSON and Markdown. Pure functions."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from functools import lru_cache
from typing import Any
from urllib.parse import quote

from jinja2.filters import do_urlencode
from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from markdown_it.utils import EnvType, OptionsDict
from markupsafe import Markup, escape

from stentor.core import clock
from stentor.core.clock import format_relative_time
from stentor.core.ids import LAST_GROUP_START
from stentor.domains.governance.model import SYSTEM_ACTOR
from stentor.domains.llm.costs import format_dollars
from stentor.domains.routing.model import describe_denial

_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
MAX_ID_LENGTH = 20
"""Characters of an id that is not a UUID, where a page has no room for all of it."""
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
TRACEBACK_START = "Traceback (most recent call last)"
_GROUP_FRAME = re.compile(r"\s*(\|\s*)*(\+-+$)?")
"""What stands before an error in a group of errors, or the line that ends the group."""
SERVICE = "the service"
"""What the pages call what no person and no program did."""
UNSCORED = "unscored"
EMPTY_VALUE = "–"
MAX_MARKDOWN_CHARACTERS, MAX_TEXT_CHARACTERS = 50_000, 200_000
"""Characters of a text that is rendered as Markdown, and of one that is displayed as plain text."""
# markdown-it searches for the end of a link from each bracket, which takes quadratic time in total.
MAX_BRACKETS = 2_000
"""Opening brackets of a text that is rendered as Markdown."""
# markdown-it fills up short rows, so a table of a kilobyte can have 65,000 cells, which take 75 MB and 2 seconds.
MAX_TABLE_CELLS = 10_000
"""Cells of a text that is rendered as Markdown."""
_RIGHT_TO_LEFT = "[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc\U00010800-\U00010fff\U0001e800-\U0001efff]+"
_RIGHT_TO_LEFT_WORDS = re.compile(f"{_RIGHT_TO_LEFT}(?:[ '_-]{_RIGHT_TO_LEFT})*")
_BIDI_CONTROLS = {
    ord(control): f"\\u{ord(control):04x}" for control in "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
}
"""What changes the direction of the text after it, so that a person reads another text than a program."""
_BREAKS = re.compile(r"(?<=[^\s./@_:][./@_:])(?=[^\W\d_][^\s./@_:]{2})|(?<=://)(?=\S)")
"""Where a host, an address or a path may break: after a sign that a word follows."""
_LINE_END = re.compile(r"\r\n|\r|\n")
_TABLE_RULE = "-:|>*+.)0123456789 \t"
"""The characters of the second line of a table, which has its columns, also of one in a quote or a list."""


def format_time(value: str | int | None, now: int) -> Markup:
    """Render a time, in ISO 8601 or microseconds, as `<time>`: relative to `now`, with the exact time as tooltip."""
    if not value:
        return Markup('<span class="faint">–</span>')
    value = clock.format_iso(value) if isinstance(value, int) else value
    exact = datetime.fromisoformat(value).astimezone(UTC)
    label = format_relative_time(now / 1e6 - exact.timestamp())
    title = exact.strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + " UTC"
    return Markup('<time datetime="{}" title="{}">{}</time>').format(value, title, label)


def format_date(value: str, now: int) -> Markup:
    """Render an ISO time as its day in UTC, with the exact time and the distance as tooltip."""
    exact = datetime.fromisoformat(value).astimezone(UTC)
    title = f"{exact:%Y-%m-%d %H:%M:%S} UTC, {format_relative_time(now / 1e6 - exact.timestamp())}"
    return Markup('<time datetime="{}" title="{}">{:%Y-%m-%d}</time>').format(value, title, exact)


def format_clock(value: str, without_day: bool = False) -> str:
    """Format an ISO time in UTC to milliseconds, with its day unless a heading names it."""
    return value[11:23] if without_day else f"{value[:10]} {value[11:23]}"


def format_budget(text: str) -> str:
    """Format `usd/month=20` as `$20 a month`, `tokens/day=100000` as `100,000 tokens a day`."""
    unit, _, rest = text.partition("/")
    period, _, limit = rest.partition("=")
    try:
        amount = float(limit)
    except ValueError:
        return text
    if unit != "usd":
        return f"{amount:,.0f} {unit} a {period}"
    digits = 0 if amount == int(amount) else 2
    rounded = f"{amount:,.{digits}f}"
    return f"${rounded if float(f'{amount:.2f}') == amount else f'{Decimal(limit):,f}'} a {period}"


def format_duration(ms: float | None) -> str:
    """Format as `420 µs`, `12 ms`, `3.4 s`, `5 min 20 s` or `3 h 5 min`; None as a dash."""
    return EMPTY_VALUE if ms is None else clock.format_duration(ms)


def format_number(value: float | None, digits: int = 0) -> str:
    """Format with thousands separators; None as a dash."""
    return EMPTY_VALUE if value is None else f"{value:,.{digits}f}"


def format_score(value: float | None, digits: int = 2) -> str:
    """Format a score; None is `unscored`, never 0. Source: second contract, "Governance snapshot"."""
    return UNSCORED if value is None else f"{value:.{digits}f}"


def format_money(dollars: float | None) -> str:
    """Format an amount; None as `unknown`."""
    return "unknown" if dollars is None else format_dollars(dollars)


def shorten_id(text: str | None) -> str:
    """Return the last group of a UUID, which commands and the search take; its beginning is the time, which neighbours
    share. Of any other id return the beginning.
    """
    if not text:
        return EMPTY_VALUE
    return text[LAST_GROUP_START - 1 :] if _UUID.fullmatch(text) else truncate_line(text, MAX_ID_LENGTH)


def shorten_ids(text: str) -> str:
    """Return a sentence with each UUID in it shortened, as `shorten_id` does."""
    return _UUID.sub(lambda found: shorten_id(found[0]), text)


def quote_argument(text: str) -> str:
    """Return an id for a command line: short if it is a UUID, and quoted if a shell needs it."""
    return shorten_id(text) if _UUID.fullmatch(text) else shlex.quote(text)


def quote_segment(text: Any) -> str:
    """Return a text encoded for a path or a query; a slash too, unlike Jinja's own filter."""
    return quote(str(text), safe="")


def escape_bidi(text: str) -> str:
    """Replace characters that change the text direction by their escape codes, because they could mislead readers."""
    return text if text.isascii() else text.translate(_BIDI_CONTROLS)


def truncate_line(text: Any, max_length: int) -> str:
    """Join a text into one line of at most `max_length` characters."""
    line = " ".join(escape_bidi(str(text)).split())
    return line if len(line) <= max_length else line[: max_length - 1] + "…"


def find_error_line(text: str) -> str:
    """Return the last line of a Python traceback, which names the error; any other text as it is.

    Of a group of errors, the last error without the frame that Python draws around it.
    """
    if TRACEBACK_START not in text:
        return text
    lines = (_GROUP_FRAME.sub("", line, count=1).strip() for line in reversed(text.splitlines()))
    return next(filter(None, lines), text)


def render_sentence(text: str) -> Markup:
    """Escape a sentence with its names of agents in `<bdi>` if they are read from right to left, and let its long names
    break.

    Without `<bdi>` a browser moves the numbers and the names that follow one to its left.
    """
    return Markup(_RIGHT_TO_LEFT_WORDS.sub(r"<bdi>\g<0></bdi>", str(allow_breaks(text))))  # noqa: S704 - escaped first


def allow_breaks(text: str) -> Markup:
    """Let a long name, such as a host or a path, break after its signs, before it breaks anywhere."""
    return Markup(_BREAKS.sub("<wbr>", str(escape(text))))  # noqa: S704 - escaped first


def format_json(value: Any) -> str:
    """Format as indented JSON; return a text as it is."""
    return escape_bidi(format_input(value))


def format_input(value: Any) -> str:
    """Format an input for a form that sends it: as indented JSON, a text as it is."""
    return value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False)


def humanize(text: str | None) -> str:
    """Replace underscores: `pending_approval` becomes `pending approval`."""
    return (text or EMPTY_VALUE).replace("_", " ")


class _AbsoluteLinks(RendererHTML):
    """Leaves the text of a link whose address is relative: it is relative to something that is not on the page."""

    def link_open(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        if not _SCHEME.match(str(tokens[idx].attrGet("href"))):
            del tokens[idx].attrs["href"]
        return self.renderToken(tokens, idx, options, env)


@lru_cache(1)
def _markdown() -> MarkdownIt:
    """Return a renderer for untrusted text: no raw HTML, no images, and only absolute links of harmless schemes."""
    options = {"html": False, "linkify": False}
    markdown = MarkdownIt("js-default", options, renderer_cls=_AbsoluteLinks).disable("image")
    add_scrolling(markdown)
    return markdown


def add_scrolling(markdown: MarkdownIt) -> None:
    """Let tables and code that are wider than the page scroll sideways, with the keyboard too."""
    markdown.add_render_rule("table_open", lambda *_: '<div class="scroll" tabindex="0"><table>\n')
    markdown.add_render_rule("table_close", lambda *_: "</table></div>\n")
    for kind in ("fence", "code_block"):
        markdown.add_render_rule(kind, _render_focusable_code)


def _render_focusable_code(
    self: RendererHTML, tokens: Sequence[Token], index: int, options: OptionsDict, env: EnvType
) -> str:
    render = RendererHTML.fence if tokens[index].type == "fence" else RendererHTML.code_block
    return render(self, tokens, index, options, env).replace("<pre>", '<pre tabindex="0">', 1)


def render_markdown(text: str) -> Markup:
    """Render untrusted Markdown as HTML; as plain text when rendering would be expensive."""
    text = escape_bidi(text)
    if is_expensive_markdown(text, MAX_BRACKETS):
        return render_plain_text(text)
    return Markup(_markdown().render(text))  # noqa: S704 - the renderer escapes everything it does not generate


def is_expensive_markdown(text: str, max_brackets: int) -> bool:
    """Return whether rendering could take long: parsing an opening bracket costs as much as fifty words."""
    is_long = len(text) > MAX_MARKDOWN_CHARACTERS or text.count("[") > max_brackets
    return is_long or ("|" in text and _count_table_cells(text) > MAX_TABLE_CELLS)


def _count_table_cells(text: str) -> int:
    """Return at least the number of cells of all tables; each of them ends with an empty line, or earlier."""
    cells = rows = columns = 0
    for line in [*_LINE_END.split(text), ""]:
        if line.strip(" \t"):
            rows += 1
            if (pipes := line.count("|")) >= columns and not line.strip(_TABLE_RULE):
                columns = pipes + 1
        else:
            cells += rows * columns
            rows = columns = 0
    return cells


def render_plain_text(text: str) -> Markup:
    rest = f"\n… ({len(text) - MAX_TEXT_CHARACTERS:,} more characters)" if len(text) > MAX_TEXT_CHARACTERS else ""
    return Markup('<pre class="code" tabindex="0">{}</pre>').format(text[:MAX_TEXT_CHARACTERS] + rest)


def to_percent(value: float, maximum: float) -> float:
    """Return a share in percent, from 0 to 100, for the width of a bar."""
    return 0.0 if maximum <= 0 else round(100 * max(0.0, min(1.0, value / maximum)), 2)


def color_step(value: float, lowest: float, highest: float) -> int:
    """Return the color of a value on the scale of the heat map, 0 to 9."""
    return 5 if highest <= lowest else max(0, min(9, int(10 * (value - lowest) / (highest - lowest))))


def name_actor(name: str) -> str:
    """Return who did something; in the records the service is `system`."""
    return SERVICE if name == SYSTEM_ACTOR else name


def explain_denial(code: Any) -> str:
    """Return why an agent was not admitted, after its name."""
    return describe_denial(str(code))


def encode_for_url(value: str | Mapping[str, object] | Iterable[tuple[str, object]]) -> str:
    """Return a text as one segment of a path, and names with values as a query.

    Jinja's own filter leaves slashes in a text, so that an id with one would be two segments.
    """
    return quote_segment(value) if isinstance(value, str) else do_urlencode(value)


FILTERS: dict[str, Callable[..., Any]] = {
    "clock": format_clock,
    "duration": format_duration,
    "number": format_number,
    "score": format_score,
    "money": format_money,
    "budget": format_budget,
    "short": shorten_id,
    "argument": quote_argument,
    "shell": shlex.quote,
    "urlencode": encode_for_url,
    "cut": truncate_line,
    "escape_bidi": escape_bidi,
    "actor": name_actor,
    "breakable": allow_breaks,
    "rerun_text": format_input,
    "sentence": render_sentence,
    "error_line": find_error_line,
    "denial": explain_denial,
    "pretty": format_json,
    "words": humanize,
    "markdown": render_markdown,
}


def to_json_attribute(value: Any) -> Markup:
    """Encode as compact JSON, escaped for a data attribute."""
    return escape(json.dumps(value, separators=(",", ":")))
