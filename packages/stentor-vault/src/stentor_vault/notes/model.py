"""The vault port: files with bytes, conditional changes that never overwrite someone else's work, and their errors.

Implementations: `folder_vault` (a folder) and Stentor's client of Obsidian's vault plugin. No message of an error
contains the plugin's response or the API key.
"""

from __future__ import annotations

import hashlib
from typing import Protocol

import msgspec

from stentor_vault.errors import Conflict, InvalidRequest, NotFound, ServiceUnavailable, Timeout
from stentor_vault.notes import paths

ANY_STATE = "*"
"""As the expected state: any content, or no file."""
NO_FILE = ""
"""As the expected state: no file."""
MAX_NOTE_BYTES = 20 * 1024 * 1024
MAX_FILE_BYTES = 100 * 1024 * 1024
"""The largest file that is read, such as an attachment: a whole file is in memory while it is sent."""


class VaultUnavailable(ServiceUnavailable):
    """The vault cannot be used: its folder is missing, its disk full, its plugin down."""


class UnreadablePath(VaultUnavailable):
    """The process lacks the permission to read this file or folder; the rest of the vault is not affected."""


class VaultUnreachable(VaultUnavailable):
    """The vault plugin is unreachable, or the connection broke."""

    code, status = "VAULT_UNREACHABLE", 502


class VaultKeyRejected(VaultUnavailable):
    """The vault plugin rejects the API key; the operator has to correct the setting."""

    code, status = "VAULT_KEY_REFUSED", 502


class VaultProtocolError(VaultUnavailable):
    """An unexpected response of the vault plugin: a failure of its own, a redirect, invalid JSON."""

    code, status = "VAULT_BROKEN", 502


class VaultTimeout(Timeout, VaultUnavailable):
    """The vault plugin took too long. Whether a change was made is not known."""


class NoSuchNote(NotFound):
    """The vault has no file at this path."""


class NoteChanged(Conflict):
    """The file is not in the expected state. `current` is its content hash, empty for no file."""

    code = "NOTE_CHANGED"

    def __init__(self, path: str, current: str) -> None:
        super().__init__(
            f"{path!r} was modified concurrently. Read it again and repeat the change.",
            {"path": path, "content_hash": current},
        )
        self.current = current


class NameTaken(Conflict):
    """The folder has a name that differs only in case or Unicode form: the same name on some systems."""


class ReadOnlyNote(Conflict):
    """The file may not be written: it has no write permission, or none for this process."""

    def __init__(self, path: str) -> None:
        super().__init__(f"{path!r} is read-only: the permissions of its file do not let the service write it.")


class NoteTooLarge(InvalidRequest):
    """The file is larger than a note may be, or than is read."""


class Stat(msgspec.Struct, frozen=True):
    """Metadata of a file in the vault; times in microseconds, the size in bytes."""

    path: str
    size: int
    modified_at: int
    created_at: int


class Note(msgspec.Struct, frozen=True):
    """A file with its bytes, exactly as they are on disk."""

    stat: Stat
    content: bytes

    @property
    def path(self) -> str:
        return self.stat.path

    @property
    def hash(self) -> str:
        return content_hash(self.content)


class FileChange(msgspec.Struct, frozen=True):
    """The result of a write or delete: the new file (None if deleted) and the previous content.

    That is None if there was no file, or one that is too large to be read; only an unconditional change replaces it.
    """

    stat: Stat | None
    previous: bytes | None


class Vault(Protocol):
    """A tree of notes. Paths are relative and in NFC; every method may raise InvalidPath and VaultUnavailable.

    `expected` is the precondition of a change: a content hash, ANY_STATE or NO_FILE. If the file is in another
    state, the change raises NoteChanged and does nothing.
    """

    async def read(self, path: str) -> Note:
        """Return the note. Raises NoSuchNote, UnreadablePath, NoteTooLarge."""
        ...

    async def write(self, path: str, content: bytes, expected: str = ANY_STATE) -> FileChange:
        """Write the whole file atomically and create missing folders. Raises NoteChanged, NameTaken, NoteTooLarge.

        A file without write permission is not replaced: ReadOnlyNote.
        """
        ...

    async def delete(self, path: str, expected: str = ANY_STATE) -> FileChange:
        """Move the file to the vault's trash. Raises NoSuchNote, NoteChanged, ReadOnlyNote."""
        ...

    async def list_folder(self, folder: str = "") -> list[str]:
        """List one level, sorted by name; folders end in a slash. Raises NoSuchNote if the folder does not exist."""
        ...

    async def walk(self, folder: str = "") -> list[Stat]:
        """List every file below the folder, sorted by path; none if the folder does not exist.

        Folders below it that may not be read are left out. Raises UnreadablePath if the folder itself may not be read.
        """
        ...

    async def check(self) -> None:
        """Raise VaultUnavailable if the vault cannot be used now."""
        ...


async def require_portable_names(vault: Vault, path: str) -> None:
    """Raise InvalidPath if a new note at this path would add a name that some operating system cannot have. Names that
    the vault already has, such as those of folders, are its users' choice.
    """
    parts = paths.split_path(path)
    for number, part in enumerate(parts):
        problem = paths.find_portability_problem(part)
        if problem is not None and not await _has_name(vault, "/".join(parts[:number]), part):
            raise paths.InvalidPath(f"{paths.display_path(path)} {problem}.")


async def _has_name(vault: Vault, folder: str, name: str) -> bool:
    try:
        listed = await vault.list_folder(folder)
    except NoSuchNote:
        return False
    return name in {paths.compose_path(other.removesuffix("/")) for other in listed}


def content_hash(content: bytes) -> str:
    """Return the SHA-256 in hex."""
    return hashlib.sha256(content).hexdigest()


def matches_state(expected: str, current: bytes | None) -> bool:
    """Return whether the current content (None for no file) is the expected state."""
    if expected == ANY_STATE:
        return True
    return expected == (NO_FILE if current is None else content_hash(current))
