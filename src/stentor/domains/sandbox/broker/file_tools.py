"""The tools `read_file`, `write_file` and `list_files` for the work folder and the operator's roots.

Every folder is opened relative to the descriptor of its parent and no link is followed, so a link that the agent
creates between the check and the use leads nowhere.
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
from typing import Annotated, Any, TypedDict

import msgspec
from msgspec import Meta

from stentor.core.errors import Conflict, Forbidden, InvalidRequest, NotFound
from stentor.core.jsontext import JsonObject
from stentor.domains.sandbox.broker.model import SandboxRun, ToolFailed, ToolRequest, TypedTool, encode_content
from stentor.domains.sandbox.model import Access
from stentor_vault import file_modes

MAX_FILE_BYTES = 1 << 20
MAX_ENTRIES = 10_000
# No links, which could lead out of the root; and no waiting for the other end of a pipe.
_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
FilePath = Annotated[
    str,
    Meta(min_length=1, max_length=4096, description="Relative to the work folder, or /ROOT/... for a mapped folder."),
]
Roots = Mapping[str, tuple[Path, bool]]
ChangeOwner = Callable[[int], None]
"""Changes the owner of a new file or folder, by its descriptor, to the sandbox user."""


class FolderEntry(TypedDict):
    """An entry of a listed folder; only files have a size."""

    name: str
    kind: str
    size: int | None


class ReadFileArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    path: FilePath
    offset: Annotated[int, Meta(ge=0, le=2**53, description="First byte.")] = 0
    limit: Annotated[int, Meta(ge=1, le=MAX_FILE_BYTES, description="Bytes at most.")] = MAX_FILE_BYTES


class WriteFileArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    path: FilePath
    content: Annotated[str, Meta(max_length=MAX_FILE_BYTES, description="The whole content.")]
    encoding: Annotated[str, Meta(pattern="^(utf-8|base64)$")] = "utf-8"


class ListFilesArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    path: FilePath = "."


class _FileTool(TypedTool):
    """Base of the file tools. `roots` are the operator's folders by name, with whether they are writable."""

    def __init__(self, roots: Roots, change_owner: ChangeOwner) -> None:
        self._roots = roots
        self._change_owner = change_owner

    def to_access(self, call: ToolRequest) -> Access:
        return Access(self.name, self.resolve_operation(call), path=self.parse_arguments(call).path)

    async def execute(self, run: SandboxRun, call: ToolRequest) -> JsonObject:
        arguments = self.parse_arguments(call)
        with _file_errors(arguments.path):
            return await asyncio.to_thread(self._execute, run, arguments)

    def _execute(self, run: SandboxRun, arguments: Any) -> JsonObject:
        """Execute the call in a thread. Raises StentorError, OSError, ValueError."""
        raise NotImplementedError

    def _locate(self, run: SandboxRun, path: str, *, writing: bool = False) -> tuple[Path, list[str]]:
        """Return the root of a path and the names below it. Raises NotFound, Forbidden."""
        if not path.startswith("/"):
            if run.work_folder is None:
                raise InvalidRequest("This agent has no work folder: the path must begin with a mapped one, /ROOT/...")
            return run.work_folder, [part for part in path.split("/") if part != "."]
        name, *parts = path[1:].split("/")
        if name not in self._roots:
            raise NotFound(f"There is no folder /{name}; the operator maps folders with SERVICE_CAGE_ROOTS.")
        root, writable = self._roots[name]
        if writing and not writable:
            raise Forbidden(f"The folder /{name} is read-only.")
        return root, parts


class ReadFile(_FileTool):
    name = "read_file"
    description = "Reads a file as text, or as base64 if it is not UTF-8."
    operations = ("read",)
    arguments_type = ReadFileArguments

    def _execute(self, run: SandboxRun, arguments: ReadFileArguments) -> JsonObject:
        root, parts = self._locate(run, arguments.path)
        with _open_folder(root, parts[:-1]) as folder, _open_file(folder, parts) as file:
            data = os.pread(file, arguments.limit, arguments.offset)
            size = os.fstat(file).st_size
        content, encoding = encode_content(data)
        return {
            "path": arguments.path,
            "size": size,
            "more": arguments.offset + len(data) < size,
            "content": content,
            "encoding": encoding,
        }


class WriteFile(_FileTool):
    name = "write_file"
    description = "Writes a whole file and replaces an existing one; missing folders are created."
    operations = ("write",)
    arguments_type = WriteFileArguments

    def _execute(self, run: SandboxRun, arguments: WriteFileArguments) -> JsonObject:
        root, parts = self._locate(run, arguments.path, writing=True)
        if not parts:
            raise InvalidRequest("The path names a folder.")
        data = _decode_content(arguments)
        with _open_folder(root, parts[:-1], change_owner=self._change_owner) as folder:
            self._replace(folder, parts[-1], data)
        return {"path": arguments.path, "size": len(data)}

    def _replace(self, folder: int, name: str, data: bytes) -> None:
        """Write under a temporary name and rename: a link or pipe with this name is replaced and never opened."""
        partial = f".{secrets.token_hex(8)}.partial"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        file = os.open(partial, flags, 0o644, dir_fd=folder)
        try:
            with os.fdopen(file, "wb") as out:
                self._change_owner(out.fileno())
                os.fchmod(out.fileno(), file_modes.inherited_mode(folder, 0o644))
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

    def _execute(self, run: SandboxRun, arguments: ListFilesArguments) -> JsonObject:
        root, parts = self._locate(run, arguments.path)
        files: list[FolderEntry] = []
        with _open_folder(root, parts) as folder, os.scandir(folder) as entries:
            for entry in entries:
                if len(files) == MAX_ENTRIES:
                    return {"path": arguments.path, "entries": files, "more": True}
                files.append(_describe_entry(entry))
        return {"path": arguments.path, "entries": sorted(files, key=lambda file: file["name"]), "more": False}


def _describe_entry(entry: os.DirEntry[str]) -> FolderEntry:
    kind = "link" if entry.is_symlink() else "folder" if entry.is_dir() else "file" if entry.is_file() else "other"
    name = entry.name.encode("utf-8", "replace").decode()  # a name need not be valid UTF-8, JSON must be
    size = None
    if kind == "file":
        with suppress(FileNotFoundError):  # deleted since the folder was read
            size = entry.stat(follow_symlinks=False).st_size
    return {"name": name, "kind": kind, "size": size}


def _decode_content(arguments: WriteFileArguments) -> bytes:
    try:
        if arguments.encoding == "utf-8":
            return arguments.content.encode()
        return base64.b64decode(arguments.content, validate=True)
    except ValueError:
        raise InvalidRequest(f"The content is not valid {arguments.encoding}.") from None


@contextmanager
def _open_folder(root: Path, parts: list[str], *, change_owner: ChangeOwner | None = None) -> Iterator[int]:
    """Open a folder below the root; only the root itself may be a link. With `change_owner` create missing folders."""
    folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in parts:
            child = _open_child(folder, part, change_owner)
            os.close(folder)
            folder = child
        yield folder
    finally:
        os.close(folder)


def _open_child(parent: int, name: str, change_owner: ChangeOwner | None) -> int:
    try:
        return os.open(name, _FOLDER_FLAGS, dir_fd=parent)
    except FileNotFoundError:
        if change_owner is None:
            raise
    with suppress(FileExistsError):
        os.mkdir(name, 0o755, dir_fd=parent)
    folder = os.open(name, _FOLDER_FLAGS, dir_fd=parent)
    change_owner(folder)
    os.fchmod(folder, file_modes.inherited_mode(parent, 0o755))
    return folder


@contextmanager
def _open_file(folder: int, parts: list[str]) -> Iterator[int]:
    """Open a file. Raises Forbidden unless it is regular and has no other hard link, which may be in another folder."""
    # O_NONBLOCK (in the flags): opening a pipe must not wait for a writer.
    file = os.open(parts[-1] if parts else ".", _FILE_FLAGS, dir_fd=folder)
    try:
        info = os.fstat(file)
        if not stat.S_ISREG(info.st_mode):
            raise Forbidden("That is not a regular file.")
        if info.st_nlink != 1:
            raise Forbidden("That file has several names (hard links), so it may belong elsewhere.")
        yield file
    finally:
        os.close(file)


@contextmanager
def _file_errors(path: str) -> Iterator[None]:
    """Translate errors of the file system to errors of the service that name the path."""
    try:
        yield
    except FileNotFoundError:
        raise NotFound(f"There is no {path!r}.") from None
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.ENXIO):
            raise Forbidden(f"{path!r} leads through a link or through something that is not a folder.") from None
        if error.errno in (errno.EISDIR, errno.ENOTEMPTY, errno.EEXIST):
            raise Conflict(f"{path!r} is a folder.") from None
        raise ToolFailed(f"{path!r}: {error.strerror}.") from None
    except ValueError:
        raise InvalidRequest(f"{path!r} is not a path.") from None
