"""What an answer of the vault plugin says of the path that was asked for. Pure.

A path may lead to more than notes: from version 5 on a folder without its slash is listed, and behind a note
(`a.md/heading/A`) stands a part of it. What else answers at the plugin's address, a proxy's page, is no note either.

The folders of a vault behind the plugin: one level, all of them depth-first, and names that are taken.

Setting one frontmatter key through the plugin's PATCH, in whichever form the plugin's version understands.

Since 5.0 the headers need a version; version 2 of them also works with 3.x and 4.x, which ignore that header.
The empty text is no body in the header form, so it travels in an instruction, which 3.x does not know.
"""

from __future__ import annotations

import asyncio
import codecs
import logging
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import quote, unquote

import msgspec

from stentor.core import jsontext
from stentor.core.errors import Conflict, StentorError
from stentor.domains.notes.plugin_client import PluginClient, PluginResponse, vault_path
from stentor_vault.notes import paths
from stentor_vault.notes.frontmatter import InvalidFrontmatter
from stentor_vault.notes.model import NameTaken, NoSuchNote, NoteChanged, NoteTooLarge, VaultProtocolError

_BAD_SUBPATH_CODES = (40054, 40055)
"""The plugin's codes for a path that goes on behind a note with what is no part of one."""
_PAGES = (".html", ".htm", ".shtml")


class _Listing(msgspec.Struct, forbid_unknown_fields=True):
    files: list[str]


def points_into_note(answer: PluginResponse, segments: Sequence[str]) -> bool:
    """Whether the path goes through a note: to a part of it, whose note the plugin names, or to nothing."""
    if not answer.ok:
        return answer.error_code in _BAD_SUBPATH_CODES
    location = unquote(answer.headers.get("content-location", ""))
    return bool(location) and not unicodedata.normalize("NFC", location).endswith("/".join(segments))


def is_folder_listing(answer: PluginResponse) -> bool:
    """Whether it is the list of a folder, or a JSON file that looks like one."""
    if not answer.ok or answer.media_type != "application/json":
        return False
    try:
        msgspec.json.decode(answer.body, type=_Listing)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False
    return True


def require_note_response(answer: PluginResponse, name: str) -> None:
    """Raises UpstreamBroken unless the answer may be the file of this name: the plugin tells types by the names."""
    lower = name.lower()
    if answer.status != 200:
        raise answer.to_error()
    wrong = answer.media_type != "text/markdown" if lower.endswith(".md") else answer.media_type == "text/html"
    if wrong and not lower.endswith(_PAGES):
        raise VaultProtocolError("The vault plugin answered something that is no note.")


def require_no_content(answer: PluginResponse, path: str) -> None:
    """Of a write or a deletion, which the plugin answers with 204. Raises NoSuchNote, NoteTooLarge, UpstreamBroken."""
    if answer.status != 204:
        raise _write_error(answer, path)


def _write_error(answer: PluginResponse, path: str) -> StentorError:
    if answer.status == 404 or answer.error_code in _BAD_SUBPATH_CODES:
        return NoSuchNote(f"The vault can have no note {paths.display_path(path)}.")
    if answer.status == 413:
        return NoteTooLarge(f"{paths.display_path(path)} would be larger than the vault plugin takes.")
    return answer.to_error()


FIRST_MAJOR_LISTING_EMPTY_ROOT = 4
MAX_CONCURRENT_REQUESTS = 8
"""Folders, or files, that are asked for at the same time."""


log = logging.getLogger(__name__)


class FolderExists(Conflict):
    """A folder has the name of a new file."""


async def list_folder(plugin: PluginClient, folder: Sequence[str]) -> list[str]:
    """Names of one level, those of folders with a slash at the end. Raises NoSuchNote."""
    answer = await plugin.request("GET", vault_path(folder, is_folder=True))
    if answer.status == 404 and not folder:
        await _require_old(plugin)
        return []
    if answer.status == 404 or points_into_note(answer, folder):
        raise NoSuchNote(f"The vault has no folder {paths.display_path('/'.join(folder))}.")
    if not answer.ok:
        raise answer.to_error()
    found = answer.json()
    files = found.get("files") if isinstance(found, dict) else None
    if not isinstance(files, list) or not all(map(_is_name, files)):
        raise VaultProtocolError("The vault plugin's list of a folder is not one.")
    return sorted({unicodedata.normalize("NFC", name) for name in files if not paths.is_hidden(name)})


async def _require_old(plugin: PluginClient) -> None:
    """Only plugins before 4 answer 404 for the root of a vault without files; anywhere else it is no empty vault.

    Raises UpstreamBroken, and what `greet` raises when something else than a plugin answers there.
    """
    major = (await plugin.fetch_version()).partition(".")[0]
    if not (major.isdecimal() and int(major) < FIRST_MAJOR_LISTING_EMPTY_ROOT):
        log.warning("the vault plugin answered 404 for the root of its vault; check NOTES_BASE_URL")
        raise VaultProtocolError("The vault plugin does not find the root of its vault (404).")


def _is_name(name: object) -> bool:
    """No part of a listing may lead anywhere but one level down."""
    bare = name.removesuffix("/") if isinstance(name, str) else ""
    return bool(bare) and "/" not in bare and "\0" not in bare


async def walk_files(plugin: PluginClient, start: tuple[str, ...] = ()) -> list[str]:
    """The paths of all files below, in order; depth-first, with a bounded number of folders asked at a time."""
    found: list[str] = []
    todo: list[tuple[str, ...]] = [start]
    asking: set[asyncio.Task[list[str]]] = set()
    of: dict[asyncio.Task[list[str]], tuple[str, ...]] = {}
    try:
        while todo or asking:
            while todo and len(asking) < MAX_CONCURRENT_REQUESTS:
                folder = todo.pop()
                task = asyncio.create_task(_list_if_exists(plugin, folder))
                asking.add(task)
                of[task] = folder
            done, asking = await asyncio.wait(asking, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                folder, names = of.pop(task), task.result()
                found += ["/".join((*folder, name)) for name in names if not name.endswith("/")]
                inner = [(*folder, name[:-1]) for name in reversed(names) if name.endswith("/")]
                todo += filter(_reachable, inner)
    finally:
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
    return sorted(found)


async def _list_if_exists(plugin: PluginClient, folder: tuple[str, ...]) -> list[str]:
    try:
        return await list_folder(plugin, folder)
    except NoSuchNote:
        return []  # gone since


def _reachable(folder: tuple[str, ...]) -> bool:
    """Also what ends a listing that goes in circles."""
    return len("/".join(folder)) <= paths.MAX_PATH_LENGTH


async def require_free_path(plugin: PluginClient, segments: Sequence[str]) -> None:
    """Raises NameTaken when a new file would differ from a name there only in letter case, FolderTaken when it has a
    folder's name, NoSuchNote when its path leads through a file.
    """
    for depth, part in enumerate(segments):
        try:
            names = await list_folder(plugin, segments[:depth])
        except NoSuchNote:
            return
        own, other = (part, f"{part}/") if depth == len(segments) - 1 else (f"{part}/", part)
        if own in names:
            continue
        if other in names:
            raise _crossed(other, segments[: depth + 1])
        wanted = paths.fold_path(part)
        twin = next((name for name in names if paths.fold_path(name.removesuffix("/")) == wanted), None)
        if twin is not None:
            raise NameTaken(f"{own!r} and {twin!r} are the same name on some systems; use the one that is there.")
        return


def _crossed(name: str, segments: Sequence[str]) -> FolderExists | NoSuchNote:
    """A file would be where a folder is, or below a file."""
    path = paths.display_path("/".join(segments))
    return (
        FolderExists(f"{path} is a folder.") if name.endswith("/") else NoSuchNote(f"{path} is a file, and no folder.")
    )


PatchForm = Callable[[str, Any], tuple[dict[str, str], bytes]]
"""(key, value) -> headers and body."""
_JSON_HEADERS = {"Content-Type": "application/json"}
INVALID_FRONTMATTER_CODE = 40005
_UNSUPPORTED_STATUSES = (400, 405, 415, 422, 501)


def _header_form(version: str) -> PatchForm:
    def form(key: str, value: Any) -> tuple[dict[str, str], bytes]:
        headers = {
            "Markdown-Patch-Version": version,
            "Operation": "replace",
            "Target-Type": "frontmatter",
            "Target": quote(key, safe=""),
            "Create-Target-If-Missing": "true",
        }
        return headers | _JSON_HEADERS, jsontext.encode(value)

    return form


def _body_form(key: str, value: Any) -> tuple[dict[str, str], bytes]:
    body = {"targetType": "frontmatter", "target": key, "operation": "replace"}
    content = jsontext.encode(body | {"value": value, "createTargetIfMissing": True})
    return {"Markdown-Patch-Version": "2"} | _JSON_HEADERS, content


V2_HEADERS, V2_BODY, V1_HEADERS = _header_form("2"), _body_form, _header_form("1")


class FrontmatterPatcher:
    """Of one plugin. Remembers which form it took, and asks in that one first."""

    def __init__(self, plugin: PluginClient) -> None:
        self._plugin = plugin
        self._taken: dict[str, PatchForm] = {}

    async def set_key(self, path: str, at: str, key: str, value: Any, conditions: Mapping[str, str]) -> None:
        """Raises NoSuchNote, NoteChanged (its state unknown), BadFrontmatter, NoteTooLarge for a note that the plugin
        does not edit by parts, and what the plugin's calls raise.
        """
        kind = _value_kind(value)
        answer = None
        for form in self._forms(kind):
            headers, body = form(key, value)
            answer = await self._plugin.request("PATCH", at, headers={**headers, **conditions}, body=body)
            if answer.ok:
                _require_patched(answer)
                self._taken[kind] = form
                return
            if answer.status not in _UNSUPPORTED_STATUSES or answer.error_code == INVALID_FRONTMATTER_CODE:
                break
        raise _patch_error(path, answer)

    def _forms(self, kind: str) -> list[PatchForm]:
        forms = [V2_BODY, V1_HEADERS] if kind == "empty" else [V2_HEADERS, V2_BODY, V1_HEADERS]
        taken = self._taken.get(kind)
        return forms if taken is None else [taken, *(form for form in forms if form is not taken)]


def _value_kind(value: Any) -> str:
    """Values that a version may take in one form and not in another."""
    if value == "":
        return "empty"
    return "null" if value is None else "object" if isinstance(value, dict) else "plain"


def _require_patched(answer: PluginResponse) -> None:
    """The plugin answers the patched note, which begins with its frontmatter. Raises UpstreamBroken."""
    if not answer.body.removeprefix(codecs.BOM_UTF8).startswith(b"---"):
        raise VaultProtocolError("The vault plugin answered something that is not the patched note.")


def _patch_error(path: str, answer: PluginResponse | None) -> Exception:
    if answer is None:
        return VaultProtocolError("The vault plugin knows no form of PATCH.")
    if answer.status == 404:
        return NoSuchNote(f"The vault has no note {path!r}.")
    if answer.status == 412:
        return NoteChanged(path, "")
    if answer.status == 413:
        return NoteTooLarge(f"{path!r} is larger than the vault plugin edits by parts.")
    if answer.error_code == INVALID_FRONTMATTER_CODE:
        return InvalidFrontmatter("The note's frontmatter cannot be read, so that it cannot be edited either.")
    return answer.to_error()
