"""Write many notes of one folder at once, for a projection that can be regenerated.

Each file is replaced atomically, but nothing is synced to disk and the previous content is not kept.
Writes of notes that cannot be regenerated go through `batch_io`.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Iterable
from pathlib import Path

from stentor_vault import file_modes
from stentor_vault.notes import paths
from stentor_vault.notes.files import safe_files, safe_folders
from stentor_vault.notes.model import NoSuchNote, ReadOnlyNote

log = logging.getLogger(__name__)
_CREATE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
_BLOCKED_BY_FOLDER = {errno.EISDIR, errno.ENOTDIR, errno.ENOTEMPTY, errno.EEXIST}


def write_projection(
    root: Path, folder: str, notes: Iterable[tuple[str, bytes]], *, temp_name: str, skip_unchanged: bool
) -> int:
    """Write notes (name, bytes) into a folder, creating it if missing; return how many were written.

    `temp_name` is the temporary file, one for each writer. `skip_unchanged` does not write files that already have
    the bytes. Raises VaultUnavailable, NameTaken, and NoSuchNote if a path component is a file.
    """
    parts = paths.split_path(folder)
    with (
        safe_files.translate_os_errors(f"Cannot write {folder!r}"),
        safe_folders.open_root(root) as top,
        safe_folders.open_folder(top, parts, make=True) as descriptor,
    ):
        return sum(
            _write_unsynced(descriptor, name, content, temp_name, skip_unchanged=skip_unchanged)
            for name, content in notes
        )


def find_differing(root: Path, folder: str, notes: Iterable[tuple[str, bytes]]) -> list[tuple[str, bool]]:
    """Return the names whose files do not have these bytes, each with whether the file exists."""
    parts = paths.split_path(folder)
    expected = list(notes)
    with safe_files.translate_os_errors(f"Cannot read {folder!r}"), safe_folders.open_root(root) as top:
        try:
            with safe_folders.open_folder(top, parts) as descriptor:
                compared = [(name, content, _read_if_exists(descriptor, name)) for name, content in expected]
        except NoSuchNote:
            return [(name, False) for name, _ in expected]
    return [(name, current is not None) for name, content, current in compared if current != content]


def _write_unsynced(folder: int, name: str, content: bytes, temp_name: str, *, skip_unchanged: bool) -> bool:
    if skip_unchanged and _read_if_exists(folder, name) == content:
        return False
    try:
        safe_files.require_writable(folder, name, name)
    except FileNotFoundError:
        pass
    except ReadOnlyNote:
        log.warning("vault: note not written, its file is read-only name=%s", name)
        return False
    # Without O_EXCL: the temporary file that a crash left is overwritten by the next write of the same writer.
    descriptor = os.open(temp_name, _CREATE_FLAGS, 0o666, dir_fd=folder)
    try:
        # The program may run with a strict umask, but notes are for everybody who may read the folder.
        os.fchmod(descriptor, file_modes.inherited_mode(folder, 0o666))
        safe_files.write_all(descriptor, content)
    finally:
        os.close(descriptor)
    try:
        os.rename(temp_name, name, src_dir_fd=folder, dst_dir_fd=folder)
    except OSError as error:
        if error.errno not in _BLOCKED_BY_FOLDER:
            raise
        safe_files.unlink_if_exists(folder, temp_name)
        log.error("vault: note not written, a folder has its name name=%s", name)
        return False
    return True


def _read_if_exists(folder: int, name: str) -> bytes | None:
    try:
        return safe_files.read_content(folder, name)
    except NoSuchNote:
        return None
