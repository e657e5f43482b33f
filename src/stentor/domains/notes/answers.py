"""What an answer of the vault plugin says of the path that was asked for. Pure.

A path may lead to more than notes: from version 5 on a folder without its slash is listed, and behind a note
(`a.md/heading/A`) stands a part of it. What else answers at the plugin's address, a proxy's page, is no note either.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from urllib.parse import unquote

import msgspec

from stentor.core.errors import StentorError
from stentor.domains.notes import paths
from stentor.domains.notes.model import NoSuchNote, NoteTooLarge
from stentor.domains.notes.plugin import Answer
from stentor.domains.notes.upstream import UpstreamBroken

_BEHIND_NOTE = (40054, 40055)
"""The plugin's codes for a path that goes on behind a note with what is no part of one."""
_PAGES = (".html", ".htm", ".shtml")


class _Listing(msgspec.Struct, forbid_unknown_fields=True):
    files: list[str]


def leads_behind(answer: Answer, segments: Sequence[str]) -> bool:
    """Whether the path goes through a note: to a part of it, whose note the plugin names, or to nothing."""
    if not answer.ok:
        return answer.code in _BEHIND_NOTE
    location = unquote(answer.headers.get("content-location", ""))
    return bool(location) and not unicodedata.normalize("NFC", location).endswith("/".join(segments))


def is_listing(answer: Answer) -> bool:
    """Whether it is the list of a folder, or a JSON file that looks like one."""
    if not answer.ok or answer.media != "application/json":
        return False
    try:
        msgspec.json.decode(answer.body, type=_Listing)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False
    return True


def require_note(answer: Answer, name: str) -> None:
    """Raises UpstreamBroken unless the answer may be the file of this name: the plugin tells types by the names."""
    lower = name.lower()
    if answer.status != 200:
        raise answer.unexpected()
    wrong = answer.media != "text/markdown" if lower.endswith(".md") else answer.media == "text/html"
    if wrong and not lower.endswith(_PAGES):
        raise UpstreamBroken("The vault plugin answered something that is no note.")


def require_done(answer: Answer, path: str) -> None:
    """Of a write or a deletion, which the plugin answers with 204. Raises NoSuchNote, NoteTooLarge, UpstreamBroken."""
    if answer.status != 204:
        raise _refusal(answer, path)


def _refusal(answer: Answer, path: str) -> StentorError:
    if answer.status == 404 or answer.code in _BEHIND_NOTE:
        return NoSuchNote(f"The vault can have no note {paths.shown(path)}.")
    if answer.status == 413:
        return NoteTooLarge(f"{paths.shown(path)} would be larger than the vault plugin takes.")
    return answer.unexpected()
