"""The text index of the vault server: searches wait for its load."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest

from stentor_vault.notes.folder_vault import FolderVault
from stentor_vault.server import jsonlogic
from stentor_vault.server.app import VaultServer
from stentor_vault.server.read_handlers import JSON_LOGIC
from stentor_vault.server.text_index import VaultTextIndex


@pytest.fixture
def vault(tmp_path: Path) -> FolderVault:
    (tmp_path / "a.md").write_text("alpha")
    return FolderVault(tmp_path)


async def test_the_time_limit_of_a_rule_does_not_count_the_load(
    vault: FolderVault, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr(jsonlogic, "time", SimpleNamespace(monotonic=lambda: now))

    class SlowIndex(VaultTextIndex):
        async def wait_until_loaded(self) -> None:
            nonlocal now
            await self.load()
            now += jsonlogic.MAX_SECONDS + 1

    # More steps than pass between two looks at the clock.
    rule = {"some": [[*range(5000)], {"==": [{"var": ""}, 4999]}]}
    transport = httpx.ASGITransport(VaultServer(vault, SlowIndex(vault), "key"))
    headers = {"Authorization": "Bearer key", "Content-Type": JSON_LOGIC}
    async with httpx.AsyncClient(transport=transport, base_url="http://vault", headers=headers) as http:
        response = await http.post("/search", json=rule)
    assert (response.status_code, response.json()) == (200, [{"filename": "a.md", "result": True}])
