"""The nine tools: what each needs, does with the plugin, and answers. Source: second contract, "Note-store server"."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from stentor.core.errors import InvalidRequest, NotFound
from stentor.domains.notes.plugin import Plugin

Body = dict[str, Any]
Tool = Callable[[Body], Awaitable[Body]]
MAX_RESULTS = 100


class Tools:
    """Changes of one note that read it first wait for each other."""

    def __init__(self, plugin: Plugin) -> None:
        self._plugin = plugin
        self._locks = [asyncio.Lock() for _ in range(256)]
        self.by_name: dict[str, Tool] = {
            "getContext": self.get_context,
            "appendContext": self.append_context,
            "updateNote": self.update_note,
            "searchNotes": self.search_notes,
            "listNotes": self.list_notes,
            "deleteNote": self.delete_note,
            "manageFrontmatter": self.manage_frontmatter,
            "manageTags": self.manage_tags,
            "searchReplace": self.search_replace,
        }

    async def get_context(self, body: Body) -> Body:
        path = _text(body, "path")
        return {"path": path, "content": await self._read(path)}

    async def append_context(self, body: Body) -> Body:
        path, content = _text(body, "path"), _text(body, "content", empty=True)
        async with self._alone(path):
            await self._plugin.append(path, content.encode())
        return {"path": path}

    async def update_note(self, body: Body) -> Body:
        """The whole file is replaced, frontmatter included."""
        path, content = _text(body, "path"), _text(body, "content", empty=True)
        async with self._alone(path):
            await self._plugin.read(path)  # an update of nothing is a 404, not a new note
            await self._plugin.write(path, content.encode())
        return {"path": path}

    async def search_notes(self, body: Body) -> Body:
        query = _text(body, "query")
        found = await self._plugin.search(query)
        results = [_result(hit) for hit in found[:MAX_RESULTS]]
        return {"query": query, "results": results}

    async def list_notes(self, body: Body) -> Body:
        return {"notes": [path for path in await self._plugin.paths() if path.endswith(".md")]}

    async def delete_note(self, body: Body) -> Body:
        path = _text(body, "path")
        async with self._alone(path):
            await self._plugin.delete(path)
        return {"path": path}

    async def manage_frontmatter(self, body: Body) -> Body:
        path, key = _text(body, "path"), _text(body, "key")
        if "value" not in body:
            raise InvalidRequest("The field 'value' is missing.")
        async with self._alone(path):
            await self._plugin.set_frontmatter(path, key, body["value"])
        return {"path": path, "key": key, "value": body["value"]}

    async def manage_tags(self, body: Body) -> Body:
        """Reads, changes and writes the list; `#` before a tag is not part of it."""
        path, action, wanted = _text(body, "path"), _text(body, "action"), _tags(body)
        if action not in ("add", "remove"):
            raise InvalidRequest("The field 'action' must be add or remove.")
        async with self._alone(path):
            present = _listed((await self._plugin.frontmatter(path)).get("tags"))
            if action == "add":
                tags = list(dict.fromkeys([*present, *wanted]))
            else:
                tags = [tag for tag in dict.fromkeys(present) if tag not in wanted]
            if tags != present:
                await self._plugin.set_frontmatter(path, "tags", tags)
        return {"path": path, "tags": tags}

    async def search_replace(self, body: Body) -> Body:
        """Literal; answers how often it was replaced."""
        path, search = _text(body, "path"), _text(body, "search")
        replacement = _text(body, "replace", empty=True)
        async with self._alone(path):
            content = await self._read(path)
            count = content.count(search)
            if count:
                await self._plugin.write(path, content.replace(search, replacement).encode())
        return {"path": path, "replacements": count}

    async def _read(self, path: str) -> str:
        try:
            return (await self._plugin.read(path)).decode()
        except UnicodeDecodeError:
            raise NotFound(f"{path!r} is no text.") from None

    def _alone(self, path: str) -> asyncio.Lock:
        return self._locks[hash(path) % len(self._locks)]


def _text(body: Body, name: str, *, empty: bool = False) -> str:
    """Raises InvalidRequest for a field that is missing, no text, or empty where it must not be."""
    value = body.get(name)
    if not isinstance(value, str):
        raise InvalidRequest(f"The field {name!r} is missing or no text.")
    if not value and not empty:
        raise InvalidRequest(f"The field {name!r} is empty.")
    return value


def _tags(body: Body) -> list[str]:
    given = body.get("tags")
    if not isinstance(given, list) or not all(isinstance(tag, str) for tag in given):
        raise InvalidRequest("The field 'tags' must be an array of texts.")
    tags = [tag.strip().lstrip("#") for tag in given]
    if not all(tags):
        raise InvalidRequest("The field 'tags' has an empty tag.")
    return tags


def _listed(value: Any) -> list[str]:
    """The tags of a note, written as a list or as one text."""
    if isinstance(value, str):
        value = value.replace(",", " ").split()
    return [str(tag).lstrip("#") for tag in value if tag is not None] if isinstance(value, list) else []


def _result(hit: dict[str, Any]) -> Body:
    matches = hit.get("matches")
    contexts = [m.get("context") for m in matches if isinstance(m, dict)] if isinstance(matches, list) else []
    excerpt = next((text for text in contexts if isinstance(text, str)), "")
    return {"path": hit["filename"], "excerpt": excerpt, "score": hit.get("score")}
