"""The folders of a vault behind the plugin: one level, all of them depth-first, and names that are taken."""

from __future__ import annotations

import asyncio
import logging
import unicodedata
from collections.abc import Sequence

from stentor.core.errors import Conflict
from stentor.domains.notes import answers, paths
from stentor.domains.notes.model import NameTaken, NoSuchNote
from stentor.domains.notes.plugin import Plugin, at
from stentor.domains.notes.upstream import UpstreamBroken

OLD = 4
AT_ONCE = 8
"""Folders, or files, that are asked for at the same time."""


log = logging.getLogger(__name__)


class FolderTaken(Conflict):
    """A folder has the name of a new file."""


async def listing(plugin: Plugin, folder: Sequence[str]) -> list[str]:
    """Names of one level, those of folders with a slash at the end. Raises NoSuchNote."""
    answer = await plugin.ask("GET", at(folder, folder=True))
    if answer.status == 404 and not folder:
        await _require_old(plugin)
        return []
    if answer.status == 404 or answers.leads_behind(answer, folder):
        raise NoSuchNote(f"The vault has no folder {paths.shown('/'.join(folder))}.")
    if not answer.ok:
        raise answer.unexpected()
    found = answer.json()
    files = found.get("files") if isinstance(found, dict) else None
    if not isinstance(files, list) or not all(map(_is_name, files)):
        raise UpstreamBroken("The vault plugin's list of a folder is not one.")
    return sorted({unicodedata.normalize("NFC", name) for name in files if not paths.hidden(name)})


async def _require_old(plugin: Plugin) -> None:
    """Only plugins before 4 answer 404 for the root of a vault without files; anywhere else it is no empty vault.

    Raises UpstreamBroken, and what `greet` raises when something else than a plugin answers there.
    """
    major = (await plugin.greet()).partition(".")[0]
    if not (major.isdecimal() and int(major) < OLD):
        log.warning("the vault plugin answered 404 for the root of its vault; check NOTES_BASE_URL")
        raise UpstreamBroken("The vault plugin does not find the root of its vault (404).")


def _is_name(name: object) -> bool:
    """No part of a listing may lead anywhere but one level down."""
    bare = name.removesuffix("/") if isinstance(name, str) else ""
    return bool(bare) and "/" not in bare and "\0" not in bare


async def walk(plugin: Plugin, start: tuple[str, ...] = ()) -> list[str]:
    """The paths of all files below, in order; depth-first, with a bounded number of folders asked at a time."""
    found: list[str] = []
    todo: list[tuple[str, ...]] = [start]
    asking: set[asyncio.Task[list[str]]] = set()
    of: dict[asyncio.Task[list[str]], tuple[str, ...]] = {}
    try:
        while todo or asking:
            while todo and len(asking) < AT_ONCE:
                folder = todo.pop()
                task = asyncio.create_task(_level(plugin, folder))
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


async def _level(plugin: Plugin, folder: tuple[str, ...]) -> list[str]:
    try:
        return await listing(plugin, folder)
    except NoSuchNote:
        return []  # gone since


def _reachable(folder: tuple[str, ...]) -> bool:
    """Also what ends a listing that goes in circles."""
    return len("/".join(folder)) <= paths.MAX_PATH


async def refuse_taken(plugin: Plugin, segments: Sequence[str]) -> None:
    """Raises NameTaken when a new file would differ from a name there only in letter case, FolderTaken when it has a
    folder's name, NoSuchNote when its path leads through a file.
    """
    for depth, part in enumerate(segments):
        try:
            names = await listing(plugin, segments[:depth])
        except NoSuchNote:
            return
        own, other = (part, f"{part}/") if depth == len(segments) - 1 else (f"{part}/", part)
        if own in names:
            continue
        if other in names:
            raise _crossed(other, segments[: depth + 1])
        wanted = paths.folded(part)
        twin = next((name for name in names if paths.folded(name.removesuffix("/")) == wanted), None)
        if twin is not None:
            raise NameTaken(f"{own!r} and {twin!r} are the same name on some systems; use the one that is there.")
        return


def _crossed(name: str, segments: Sequence[str]) -> FolderTaken | NoSuchNote:
    """A file would be where a folder is, or below a file."""
    path = paths.shown("/".join(segments))
    return (
        FolderTaken(f"{path} is a folder.") if name.endswith("/") else NoSuchNote(f"{path} is a file, and no folder.")
    )
