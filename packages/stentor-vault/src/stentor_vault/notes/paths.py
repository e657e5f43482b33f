"""Which paths a vault accepts: relative, beneath its root, and such that every system can hold them. Pure.

Source: facts of the vault sync ("Paths").
"""

from __future__ import annotations

import re
import unicodedata

from stentor_vault.errors import InvalidRequest

MAX_SEGMENT_BYTES = 255
MAX_PATH_LENGTH = 1024
_REFUSED = re.compile(r'[\x00-\x1f\x7f:*?"<>|\\]')
_DEVICES = re.compile(r"(con|prn|aux|nul|com[0-9¹²³]|lpt[0-9¹²³]|conin\$|conout\$)(\..*)?\Z", re.IGNORECASE)


class InvalidPath(InvalidRequest):
    """The path is not one that a vault may hold."""


def normalize_path(path: str) -> str:
    """The path in NFC. Raises InvalidPath, which says what is wrong with it."""
    return "/".join(split_path(path))


def split_path(path: str) -> list[str]:
    """The parts of a path of a file or folder, each checked. Raises InvalidPath."""
    if not path:
        raise InvalidPath("The path is empty.")
    if len(path) > MAX_PATH_LENGTH:
        raise InvalidPath(f"The path has more than {MAX_PATH_LENGTH} characters.")
    if path.startswith("/"):
        raise InvalidPath(
            f"{display_path(path)} is absolute; a path begins with the name of a note or folder of the vault."
        )
    return [_segment(part, path) for part in unicodedata.normalize("NFC", path).split("/")]


def normalize_folder(path: str) -> str:
    """The path of a folder without its last slash; the root is the empty text. Raises InvalidPath."""
    path = path.removesuffix("/")
    return normalize_path(path) if path else ""


def _segment(part: str, path: str) -> str:
    problem = _problem(part)
    if problem:
        raise InvalidPath(f"{display_path(path)} {problem}.")
    return part


def _problem(part: str) -> str | None:
    if not part:
        return "has an empty part between two slashes, or a slash at its end"
    if part in (".", ".."):
        return "must not climb: . and .. are no names"
    if part.startswith("."):
        return "has a part that begins with a dot; hidden files are not the vault's"
    if found := _REFUSED.search(part):
        return f"has the character {found[0]!r}, which not every system can hold in a name"
    if part[-1] in ". ":
        return "has a part that ends with a dot or a space, which Windows cannot hold"
    if _DEVICES.match(part):
        return f"has the part {part!r}, which is the name of a device on Windows"
    try:
        size = len(part.encode())
    except UnicodeEncodeError:
        return "has half a surrogate pair in it"
    return f"has a part of {size} bytes; {MAX_SEGMENT_BYTES} are the most" if size > MAX_SEGMENT_BYTES else None


def is_hidden(name: str) -> bool:
    """Whether a name in the folder is not part of the vault: `.obsidian`, `.trash`, `.git`, temporary files."""
    return name.startswith(".")


def fold_path(path: str) -> str:
    """Equal for paths that some file system takes for the same name."""
    if path.isascii():
        return path.lower()
    return unicodedata.normalize("NFC", path).casefold()


def display_path(path: str) -> str:
    """A path for a message: quoted, cut, without control characters."""
    text = ascii(path) if not path.isprintable() else repr(path)
    return text if len(text) <= 120 else text[:117] + "..."
