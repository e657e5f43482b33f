"""An index file of another version is made anew, but what is expensive in it is kept."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from stentor.domains.memory.index.index import SearchIndex
from stentor.domains.memory.index.sqlite import sqlite
from tests.conformance.indexes import MODEL, chunks, document, embed, fill, found, near, unit
from tests.requirements import requirement


async def make_file(folder: Path) -> Path:
    """An index with two notes and their vectors."""
    index = await opened(folder)
    await fill(index, document("a.md", "red"), document("b.md", "blue"))
    await embed(index, {"a.md": [unit(1)], "b.md": [unit(0, 1)]})
    index.close()
    return folder / sqlite.INDEX_FILE


async def opened(folder: Path) -> SearchIndex:
    index = sqlite.open_index(folder)
    await index.vectors.use_model(MODEL)
    return index


def set_version(file: Path) -> None:
    with sqlite3.connect(file) as connection:
        connection.execute("update facts set value = value - 1 where name = 'version'")


@requirement("memory.index-keeps-vectors")
async def test_an_index_of_an_earlier_version_is_empty_but_for_its_vectors(tmp_path: Path) -> None:
    folder = tmp_path / "the index's folder"
    set_version(await make_file(folder))
    index = await opened(folder)
    assert (await index.totals()).documents == 0
    assert await found(index, "red") == []
    hashes = [chunk.hash for path in ("a.md", "b.md") for chunk in chunks(f"{path} 0")]
    assert set(await index.vectors.find_by_hash([*hashes, "none"])) == set(hashes)
    await fill(index, document("a.md", "red"))
    await embed(index, {"a.md": [unit(1)]})
    assert await near(index, unit(1)) == (["a.md"], 1)
    index.close()
    assert [file.name for file in folder.iterdir()] == [sqlite.INDEX_FILE]


@requirement("memory.index-keeps-vectors")
@pytest.mark.parametrize(
    "damage",
    [
        lambda file: file.write_bytes(b"no database" * 1000),
        lambda file: file.write_bytes(file.read_bytes()[:5000]),
        lambda file: sqlite3.connect(file).execute("drop table vectors").connection.close(),
        lambda file: file.with_name(f"{file.name}.new").write_bytes(b"left over by a crash"),
    ],
    ids=["no database", "cut off", "no vectors", "left over"],
)
async def test_what_cannot_be_taken_over_is_computed_again(tmp_path: Path, damage: Callable[[Path], object]) -> None:
    file = await make_file(tmp_path)
    set_version(file)
    damage(file)
    index = await opened(tmp_path)
    assert (await index.totals()).documents == 0
    await fill(index, document("a.md", "red"))
    await embed(index, {"a.md": [unit(1)]})
    assert await near(index, unit(1)) == (["a.md"], 1)
    index.close()
    assert [found.name for found in tmp_path.iterdir()] == [sqlite.INDEX_FILE]
