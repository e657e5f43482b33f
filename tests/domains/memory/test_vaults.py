"""Named vaults: a name that is not configured is refused, and no vault sees another one's notes."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.domains.memory.conftest import Notes
from tests.requirements import requirement

BODIES: dict[str, dict[str, Any]] = {
    "write": {"operation": "write", "document": {"path": "a.md", "content": "x"}},
    "search/keyword": {"terms": ["x"]},
    "search/semantic": {"query": "x"},
    "search/hybrid": {"query": "x"},
    "reindex": {},
    "verify": {},
}


@requirement("memory.vault-known")
@pytest.mark.parametrize("route", BODIES)
async def test_a_vault_that_is_not_configured_is_refused_with_the_names_of_those_that_are(
    notes: Notes, route: str
) -> None:
    answer = await notes.post(route, **BODIES[route], vault="alpha")
    assert_refused(answer)
    assert not (notes.root / "a.md").exists()


@requirement("memory.vault-known")
@pytest.mark.parametrize("route", ["read/exact", "versions", "versions/abc", "health"])
async def test_nor_is_one_read(notes: Notes, route: str) -> None:
    await notes.write("a.md")
    admin = notes.world.clients["ADMIN"]
    assert_refused(await admin.get(f"/api/v1/memory/{route}", params={"path": "a.md", "vault": "alpha"}))


def assert_refused(answer: httpx.Response) -> None:
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert "'alpha'" in error["message"]
    assert error["details"] == {"known_vaults": ["default"]}
