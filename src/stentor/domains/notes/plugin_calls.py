"""Calls of the vault plugin's API that hide the differences between its versions.

- Responses: from version 5 on, a folder without its slash is listed, and a path into a note (`a.md/heading/A`)
  returns that part. A page of a proxy is not a note either.
- Folders: listings of one level and of all, and the check that a new path is free.
- Frontmatter: one key is set by PATCH. Since 5.0 the headers need a version; version 2 also works with 3.x and 4.x,
  which ignore it. An empty string cannot be the body of the header form, so it goes into an instruction, which 3.x
  does not support.
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
from stentor.core.errors import Conflict
from stentor.domains.notes.plugin_client import PluginClient, PluginResponse, vault_path
from stentor_vault.notes import paths
from stentor_vault.notes.frontmatter import InvalidFrontmatter
from stentor_vault.notes.model import NameTaken, NoSuchNote, NoteChanged, NoteTooLarge, VaultProtocolError

_BAD_SUBPATH_CODES = (40054, 40055)
"""The plugin's codes for a path into a note that does not name a part of it."""
INVALID_FRONTMATTER_CODE = 40005
FIRST_MAJOR_LISTING_EMPTY_ROOT = 4
MAX_CONCURRENT_REQUESTS = 8
"""Maximum concurrent requests for folders or files."""
_HTML_SUFFIXES = (".html", ".htm", ".shtml")
_JSON_HEADERS = {"Content-Type": "application/json"}
_UNSUPPORTED_STATUSES = (400, 405, 415, 422, 501)
"""Statuses with which a version of the plugin rejects a form of PATCH that it does not support."""

PatchForm = Callable[[str, Any], tuple[dict[str, str], bytes]]
"""Turns a key and a value into headers and a body."""
log = logging.getLogger(__name__)


class _Listing(msgspec.Struct, forbid_unknown_fields=True):
    files: list[str]


def points_into_note(response: PluginResponse, segments: Sequence[str]) -> bool:
    """Return whether the path goes into a note: to a part of it, or to nothing."""
    if not response.ok:
        return response.error_code in _BAD_SUBPATH_CODES
    # The response for a part has the path of its note here.
    location = unquote(response.headers.get("content-location", ""))
    # NFC, because the names of a vault on macOS may come decomposed.
    return bool(location) and not unicodedata.normalize("NFC", location).endswith("/".join(segments))


def is_folder_listing(response: PluginResponse) -> bool:
    """Return whether the response is a folder listing, or a JSON file that looks like one."""
    if not response.ok or response.media_type != "application/json":
        return False
    try:
        msgspec.json.decode(response.body, type=_Listing)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False
    return True


def require_note_response(response: PluginResponse, name: str) -> None:
    """Raise VaultProtocolError if the type does not fit the name: the plugin derives the type from the name."""
    lower = name.lower()
    if response.status != 200:
        raise response.to_error()
    is_wrong_type = (
        response.media_type != "text/markdown" if lower.endswith(".md") else response.media_type == "text/html"
    )
    if is_wrong_type and not lower.endswith(_HTML_SUFFIXES):
        raise VaultProtocolError(
            "The server at the plugin's address returned a page instead of a note. Check the address."
        )


def require_no_content(response: PluginResponse, path: str) -> None:
    """Check the response of a write or deletion, 204. Raises NoSuchNote, NoteTooLarge, VaultProtocolError."""
    if response.status == 204:
        return
    if response.status == 404 or response.error_code in _BAD_SUBPATH_CODES:
        raise NoSuchNote(f"The vault cannot have a note at {paths.display_path(path)}.")
    if response.status == 413:
        raise NoteTooLarge(f"{paths.display_path(path)} would be larger than the vault plugin accepts.")
    raise response.to_error()


class FolderExists(Conflict):
    """A folder has the name of a new file."""


async def list_folder(plugin: PluginClient, folder: Sequence[str]) -> list[str]:
    """List one level, sorted by name; folders end in a slash. Raises NoSuchNote."""
    response = await plugin.request("GET", vault_path(folder, is_folder=True))
    # The root of a vault always exists, so a 404 for it is an old plugin's empty vault or another server.
    if response.status == 404 and not folder:
        await _require_old_version(plugin)
        return []
    if response.status == 404 or points_into_note(response, folder):
        raise NoSuchNote(f"The vault has no folder {paths.display_path('/'.join(folder))}.")
    if not response.ok:
        raise response.to_error()
    listing = response.json()
    files = listing.get("files") if isinstance(listing, dict) else None
    if not isinstance(files, list) or not all(map(_is_name, files)):
        raise VaultProtocolError("The vault plugin returned an invalid folder listing.")
    # A set: two names that differ only in their normalization are one note.
    return sorted({unicodedata.normalize("NFC", name) for name in files if not paths.is_hidden(name)})


async def _require_old_version(plugin: PluginClient) -> None:
    """Raise VaultProtocolError unless 404 for the vault's root means an empty vault, as in plugins before 4.

    Raises what `fetch_version` raises as well.
    """
    major = (await plugin.fetch_version()).partition(".")[0]
    if not (major.isdecimal() and int(major) < FIRST_MAJOR_LISTING_EMPTY_ROOT):
        log.warning("plugin: vault root not found, check the plugin's address")
        raise VaultProtocolError("The vault plugin returned 404 for the root of its vault. Check the plugin's address.")


def _is_name(name: object) -> bool:
    # A name with a slash inside would lead to another folder than the listed one.
    bare = name.removesuffix("/") if isinstance(name, str) else ""
    return bool(bare) and "/" not in bare and "\0" not in bare


async def walk_files(plugin: PluginClient, start: tuple[str, ...]) -> list[str]:
    """Return the paths of all files below a folder, sorted; with bounded concurrency, depth first."""
    files: list[str] = []
    pending: list[tuple[str, ...]] = [start]
    running: set[asyncio.Task[list[str]]] = set()
    folder_by_task: dict[asyncio.Task[list[str]], tuple[str, ...]] = {}
    try:
        while pending or running:
            while pending and len(running) < MAX_CONCURRENT_REQUESTS:
                folder = pending.pop()
                task = asyncio.create_task(_list_if_exists(plugin, folder))
                running.add(task)
                folder_by_task[task] = folder
            done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                folder, names = folder_by_task.pop(task), task.result()
                files += ["/".join((*folder, name)) for name in names if not name.endswith("/")]
                # Reversed, because `pop` takes the last one: folders are read in the order of their names.
                subfolders = [(*folder, name[:-1]) for name in reversed(names) if name.endswith("/")]
                # The limit also ends a walk through listings that form a circle.
                pending += [path for path in subfolders if len("/".join(path)) <= paths.MAX_PATH_LENGTH]
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
    return sorted(files)


async def _list_if_exists(plugin: PluginClient, folder: tuple[str, ...]) -> list[str]:
    try:
        return await list_folder(plugin, folder)
    except NoSuchNote:
        return []  # deleted since the listing


async def require_free_path(plugin: PluginClient, segments: Sequence[str]) -> None:
    """Check that a new file can have this path.

    Raises NameTaken for a case collision, FolderExists if it is a folder, NoSuchNote if a path component is a file.
    """
    for depth, part in enumerate(segments):
        try:
            names = await list_folder(plugin, segments[:depth])
        except NoSuchNote:
            return
        is_file = depth == len(segments) - 1
        listed_name, conflicting_name = (part, f"{part}/") if is_file else (f"{part}/", part)
        if listed_name in names:
            continue
        if conflicting_name in names:
            path = paths.display_path("/".join(segments[: depth + 1]))
            raise FolderExists(f"{path} is a folder.") if is_file else NoSuchNote(f"{path} is a file, not a folder.")
        folded = paths.fold_path(part)
        existing = next((name for name in names if paths.fold_path(name.removesuffix("/")) == folded), None)
        if existing is not None:
            raise NameTaken(
                f"{listed_name!r} and the existing {existing!r} are the same name on some systems. Use {existing!r}."
            )
        return


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
    """Sets frontmatter keys through one plugin; tries the form of PATCH first that worked last."""

    def __init__(self, plugin: PluginClient) -> None:
        self._plugin = plugin
        self._working_forms: dict[str, PatchForm] = {}

    async def set_key(self, path: str, url_path: str, key: str, value: Any, conditions: Mapping[str, str]) -> None:
        """Set a key of the note at `path`, whose URL path is `url_path`.

        Raises NoSuchNote, NoteChanged (with the current state unknown), InvalidFrontmatter, NoteTooLarge if the plugin
        edits only smaller notes by parts, and what `PluginClient.request` raises.
        """
        kind = _value_kind(value)
        response = None
        for form in self._forms(kind):
            headers, body = form(key, value)
            response = await self._plugin.request("PATCH", url_path, headers={**headers, **conditions}, body=body)
            if response.ok:
                _require_patched(response)
                self._working_forms[kind] = form
                return
            # Any other error would be the same in another form.
            if response.status not in _UNSUPPORTED_STATUSES or response.error_code == INVALID_FRONTMATTER_CODE:
                break
        raise _patch_error(path, response)

    def _forms(self, kind: str) -> list[PatchForm]:
        forms = [V2_BODY, V1_HEADERS] if kind == "empty" else [V2_HEADERS, V2_BODY, V1_HEADERS]
        working = self._working_forms.get(kind)
        return forms if working is None else [working, *(form for form in forms if form is not working)]


def _value_kind(value: Any) -> str:
    """Return the kind of a value; some versions support a kind in one form only."""
    if value == "":
        return "empty"
    return "null" if value is None else "object" if isinstance(value, dict) else "plain"


def _require_patched(response: PluginResponse) -> None:
    """Check that the response is the patched note, which begins with frontmatter. Raises VaultProtocolError."""
    if not response.body.removeprefix(codecs.BOM_UTF8).startswith(b"---"):
        raise VaultProtocolError(
            "The vault plugin returned something other than the patched note. Read the note again."
        )


def _patch_error(path: str, response: PluginResponse | None) -> Exception:
    if response is None:
        return VaultProtocolError("The vault plugin supports no form of PATCH.")
    if response.status == 404:
        return NoSuchNote(f"The vault has no note {path!r}.")
    if response.status == 412:
        return NoteChanged(path, "")
    if response.status == 413:
        return NoteTooLarge(f"{path!r} is too large for the vault plugin to edit by parts.")
    if response.error_code == INVALID_FRONTMATTER_CODE:
        return InvalidFrontmatter("The note's frontmatter is invalid, so it cannot be edited. Correct it in the note.")
    return response.to_error()
