"""The folder of the plugin stub: files, listings, the simple search."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from tests.vaultplugin.reply import PluginError


class Files:
    def __init__(self, root: Path) -> None:
        self.root = root

    def resolve_path(self, segments: list[str]) -> Path:
        """Raise error 40021 for a path out of the root, and 40400 for a name that no file can have."""
        if any(part in ("", ".", "..") for part in segments):
            raise PluginError(40021)
        if any("/" in part or "\0" in part for part in segments):
            raise PluginError(40400)
        return self.root.joinpath(*segments)

    def is_below_note(self, segments: list[str]) -> bool:
        """Whether a parent of the path is a file."""
        return any(self.resolve_path(segments[:end]).is_file() for end in range(1, len(segments)))

    def content(self, segments: list[str]) -> bytes | None:
        path = self.resolve_path(segments)
        return path.read_bytes() if path.is_file() else None

    def write(self, segments: list[str], content: bytes) -> None:
        path = self.resolve_path(segments)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        except OSError:
            raise PluginError(50000) from None

    def delete(self, segments: list[str]) -> None:
        self.resolve_path(segments).unlink()

    def visible_files(self) -> dict[str, Path]:
        """Return all files that are not hidden, by path."""
        files = {str(path.relative_to(self.root)): path for path in self.root.rglob("*") if path.is_file()}
        return {name: path for name, path in sorted(files.items()) if not any(p[0] == "." for p in name.split("/"))}

    def names(self, prefix: str) -> list[str]:
        """Return the names of one level; empty folders are left out."""
        names_below = [name[len(prefix) :] for name in self.visible_files() if name.startswith(prefix)]
        return sorted({name.partition("/")[0] + ("/" if "/" in name else "") for name in names_below})

    def search(self, query: str, context: int | None, sign: int) -> list[dict[str, Any]]:
        rows = [
            _row(name, path.read_text("utf-8", "replace"), query, context)
            for name, path in self.visible_files().items()
        ]
        matching_rows = sorted((row for row in rows if row["matches"]), key=lambda row: -row["score"])
        return [row | {"score": sign * row["score"]} for row in matching_rows]


def _row(name: str, text: str, query: str, context: int | None) -> dict[str, Any]:
    """Return a search result. Without a context length an old plugin computes NaN, and its context is empty."""
    matches, query_lower = [], query.lower()
    for source, searched_text in (("filename", name), ("content", text)):
        start = searched_text.lower().find(query_lower)
        while start >= 0:
            end = start + len(query_lower)
            excerpt = "" if context is None else searched_text[max(0, start - context) : end + context]
            matches.append({"match": {"start": start, "end": end, "source": source}, "context": excerpt})
            start = searched_text.lower().find(query_lower, end)
    return {"filename": name, "score": float(len(matches)), "matches": matches}


def version_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:6]
