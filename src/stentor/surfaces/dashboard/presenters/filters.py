"""How values look on a page: times, numbers, states, Markdown. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from markdown_it import MarkdownIt
from markupsafe import Markup, escape

UNSCORED = "unscored"
EMPTY_VALUE = "–"
MAX_MARKDOWN_CHARACTERS, MAX_TEXT_CHARACTERS = 50_000, 200_000
"""Characters of a text that is read as Markdown, and of one that is shown as it is."""
MAX_BRACKETS = 2_000
_UNITS = (("d", 86_400), ("h", 3_600), ("min", 60))


def format_time(value: str | None, now: int) -> Markup:
    """An ISO time as `<time>`: relative to `now` (microseconds), the exact one on hover."""
    if not value:
        return Markup('<span class="faint">–</span>')
    exact = datetime.fromisoformat(value).astimezone(UTC)
    said = format_relative_time(now / 1e6 - exact.timestamp())
    title = exact.strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + " UTC"
    return Markup('<time datetime="{}" title="{}">{}</time>').format(value, title, said)


def format_relative_time(seconds: float) -> str:
    """`3 min ago`, `in 2 h`, `just now`."""
    size = abs(seconds)
    if size < 1:
        return "just now"
    name, unit = next(((name, unit) for name, unit in _UNITS if size >= unit), ("s", 1))
    said = f"{int(size // unit)} {name}"
    return f"{said} ago" if seconds > 0 else f"in {said}"


def format_duration(ms: float | None) -> str:
    """`420 µs`, `12 ms`, `3.4 s`, `5 min 20 s`, `3 h 5 min`."""
    if ms is None:
        return EMPTY_VALUE
    if ms < 1:
        return f"{ms * 1000:.0f} µs"
    if ms < 1_000:
        return f"{ms:.0f} ms"
    if ms < 60_000:
        return f"{ms / 1000:.1f} s"
    minutes, seconds = divmod(int(ms / 1000), 60)
    if minutes < 60:
        return f"{minutes} min {seconds} s"
    return f"{minutes // 60} h {minutes % 60} min"


def format_number(value: float | None, digits: int = 0) -> str:
    """With thousands; a null is a dash."""
    return EMPTY_VALUE if value is None else f"{value:,.{digits}f}"


def format_score(value: float | None, digits: int = 2) -> str:
    """Trust and the like; null is `unscored` and never 0. Source: second contract, "Governance snapshot"."""
    return UNSCORED if value is None else f"{value:.{digits}f}"


def format_money(dollars: float | None) -> str:
    if dollars is None:
        return "unknown"
    return f"${dollars:,.2f}" if dollars >= 1 or dollars == 0 else f"${dollars:.4f}"


def shorten_id(text: str | None, most: int = 8) -> str:
    """An id by its last characters: its first ones are its time."""
    return EMPTY_VALUE if not text else (text if len(text) <= most + 1 else f"…{text[-most:]}")


def truncate_line(text: Any, most: int = 120) -> str:
    """One line, cut at a length."""
    line = " ".join(str(text).split())
    return line if len(line) <= most else line[: most - 1] + "…"


def format_json(value: Any) -> str:
    """JSON for people; text as it is."""
    return value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False)


def humanize(text: str | None) -> str:
    """`pending_approval` as `pending approval`."""
    return (text or EMPTY_VALUE).replace("_", " ")


@lru_cache(1)
def _markdown() -> MarkdownIt:
    """Without raw HTML and images; links only to where a click is harmless."""
    return MarkdownIt("js-default", {"html": False, "linkify": False}).disable("image")


def render_markdown(text: str) -> Markup:
    """HTML of a Markdown text that nobody vouches for; of one that takes long to read, the text as it is."""
    if is_expensive_markdown(text, MAX_BRACKETS):
        return render_plain_text(text)
    return Markup(_markdown().render(text))  # noqa: S704 - the renderer escapes all that it does not make itself


def is_expensive_markdown(text: str, brackets: int) -> bool:
    """Whether a text may be written to keep its reader busy: an opening bracket takes as long as fifty words."""
    return len(text) > MAX_MARKDOWN_CHARACTERS or text.count("[") > brackets


def render_plain_text(text: str) -> Markup:
    rest = f"\n… ({len(text) - MAX_TEXT_CHARACTERS:,} more characters)" if len(text) > MAX_TEXT_CHARACTERS else ""
    return Markup('<pre class="code" tabindex="0">{}</pre>').format(text[:MAX_TEXT_CHARACTERS] + rest)


def to_percent(value: float, most: float) -> float:
    """A part of a whole as percent, for the width of a bar."""
    return 0.0 if most <= 0 else round(100 * max(0.0, min(1.0, value / most)), 2)


def color_step(value: float, lowest: float, highest: float) -> int:
    """Which of ten colours a value has."""
    return 5 if highest <= lowest else max(0, min(9, int(10 * (value - lowest) / (highest - lowest))))


FILTERS: dict[str, Callable[..., Any]] = {
    "duration": format_duration,
    "number": format_number,
    "score": format_score,
    "money": format_money,
    "short": shorten_id,
    "cut": truncate_line,
    "pretty": format_json,
    "words": humanize,
    "markdown": render_markdown,
}


def to_json_attribute(value: Any) -> Markup:
    """JSON for a data attribute."""
    return escape(json.dumps(value, separators=(",", ":")))
