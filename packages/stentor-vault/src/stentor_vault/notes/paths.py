"""Which paths a vault accepts: relative and below its root. New names must also be valid on every operating system;
existing ones need not, because people may have given them.

Pure text checks; `files.safe_folders` and `files.safe_files` open folders and files.
"""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Iterable

from stentor_vault.errors import InvalidRequest

MAX_SEGMENT_BYTES = 255
MAX_PATH_LENGTH = 1024
UNPORTABLE_CHARACTERS = re.compile(r'[\x00-\x1f\x7f:*?"<>|\\]')
_INVALID_CHARACTERS = re.compile(r"[\x00-\x1f\x7f\\]")
_BIDI_CONTROLS = re.compile(r"[\u202a-\u202e\u2066-\u2069]")
_DEVICES = re.compile(r"(con|prn|aux|nul|com[0-9¹²³]|lpt[0-9¹²³]|conin\$|conout\$)(\..*)?\Z", re.IGNORECASE)


class InvalidPath(InvalidRequest):
    """A path that a vault does not accept."""


def normalize_path(path: str) -> str:
    """Return the path in NFC. Raises InvalidPath with the reason."""
    return "/".join(split_path(path))


def split_path(path: str) -> list[str]:
    """Return the parts of a file's or folder's path in NFC, each checked. Raises InvalidPath."""
    if not path:
        raise InvalidPath("The path is empty.")
    # Twice: the source bounds the work of normalizing it, and its NFC may be longer.
    if len(path) > MAX_PATH_LENGTH or len(path := unicodedata.normalize("NFC", path)) > MAX_PATH_LENGTH:
        raise InvalidPath(f"The path has more than {MAX_PATH_LENGTH} characters.")
    if path.startswith("/"):
        raise InvalidPath(
            f"{display_path(path)} is absolute. Use a path relative to the vault's root: notes/a.md, not /notes/a.md."
        )
    parts = path.split("/")
    for part in parts:
        if problem := _find_problem(part):
            raise InvalidPath(f"{display_path(path)} {problem}.")
    return parts


def find_portability_problem(part: str) -> str | None:
    """Return why a new note cannot have a name: some operating system cannot have it, or people would read another."""
    if match := UNPORTABLE_CHARACTERS.search(part):
        return f"has the character {match[0]!r}, which is not valid in file names on every system"
    if match := _BIDI_CONTROLS.search(part):
        return f"has the character {match[0]!a}, which changes the direction of the text after it"
    if part[-1] in ". ":
        return "has a part that ends with a dot or a space, which is not valid on Windows"
    if _DEVICES.match(part):
        return f"has the part {part!r}, which is a device name on Windows"
    return None


def compose_path(path: str) -> str:
    """Return the path in NFC, unchecked; unchanged if it is longer than what `split_path` accepts."""
    # Composing takes quadratic time in the length of a run of accents.
    return path if path.isascii() or len(path) > MAX_PATH_LENGTH else unicodedata.normalize("NFC", path)


def listed_names(names: Iterable[str]) -> list[str]:
    """Return the name under which a vault lists each entry of a folder: in NFC, as `find_name` looks it up.

    A name that no path can address is listed with escapes, which no path accepts. Such names are those that are not
    UTF-8, and all but one of several names with the same NFC.
    """
    names = list(names)
    if all(map(str.isascii, names)):
        return names
    taken = {name for name in names if unicodedata.is_normalized("NFC", name)}
    return [_list_name(name, taken) for name in names]


def _list_name(name: str, taken: set[str]) -> str:
    if any("\ud800" <= c <= "\udfff" for c in name):
        return os.fsencode(name).decode(errors="backslashreplace")
    if unicodedata.is_normalized("NFC", name):
        return name
    composed = unicodedata.normalize("NFC", name)
    if composed in taken:
        return name.encode("ascii", "backslashreplace").decode()
    taken.add(composed)
    return composed


def is_valid_path(path: str) -> bool:
    """Return whether a vault accepts a path: not all files in its folder have such a path."""
    try:
        split_path(path)
    except InvalidPath:
        return False
    return True


def normalize_folder(path: str) -> str:
    """Return the path of a folder without its trailing slash; "" is the root. Raises InvalidPath."""
    path = path.removesuffix("/")
    return normalize_path(path) if path else ""


def is_hidden(name: str) -> bool:
    """Return whether a name is not part of the vault: `.obsidian`, `.trash`, `.git`, temporary files."""
    return name.startswith(".")


def fold_path(path: str) -> str:
    """Return a key that is equal for paths that some file system treats as the same name."""
    if path.isascii():
        return path.lower()
    return unicodedata.normalize("NFC", path).casefold()


def display_path(path: str) -> str:
    """Return a path for a message: quoted, truncated, without control characters."""
    text = ascii(path) if not path.isprintable() else repr(path)
    return text if len(text) <= 120 else text[:117] + "..."


def _find_problem(part: str) -> str | None:
    if not part:
        return "has an empty part: two slashes in a row, or a slash at the end"
    if part in (".", ".."):
        return "contains . or .. as a part, which is not allowed"
    if part.startswith("."):
        return "has a part that begins with a dot; hidden files are not part of the vault"
    if match := _INVALID_CHARACTERS.search(part):
        return f"has the character {match[0]!r}, which is not valid in the path of a note"
    try:
        size = len(part.encode())
    except UnicodeEncodeError:
        return "has an unpaired surrogate"
    return f"has a part of {size} bytes; the maximum is {MAX_SEGMENT_BYTES}" if size > MAX_SEGMENT_BYTES else None
