"""Single files in an open folder of a vault: read, written to a temporary file and renamed into place.

A symbolic link in the vault is never followed, even if it appears between the check and the use. Where the kernel
can exchange two names at once (renameat2, Linux since 3.15), no bytes are overwritten unseen: the previous file is
at the temporary name afterwards, and can be compared and put back. Folders are opened in
`safe_folders`.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import re
import secrets
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from stentor_vault import file_modes
from stentor_vault.notes import model, paths
from stentor_vault.notes.files import safe_folders
from stentor_vault.notes.model import (
    ANY_STATE,
    NoSuchNote,
    Note,
    NoteChanged,
    NoteTooLarge,
    ReadOnlyNote,
    Stat,
    VaultUnavailable,
    matches_state,
)

TEMP_PREFIX = ".stentor-"
"""Prefix of the names of temporary files, which no vault lists."""
_TEMP_BYTES = 12
_TEMP_NAME = re.compile(rf"{re.escape(TEMP_PREFIX)}[0-9a-f]{{{2 * _TEMP_BYTES}}}")

MAX_SUFFIX_CHARS = 20
"""What is longer after the last dot of a name is not a suffix that a numbered name must keep."""

# O_NONBLOCK: opening a FIFO must not wait for its writer.
_READ_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CREATE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_UNAVAILABLE_ERRNOS = {
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EROFS,
    errno.EIO,
    errno.EMFILE,
    errno.ENFILE,
    errno.EACCES,
    errno.EPERM,
    errno.EXDEV,
    errno.ELOOP,
    errno.ENOTDIR,
}
# ELOOP: a link, as O_NOFOLLOW reports it. ENXIO: a socket, or a FIFO without a reader.
_NO_FILE_ERRNOS = {errno.ENOENT, errno.ELOOP, errno.ENXIO, errno.ENOTDIR}
_RENAME_NOREPLACE, _RENAME_EXCHANGE = 1, 2
_HAS_EFFECTIVE_IDS = os.access in os.supports_effective_ids


@contextmanager
def translate_os_errors(what: str) -> Iterator[None]:
    """Turn file system failures (disk full, no permission) into VaultUnavailable with `what` and the reason."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        if error.errno in _UNAVAILABLE_ERRNOS:
            raise VaultUnavailable(f"{what}: {error.strerror}.") from error
        raise


def exchange_names(folder: int, first: str, second: str) -> bool:
    """Exchange two names in an open folder; False if the system cannot. Raises OSError, FileNotFoundError."""
    return _rename(folder, first, folder, second, _RENAME_EXCHANGE)


def move_noreplace(source_folder: int, source: str, target_folder: int, target: str) -> None:
    """Rename to a name that must be free. Raises FileExistsError, OSError.

    A file system that has neither renameat2 nor hard links cannot ensure it; there it is a plain rename.
    """
    if _rename(source_folder, source, target_folder, target, _RENAME_NOREPLACE):
        return
    try:
        # A hard link fails if the target exists, so link and unlink are a rename that overwrites nothing.
        os.link(source, target, src_dir_fd=source_folder, dst_dir_fd=target_folder, follow_symlinks=False)
    except FileExistsError:
        raise
    except OSError:
        os.rename(source, target, src_dir_fd=source_folder, dst_dir_fd=target_folder)
    else:
        os.unlink(source, dir_fd=source_folder)


def require_file_name(folder: int, name: str, path: str) -> str:
    """Return the name of a regular file as stored in its folder. Raises NoSuchNote."""
    stored_name = safe_folders.find_name(folder, name)
    if stored_name is None or not stat.S_ISREG(stat_entry(folder, stored_name, path).st_mode):
        raise _no_file(path)
    return stored_name


def read_note(folder: int, name: str, path: str, max_bytes: int | None = None) -> Note:
    content, info = _read_file(folder, name, max_bytes)
    return Note(to_stat(info, path), content)


def read_content(folder: int, name: str, max_bytes: int | None = None) -> bytes:
    """Return the bytes of a regular file. Raises NoSuchNote, NoteTooLarge."""
    return _read_file(folder, name, max_bytes)[0]


def _read_file(folder: int, name: str, max_bytes: int | None) -> tuple[bytes, os.stat_result]:
    try:
        descriptor = os.open(name, _READ_FLAGS, dir_fd=folder)
    except OSError as error:
        if error.errno in _NO_FILE_ERRNOS:
            raise NoSuchNote(f"{name!r} is not a file of the vault ({error.strerror}).") from error
        raise
    # Checks the open file and not its name, which may refer to another file by now.
    info = os.fstat(descriptor)
    if not stat.S_ISREG(info.st_mode):
        os.close(descriptor)
        raise NoSuchNote(f"{name!r} is not a file of the vault.")
    with os.fdopen(descriptor, "rb") as file:
        if max_bytes is not None and info.st_size > max_bytes:
            raise NoteTooLarge(f"{name!r} has {info.st_size} bytes; the maximum is {max_bytes}.")
        return file.read(), info


def read_before_change(folder: int, name: str, expected: str, max_bytes: int) -> bytes | None:
    """Return the bytes of a file that is about to change, None if it has more than `max_bytes`.

    Raises NoteTooLarge if its state has to be compared, NoSuchNote.
    """
    try:
        return read_content(folder, name, max_bytes)
    except NoteTooLarge:
        if expected != ANY_STATE:
            raise
        return None


def stat_file(folder: int, name: str, path: str) -> Stat:
    """Raises NoSuchNote if the file is gone."""
    return to_stat(stat_entry(folder, name, path), path)


def stat_entry(folder: int, name: str, path: str) -> os.stat_result:
    """Raises NoSuchNote if the entry is gone."""
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        raise _no_file(path) from None


def _no_file(path: str) -> NoSuchNote:
    return NoSuchNote(f"The vault has no file {paths.display_path(path)}.")


def to_stat(info: os.stat_result, path: str) -> Stat:
    """Return the `Stat` for the vault path; systems without a birth time report the last inode change instead."""
    birth_time = getattr(info, "st_birthtime", None)
    created_at = info.st_ctime_ns // 1000 if birth_time is None else int(birth_time * 1_000_000)
    return Stat(path, info.st_size, info.st_mtime_ns // 1000, created_at)


def create_temp_file(folder: int) -> tuple[str, int]:
    """Create an empty file under a name that no vault lists; return the name and a descriptor open for writing."""
    name = f"{TEMP_PREFIX}{secrets.token_hex(_TEMP_BYTES)}"
    descriptor = os.open(name, _CREATE_FLAGS, 0o666, dir_fd=folder)
    os.fchmod(descriptor, file_modes.inherited_mode(folder, 0o666))
    return name, descriptor


def is_temp_name(name: str) -> bool:
    """Return whether `create_temp_file` may have made the name."""
    return _TEMP_NAME.fullmatch(name) is not None


def copy_owner_and_mode(folder: int, name: str, descriptor: int) -> None:
    """Give an open file the owner, as far as this process may, and the mode of the file that it will replace."""
    with contextlib.suppress(FileNotFoundError):
        info = os.stat(name, dir_fd=folder, follow_symlinks=False)
        own = os.fstat(descriptor)
        if (own.st_uid, own.st_gid) != (info.st_uid, info.st_gid):
            # One by one: a user who may not change the owner may still set one of their own groups. Not only
            # PermissionError: a container does not know every user, and some file systems have none.
            for uid, gid in ((-1, info.st_gid), (info.st_uid, -1)):
                with contextlib.suppress(OSError):
                    os.fchown(descriptor, uid, gid)
        os.fchmod(descriptor, stat.S_IMODE(info.st_mode))


def require_writable(folder: int, name: str, path: str) -> None:
    """Raise ReadOnlyNote for a file that an editor could not save: a rename needs only the permission of the folder.

    A mode without any write permission counts for root too, who could write the file. Raises FileNotFoundError.
    """
    mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
    if not mode & 0o222 or not os.access(name, os.W_OK, dir_fd=folder, effective_ids=_HAS_EFFECTIVE_IDS):
        raise ReadOnlyNote(path)


def write_all(descriptor: int, data: bytes) -> None:
    remaining = memoryview(data)
    while remaining:
        remaining = remaining[os.write(descriptor, remaining) :]


def replace_if_expected(folder: int, temp_name: str, name: str, path: str, expected: str) -> bytes | None:
    """Rename the temporary file into place and return the previous content.

    None if there was no file, or one of more than MAX_FILE_BYTES that any state of was expected. Raises NoteChanged and
    leaves the file alone if it is not in the expected state, NoteTooLarge, ReadOnlyNote if it is read-only.
    """
    while True:
        exists = _has_entry(folder, name)
        current = read_before_change(folder, name, expected, model.MAX_FILE_BYTES) if exists else None
        if not matches_state(expected, current):
            raise NoteChanged(path, "" if current is None else model.content_hash(current))
        try:
            if not exists:
                move_noreplace(folder, temp_name, folder, name)
                return None
            require_writable(folder, name, path)
            if not exchange_names(folder, temp_name, name):
                os.replace(temp_name, name, src_dir_fd=folder, dst_dir_fd=folder)
                return current
        except (FileExistsError, FileNotFoundError):
            continue  # another program created or deleted the file since the read: compare again
        # Another program may have written between the read and the exchange; its bytes are in the temporary file now.
        previous = read_before_change(folder, temp_name, ANY_STATE, model.MAX_FILE_BYTES)
        if previous == current or matches_state(expected, previous):
            return previous
        exchange_names(folder, temp_name, name)  # undo; the next round reports the conflict


def unlink_if_exists(folder: int, name: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder)


def move_to_unused_name(source_folder: int, name: str, target_folder: int) -> str:
    """Move a file to a free name in another folder, `a.md`, `a 2.md` or `a 3.md`, and return the name."""
    taken = set(os.listdir(target_folder))
    number, target = 1, name
    while True:
        if target not in taken:
            # Another delete may have taken it in the meantime, and some systems do not tell upper from lower case.
            with contextlib.suppress(FileExistsError):
                move_noreplace(source_folder, name, target_folder, target)
                return target
        number += 1
        target = _numbered_name(name, number)


def _numbered_name(name: str, number: int) -> str:
    """Return the name with a number before its suffix, shortened to what a name may have."""
    stem, dot, suffix = name.rpartition(".")
    if not stem or len(suffix) > MAX_SUFFIX_CHARS:
        stem, dot, suffix = name, "", ""
    end = f" {number}{dot}{suffix}"
    # Cut between characters: an incomplete one at the end is dropped.
    return stem.encode()[: paths.MAX_SEGMENT_BYTES - len(end.encode())].decode(errors="ignore") + end


def _has_entry(folder: int, name: str) -> bool:
    # Not by opening it: a link or a device at this name is an error of the read, not a missing file.
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _rename(source_folder: int, source: str, target_folder: int, target: str, flags: int) -> bool:
    if _renameat2 is None:
        return False
    if _renameat2(source_folder, os.fsencode(source), target_folder, os.fsencode(target), flags) == 0:
        return True
    number = ctypes.get_errno()
    if number in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):
        return False  # this file system does not support the flag
    raise OSError(number, os.strerror(number), source, None, target)


def _load_renameat2() -> ctypes._NamedFuncPointer | None:
    if sys.platform != "linux":
        return None
    try:
        function = ctypes.CDLL(None, use_errno=True).renameat2
    except AttributeError:
        return None
    function.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint]
    return function


_renameat2 = _load_renameat2()
