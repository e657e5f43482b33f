"""Run `stentor vault` as a process over a folder that the tests can read."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from tests.forkserver import Process
from tests.patience import until


@dataclass
class Vault:
    http: httpx.Client
    root: Path
    key_file: Path
    https_url: str
    process: Process

    def put(self, path: str, content: str | bytes) -> httpx.Response:
        return self.http.put(f"/vault/{path}", content=content)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Vault]:
    folder = tmp_path_factory.mktemp("vault-server")
    root = folder / "notes"
    arguments = ["vault", str(root), "--data-dir", str(folder / "data"), "--port", "0", "--tls-port", "0", "--json"]
    environ = {"PATH": os.environ["PATH"], "HOME": str(folder)}
    with Process(arguments, environ) as process:
        ready = json.loads(process.stdout.readline())
        key_file = Path(ready["key_file"])
        headers = {"Authorization": f"Bearer {key_file.read_text().strip()}"}
        with httpx.Client(base_url=ready["vault"], headers=headers, timeout=200) as http:
            yield Vault(http, root, key_file, ready["vault_tls"], process)
        process.terminate()
        assert process.wait(200) == 0
        assert "Traceback" not in process.stderr.read()


@pytest.fixture
def vault(server: Vault) -> Vault:
    """The vault server with an empty folder."""
    for path in sorted(server.root.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    return server


@pytest.fixture
def indexed_vault(vault: Vault) -> Vault:
    """An empty vault whose index no longer holds notes of earlier tests."""
    headers = {"Content-Type": "application/vnd.olrapi.jsonlogic+json"}
    until(lambda: not vault.http.post("/search/", content='{"var": "path"}', headers=headers).json())
    return vault
