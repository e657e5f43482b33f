"""Files of the work folder and of the operator's roots. Every folder is opened beneath the one before, and no link is
followed, so a link that the agent makes between the judgement and the use leads nowhere.
"""

from __future__ import annotations

import asyncio
import base64
import errno
import os
import secrets
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from stentor.core import filesystem
from stentor.core.errors import Conflict, Forbidden, InvalidRequest, NotFound
from stentor.domains.sandbox.broker.model import SandboxRun, ToolFailed, ToolRequest, TypedTool
from stentor.domains.sandbox.model import Access

MAX_FILE_BYTES = 1 << 20
MAX_ENTRIES = 10_000
_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
FilePath = Annotated[
    str,
    Meta(min_length=1, max_length=4096, description="Relative to the work folder, or /ROOT/... for a mapped folder."),
]
Roots = Mapping[str, tuple[Path, bool]]
ChangeOwner = Callable[[int], None]
"""Gives a new file or folder, by its descriptor, to the caged user."""


class ReadFileArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    path: FilePath
    offset: Annotated[int, Meta(ge=0, description="First byte.")] = 0
    limit: Annotated[int, Meta(ge=1, le=MAX_FILE_BYTES, description="Bytes at most.")] = MAX_FILE_BYTES


class WriteFileArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    path: FilePath
    content: Annotated[str, Meta(max_length=MAX_FILE_BYTES, description="The whole content.")]
    encoding: Annotated[str, Meta(pattern="^(utf-8|base64)$")] = "utf-8"


class ListFilesArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    path: FilePath = "."


class _FileTool(TypedTool):
    def __init__(self, roots: Roots, own: ChangeOwner) -> None:
        self._roots = roots
        self._own = own

    def to_access(self, call: ToolRequest) -> Access:
        return Access(self.name, self.resolve_operation(call), path=self.parse_arguments(call).path)

    async def execute(self, run: SandboxRun, call: ToolRequest) -> Any:
        asked = self.parse_arguments(call)
        with _file_errors(asked.path):
            return await asyncio.to_thread(self._do, run, asked)

    def _do(self, run: SandboxRun, asked: Any) -> Any:
        raise NotImplementedError

    def _place(self, run: SandboxRun, path: str, *, writing: bool = False) -> tuple[Path, list[str]]:
        """The root and the names beneath it. Raises NotFound, Forbidden."""
        if not path.startswith("/"):
            return run.work_folder, [part for part in path.split("/") if part != "."]
        name, *parts = path[1:].split("/")
        if name not in self._roots:
            raise NotFound(f"There is no folder /{name}; the operator maps them with SERVICE_CAGE_ROOTS.")
        root, writable = self._roots[name]
        if writing and not writable:
            raise Forbidden(f"The folder /{name} is read-only.")
        return root, parts


class ReadFile(_FileTool):
    name = "read_file"
    description = "Reads a file: text, or base64 where it is none."
    operations = ("read",)
    arguments_type = ReadFileArguments

    def _do(self, run: SandboxRun, asked: ReadFileArguments) -> dict[str, Any]:
        root, parts = self._place(run, asked.path)
        with _folder(root, parts[:-1]) as folder, _file(folder, parts) as file:
            data = os.pread(file, asked.limit, asked.offset)
            size = os.fstat(file).st_size
        shown = {"path": asked.path, "size": size, "more": asked.offset + len(data) < size}
        try:
            return shown | {"content": data.decode(), "encoding": "utf-8"}
        except UnicodeDecodeError:
            return shown | {"content": base64.b64encode(data).decode(), "encoding": "base64"}


class WriteFile(_FileTool):
    name = "write_file"
    description = "Writes a whole file, in the place of one that is there; folders are made as needed."
    operations = ("write",)
    arguments_type = WriteFileArguments

    def _do(self, run: SandboxRun, asked: WriteFileArguments) -> dict[str, Any]:
        root, parts = self._place(run, asked.path, writing=True)
        if not parts:
            raise InvalidRequest("The path names a folder.")
        data = _bytes(asked)
        with _folder(root, parts[:-1], make=self._own) as folder:
            self._put(folder, parts[-1], data)
        return {"path": asked.path, "size": len(data)}

    def _put(self, folder: int, name: str, data: bytes) -> None:
        """Under another name first: what has the name, a link or a pipe, is replaced and never opened."""
        partial = f".{secrets.token_hex(8)}.partial"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        file = os.open(partial, flags, 0o644, dir_fd=folder)
        try:
            with os.fdopen(file, "wb") as out:
                self._own(out.fileno())
                os.fchmod(out.fileno(), filesystem.inherited_mode(folder, 0o644))
                out.write(data)
            os.rename(partial, name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            with suppress(OSError):
                os.unlink(partial, dir_fd=folder)
            raise


class ListFiles(_FileTool):
    name = "list_files"
    description = "Lists a folder."
    operations = ("list",)
    arguments_type = ListFilesArguments

    def _do(self, run: SandboxRun, asked: ListFilesArguments) -> dict[str, Any]:
        root, parts = self._place(run, asked.path)
        found: list[dict[str, Any]] = []
        with _folder(root, parts) as folder, os.scandir(folder) as entries:
            for entry in entries:
                if len(found) == MAX_ENTRIES:
                    return {"path": asked.path, "entries": found, "more": True}
                found.append(_entry(entry))
        return {"path": asked.path, "entries": sorted(found, key=lambda one: str(one["name"])), "more": False}


def _entry(entry: os.DirEntry[str]) -> dict[str, Any]:
    kind = "link" if entry.is_symlink() else "folder" if entry.is_dir() else "file" if entry.is_file() else "other"
    name = entry.name.encode("utf-8", "replace").decode()
    return {"name": name, "kind": kind, "size": entry.stat(follow_symlinks=False).st_size if kind == "file" else None}


def _bytes(asked: WriteFileArguments) -> bytes:
    try:
        return asked.content.encode() if asked.encoding == "utf-8" else base64.b64decode(asked.content, validate=True)
    except ValueError:
        raise InvalidRequest(f"The content is not valid {asked.encoding}.") from None


@contextmanager
def _folder(root: Path, parts: list[str], *, make: ChangeOwner | None = None) -> Iterator[int]:
    """The folder beneath the root, which alone may lie behind a link; `make` makes what is missing."""
    opened = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in parts:
            deeper = _step(opened, part, make)
            os.close(opened)
            opened = deeper
        yield opened
    finally:
        os.close(opened)


def _step(above: int, name: str, make: ChangeOwner | None) -> int:
    try:
        return os.open(name, _FOLDER_FLAGS, dir_fd=above)
    except FileNotFoundError:
        if make is None:
            raise
    with suppress(FileExistsError):
        os.mkdir(name, 0o755, dir_fd=above)
    opened = os.open(name, _FOLDER_FLAGS, dir_fd=above)
    make(opened)
    os.fchmod(opened, filesystem.inherited_mode(above, 0o755))
    return opened


@contextmanager
def _file(folder: int, parts: list[str]) -> Iterator[int]:
    """Raises Forbidden for anything but a plain file with one name: a hard link may be another folder's file."""
    opened = os.open(parts[-1] if parts else ".", _FILE_FLAGS, dir_fd=folder)
    try:
        info = os.fstat(opened)
        if not stat.S_ISREG(info.st_mode):
            raise Forbidden("That is not a plain file.")
        if info.st_nlink != 1:
            raise Forbidden("That file has several names (hard links), so it may belong elsewhere.")
        yield opened
    finally:
        os.close(opened)


@contextmanager
def _file_errors(path: str) -> Iterator[None]:
    """Failures of the file system, each with the path and what to make of it."""
    try:
        yield
    except FileNotFoundError:
        raise NotFound(f"There is no {path!r}.") from None
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.ENXIO):
            raise Forbidden(f"{path!r} leads over a link, or over what is no folder.") from None
        if error.errno in (errno.EISDIR, errno.ENOTEMPTY, errno.EEXIST):
            raise Conflict(f"{path!r} is a folder.") from None
        raise ToolFailed(f"{path!r}: {error.strerror}.") from None
    except ValueError:
        raise InvalidRequest(f"{path!r} is not a path.") from None
