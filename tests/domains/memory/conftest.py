"""A kernel with a memory, and the calls that its tests make."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conftest import MakeWorld, World
from tests.patience import soon

AGENTS = ["11111111-1111-4111-8111-111111111111", "22222222-2222-4222-8222-222222222222"]


@dataclass
class Notes:
    """The memory bus of a world, and the folder behind it."""

    world: World
    root: Path

    async def post(
        self, path: str, client: str = "ADMIN", headers: dict[str, str] | None = None, **body: Any
    ) -> httpx.Response:
        return await self.world.clients[client].post(f"/api/v1/memory/{path}", json=body, headers=headers)

    async def write(
        self, path: str, content: str | None = "text\n", operation: str = "write", **fields: Any
    ) -> httpx.Response:
        """`frontmatter`, `headers` and `client` are what they say; other fields are metadata."""
        document = {"path": path, "content": content, "frontmatter": fields.pop("frontmatter", None)}
        options = {name: fields.pop(name) for name in ("headers", "client") if name in fields}
        given = {name: value for name, value in document.items() if value is not None}
        return await self.post(
            "write", operation=operation, vault="default", document=given, metadata=fields, **options
        )

    async def read(self, path: str, client: str = "ADMIN", **headers: str) -> httpx.Response:
        return await self.world.clients[client].get("/api/v1/memory/read/exact", params={"path": path}, headers=headers)

    async def content(self, path: str) -> str | None:
        """As the bus answers it; None when there is none."""
        document = (await self.read(path)).json()["document"]
        return None if document is None else str(document["content"])

    async def found(self, *terms: str, **body: Any) -> list[str]:
        answer = await self.post("search/keyword", terms=list(terms), **body)
        assert answer.status_code == 200, answer.text
        return [match["path"] for match in answer.json()["matches"]]

    async def until_found(self, term: str, paths: list[str]) -> None:
        found: list[str] = []

        async def so() -> bool:
            found[:] = sorted(await self.found(term))
            return found == paths

        await soon(so, lambda: f"{term!r} is found in {found}, not in {paths}")


@pytest.fixture
async def notes(make_world: MakeWorld, tmp_path: Path) -> Notes:
    return Notes(await make_world(SERVICE_MEMORY="1"), tmp_path / "vault")
