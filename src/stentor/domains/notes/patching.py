"""Setting one frontmatter key through the plugin's PATCH, in whichever form the plugin's version understands.

Since 5.0 the headers need a version; version 2 of them also works with 3.x and 4.x, which ignore that header.
The empty text is no body in the header form, so it travels in an instruction, which 3.x does not know.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote

from stentor.core import jsontext
from stentor.domains.notes.frontmatter import BadFrontmatter
from stentor.domains.notes.model import NoSuchNote, NoteChanged, NoteTooLarge
from stentor.domains.notes.plugin import Answer, Plugin
from stentor.domains.notes.upstream import UpstreamBroken

Form = Callable[[str, Any], tuple[dict[str, str], bytes]]
"""(key, value) -> headers and body."""
_JSON = {"Content-Type": "application/json"}
BAD_FRONTMATTER = 40005
_NOT_UNDERSTOOD = (400, 405, 415, 422, 501)


def _headers(version: str) -> Form:
    def form(key: str, value: Any) -> tuple[dict[str, str], bytes]:
        headers = {
            "Markdown-Patch-Version": version,
            "Operation": "replace",
            "Target-Type": "frontmatter",
            "Target": quote(key, safe=""),
            "Create-Target-If-Missing": "true",
        }
        return headers | _JSON, jsontext.encode(value)

    return form


def _instruction(key: str, value: Any) -> tuple[dict[str, str], bytes]:
    body = {"targetType": "frontmatter", "target": key, "operation": "replace"}
    content = jsontext.encode(body | {"value": value, "createTargetIfMissing": True})
    return {"Markdown-Patch-Version": "2"} | _JSON, content


NEW, INSTRUCTION, OLD = _headers("2"), _instruction, _headers("1")


class Patching:
    """Of one plugin. Remembers which form it took, and asks in that one first."""

    def __init__(self, plugin: Plugin) -> None:
        self._plugin = plugin
        self._taken: dict[str, Form] = {}

    async def set_key(self, path: str, at: str, key: str, value: Any, conditions: Mapping[str, str]) -> None:
        """Raises NoSuchNote, NoteChanged (its state unknown), BadFrontmatter, NoteTooLarge for a note that the plugin
        does not edit by parts, and what the plugin's calls raise.
        """
        kind = _kind(value)
        answer = None
        for form in self._forms(kind):
            headers, body = form(key, value)
            answer = await self._plugin.ask("PATCH", at, headers={**headers, **conditions}, body=body)
            if answer.ok:
                _require_patched(answer)
                self._taken[kind] = form
                return
            if answer.status not in _NOT_UNDERSTOOD or answer.code == BAD_FRONTMATTER:
                break
        raise _refusal(path, answer)

    def _forms(self, kind: str) -> list[Form]:
        forms = [INSTRUCTION, OLD] if kind == "empty" else [NEW, INSTRUCTION, OLD]
        taken = self._taken.get(kind)
        return forms if taken is None else [taken, *(form for form in forms if form is not taken)]


def _kind(value: Any) -> str:
    """Values that a version may take in one form and not in another."""
    if value == "":
        return "empty"
    return "null" if value is None else "object" if isinstance(value, dict) else "plain"


def _require_patched(answer: Answer) -> None:
    """The plugin answers the patched note, which begins with its frontmatter. Raises UpstreamBroken."""
    if not answer.body.removeprefix(codecs.BOM_UTF8).startswith(b"---"):
        raise UpstreamBroken("The vault plugin answered something that is not the patched note.")


def _refusal(path: str, answer: Answer | None) -> Exception:
    if answer is None:
        return UpstreamBroken("The vault plugin knows no form of PATCH.")
    if answer.status == 404:
        return NoSuchNote(f"The vault has no note {path!r}.")
    if answer.status == 412:
        return NoteChanged(path, "")
    if answer.status == 413:
        return NoteTooLarge(f"{path!r} is larger than the vault plugin edits by parts.")
    if answer.code == BAD_FRONTMATTER:
        return BadFrontmatter("The note's frontmatter cannot be read, so that it cannot be edited either.")
    return answer.unexpected()
