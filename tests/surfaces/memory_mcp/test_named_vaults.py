"""Named vaults through the four tools: `vault:<name>` is reached by those who were given it, and by no other grant."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Service
from tests.requirements import requirement
from tests.surfaces.memory_mcp.conftest import connected, use

DENIED = "AUTHORITY_DENIED"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("archive")


@pytest.fixture(scope="module")
def service(serve_module: Callable[..., Service], folder: Path) -> Service:
    found = serve_module(
        SERVICE_EMBEDDING_MODEL="none",
        SERVICE_VAULTS=f"archive={folder}",
        SERVICE_API_KEY_KEEPER="keeper-key-7c1e:agent:read,write",
        SERVICE_MEMORY_ACCESS_KEEPER="vault:archive/2025:rw, vault:archive:r, shared:rw",
        SERVICE_API_KEY_OTHERS="others-key-7c1e:agent:read,write",
        SERVICE_MEMORY_ACCESS_OTHERS="vault:rw, *:rw",
    )
    with found.client() as http:
        for vault, path in (("archive", "2025/plan"), ("archive", "Tasks/plan"), ("default", "2025/plan")):
            document = {"path": f"{path}.md", "content": f"A zeppelin of {vault}.\n"}
            body = {"operation": "write", "vault": vault, "document": document}
            assert http.post("/api/v1/memory/write", json=body).status_code == 200
    return found


@requirement("memory_mcp.named-vaults")
async def test_a_key_reads_finds_and_writes_in_the_named_vault_that_it_was_given(
    service: Service, folder: Path
) -> None:
    async with connected(service, "keeper-key-7c1e") as client:
        read = await use(client, "read-memory", namespace="vault:archive/2025", key="plan.md")
        assert (read["content"], read["path"]) == ("A zeppelin of archive.\n", "2025/plan.md")
        assert read["record_id"] == "vault:archive/2025/plan"
        found = await use(client, "search-memory", namespace="vault:archive", query="zeppelin", mode="keyword")
        ids = sorted(one["record_id"] for one in found["results"])
        assert ids == ["vault:archive/2025/plan", "vault:archive/Tasks/plan"]
        status = await use(client, "get-memory-status", namespace="vault:archive/2025", record_id=read["record_id"])
        assert (status["records"], status["record"]["version"]) == (1, 1)
        made = {"namespace": "vault:archive/2025", "key": "new", "content": "One.\n"}
        new = await use(client, "write-memory", **made)
        assert (new["disposition"], (folder / "2025/new.md").read_text()) == ("created", "One.\n")
        assert await use(client, "write-memory", **made) == "CONFLICT"
        again = {**made, "content": "Two.\n", "base_hash": new["content_sha256"]}
        assert (await use(client, "write-memory", **again))["version"] == 2
        assert await use(client, "write-memory", namespace="vault:archive", key="new", content="x") == DENIED
        for namespace in ("vault", "vault/2025", "vault:default/2025", "vault:other"):
            assert await use(client, "read-memory", namespace=namespace, key="plan") == DENIED
    assert not (service.data_dir / "vault/2025/new.md").exists()


@requirement("memory_mcp.named-vaults")
async def test_neither_the_vault_nor_all_namespaces_are_a_named_vault(service: Service) -> None:
    async with connected(service, "others-key-7c1e") as client:
        for namespace in ("vault:archive", "vault:archive/2025", "Vault:archive/2025", "vault:archive/../vault"):
            for tool, asked in (("read-memory", {"key": "plan"}), ("search-memory", {"query": "zeppelin"})):
                assert await use(client, tool, namespace=namespace, **asked) in (DENIED, "INVALID_REQUEST")
            assert await use(client, "write-memory", namespace=namespace, key="no", content="x") != "CONFLICT"
        same = await use(client, "read-memory", namespace="vault:default/2025", key="plan")
        assert same["record_id"] == "vault/2025/plan"
        assert await use(client, "read-memory", namespace="vault:default/Tasks", key="plan") == DENIED


@requirement("memory_mcp.named-vaults")
async def test_an_administrator_reaches_every_vault_and_a_name_that_is_none_is_refused(service: Service) -> None:
    async with connected(service) as client:
        read = await use(client, "read-memory", namespace="vault:archive/Tasks", key="plan")
        assert read["path"] == "Tasks/plan.md"
        assert await use(client, "read-memory", namespace="vault:archiv", key="plan") == DENIED
