"""The search index of each kind."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from stentor.domains.memory.index.index import SearchIndex
from tests.conformance import indexes


@pytest.fixture(params=indexes.KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def address(kind: str, request: pytest.FixtureRequest) -> Iterator[str]:
    """Of the database that the index is in; empty for SQLite."""
    if kind == "sqlite":
        yield ""
        return
    url = str(request.getfixturevalue("postgres_url"))
    if kind == "postgresql":
        yield url
        return
    with indexes.plain_role(url) as plain:
        yield plain


@pytest.fixture
async def index(kind: str, address: str, tmp_path: Path) -> AsyncIterator[SearchIndex]:
    async for made in indexes.opened(kind, tmp_path, address):
        yield made
