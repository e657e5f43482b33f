"""The items of a session as text: who said what, calls of tools, results and summaries."""

from __future__ import annotations

from collections.abc import Iterator

from stentor.cli import output
from stentor.cli.output import format_age, shorten_id
from stentor.cli.sessions.view import ListedItems, SessionItem, count_items
from stentor.core import jsontext
from stentor.surfaces.dashboard.presenters.conversation import Part, read_message

MAX_CHARACTERS = 2_000
"""Characters of a text that are printed; `--json` has all."""
INDENT = "    "


def show_items(page: ListedItems) -> None:
    """Print a page of items, oldest first, with a line for each that says who said it and when."""
    for item in page.items:
        output.print_value("\n".join(_render(item)) + "\n")
    if len(page.items) == page.item_count:
        output.print_notice(f"{count_items(page.item_count)}.")
    else:
        output.print_notice(f"The newest {len(page.items):,} of {count_items(page.item_count)}; --all shows all.")


def _render(item: SessionItem) -> Iterator[str]:
    message = read_message(item.value)
    speaker = "no message" if message is None else message.role
    of_task = f", task {shorten_id(item.task_id)}" if item.task_id else ""
    label = f"summary of everything before, {speaker}" if item.kind == "summary" else speaker
    yield f"[{item.position}] {_line(label)}, {format_age(item.created_at)}{of_task}"
    if message is None:
        yield from _block(item.value if isinstance(item.value, str) else jsontext.dump(item.value))
    elif not message.parts:
        yield f"{INDENT}(empty)"
    for part in message.parts if message else ():
        yield from _render_part(part)


def _render_part(part: Part) -> Iterator[str]:
    if part.kind == "call":
        yield f"{INDENT}calls {_line(part.name)}:"
    elif part.kind == "result":
        yield f"{INDENT}result of {_line(part.name)}:" if part.name else f"{INDENT}result:"
    elif part.kind != "text":
        yield f"{INDENT}{part.kind}:"
    yield from _block(part.text)


def _block(text: str) -> Iterator[str]:
    shown = text[:MAX_CHARACTERS]
    for line in shown.split("\n"):
        yield f"{INDENT}{line}".rstrip()
    if len(text) > MAX_CHARACTERS:
        yield f"{INDENT}... {len(text) - MAX_CHARACTERS:,} more characters; --json has all"


def _line(text: str) -> str:
    """Return a text of somebody else as part of a line: it cannot look like the line of another item."""
    return " ".join(text.split())[:80]
