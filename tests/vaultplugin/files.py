"""The plugin's folder: files, listings, the simple search."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from tests.vaultplugin.reply import Refused


class Files:
    def __init__(self, root: Path) -> None:
        self.root = root

    def at(self, segments: list[str]) -> Path:
        """Raises 400/40021 for what leaves the root, 404 for a name that no file can have."""
        if any(part in ("", ".", "..") for part in segments):
            raise Refused(40021)
        if any("/" in part or "\0" in part for part in segments):
            raise Refused(40400)
        return self.root.joinpath(*segments)

    def behind_note(self, segments: list[str]) -> bool:
        """Whether the path goes on behind a file."""
        return any(self.at(segments[:end]).is_file() for end in range(1, len(segments)))

    def content(self, segments: list[str]) -> bytes | None:
        path = self.at(segments)
        return path.read_bytes() if path.is_file() else None

    def write(self, segments: list[str], content: bytes) -> None:
        path = self.at(segments)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        except OSError:
            raise Refused(50000) from None

    def delete(self, segments: list[str]) -> None:
        self.at(segments).unlink()

    def every(self) -> dict[str, Path]:
        """All files that are not hidden, by path."""
        found = {str(path.relative_to(self.root)): path for path in self.root.rglob("*") if path.is_file()}
        return {name: path for name, path in sorted(found.items()) if not any(p[0] == "." for p in name.split("/"))}

    def names(self, prefix: str) -> list[str]:
        """One level; empty folders do not show."""
        below = [name[len(prefix) :] for name in self.every() if name.startswith(prefix)]
        return sorted({name.partition("/")[0] + ("/" if "/" in name else "") for name in below})

    def search(self, query: str, context: int | None, sign: int) -> list[dict[str, Any]]:
        rows = [_row(name, path.read_text("utf-8", "replace"), query, context) for name, path in self.every().items()]
        found = sorted((row for row in rows if row["matches"]), key=lambda row: -row["score"])
        return [row | {"score": sign * row["score"]} for row in found]


def _row(name: str, text: str, query: str, context: int | None) -> dict[str, Any]:
    """Without a context length an old plugin has NaN, and answers no context."""
    matches, wanted = [], query.lower()
    for source, where in (("filename", name), ("content", text)):
        start = where.lower().find(wanted)
        while start >= 0:
            end = start + len(wanted)
            around = "" if context is None else where[max(0, start - context) : end + context]
            matches.append({"match": {"start": start, "end": end, "source": source}, "context": around})
            start = where.lower().find(wanted, end)
    return {"filename": name, "score": float(len(matches)), "matches": matches}


def version_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:6]
