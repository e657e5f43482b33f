"""Named vaults through the four tools: only a grant for `vault:<name>` reaches them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Service
from tests.requirements import requirement
from tests.surfaces.memory_mcp.conftest import call, connect_client

DENIED = "AUTHORITY_DENIED"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, serve_module: Callable[..., Service]) -> Path:
    # One for each database, as `serve_module` is.
    return tmp_path_factory.mktemp("archive")


@pytest.fixture(scope="module")
def service(serve_module: Callable[..., Service], folder: Path) -> Service:
    running_service = serve_module(
        SERVICE_EMBEDDING_MODEL="none",
        SERVICE_VAULTS=f"archive={folder}",
        SERVICE_API_KEY_KEEPER="keeper-key-7c1e:agent:read,write",
        SERVICE_MEMORY_ACCESS_KEEPER="vault:archive/2025:rw, vault:archive:r, shared:rw",
        SERVICE_API_KEY_OTHERS="others-key-7c1e:agent:read,write",
        SERVICE_MEMORY_ACCESS_OTHERS="vault:rw, *:rw",
    )
    with running_service.client() as http:
        for vault, path in (("archive", "2025/plan"), ("archive", "Tasks/plan"), ("default", "2025/plan")):
            document = {"path": f"{path}.md", "content": f"A zeppelin of {vault}.\n"}
            body = {"operation": "write", "vault": vault, "document": document}
            assert http.post("/api/v1/memory/write", json=body).status_code == 200
    return running_service


@requirement("memory_mcp.named-vaults")
async def test_key_with_a_grant_reads_finds_and_writes_in_a_named_vault(service: Service, folder: Path) -> None:
    async with connect_client(service, "keeper-key-7c1e") as client:
        read = await call(client, "read-memory", namespace="vault:archive/2025", key="plan.md")
        assert (read["content"], read["path"]) == ("A zeppelin of archive.\n", "2025/plan.md")
        assert read["record_id"] == "vault:archive/2025/plan"
        search = await call(client, "search-memory", namespace="vault:archive", query="zeppelin", mode="keyword")
        ids = sorted(result["record_id"] for result in search["results"])
        assert ids == ["vault:archive/2025/plan", "vault:archive/Tasks/plan"]
        status = await call(client, "get-memory-status", namespace="vault:archive/2025", record_id=read["record_id"])
        assert (status["records"], status["record"]["version"]) == (1, 1)
        new_note = {"namespace": "vault:archive/2025", "key": "new", "content": "One.\n"}
        created = await call(client, "write-memory", **new_note)
        assert (created["disposition"], (folder / "2025/new.md").read_text()) == ("created", "One.\n")
        assert await call(client, "write-memory", **new_note) == "CONFLICT"
        overwrite = {**new_note, "content": "Two.\n", "base_hash": created["content_sha256"]}
        assert (await call(client, "write-memory", **overwrite))["version"] == 2
        assert await call(client, "write-memory", namespace="vault:archive", key="new", content="x") == DENIED
        for namespace in ("vault", "vault/2025", "vault:default/2025", "vault:other"):
            assert await call(client, "read-memory", namespace=namespace, key="plan") == DENIED
    assert not (service.data_dir / "vault/2025/new.md").exists()


@requirement("memory_mcp.named-vaults")
async def test_vault_and_wildcard_grants_exclude_named_vaults(service: Service) -> None:
    async with connect_client(service, "others-key-7c1e") as client:
        for namespace in ("vault:archive", "vault:archive/2025", "Vault:archive/2025", "vault:archive/../vault"):
            for tool, arguments in (("read-memory", {"key": "plan"}), ("search-memory", {"query": "zeppelin"})):
                assert await call(client, tool, namespace=namespace, **arguments) in (DENIED, "INVALID_REQUEST")
            assert await call(client, "write-memory", namespace=namespace, key="no", content="x") != "CONFLICT"
        read = await call(client, "read-memory", namespace="vault:default/2025", key="plan")
        assert read["record_id"] == "vault/2025/plan"
        assert await call(client, "read-memory", namespace="vault:default/Tasks", key="plan") == DENIED


@requirement("memory_mcp.named-vaults")
async def test_admin_key_reaches_every_vault_and_unknown_names_are_denied(service: Service) -> None:
    async with connect_client(service) as client:
        read = await call(client, "read-memory", namespace="vault:archive/Tasks", key="plan")
        assert read["path"] == "Tasks/plan.md"
        assert await call(client, "read-memory", namespace="vault:archiv", key="plan") == DENIED


@requirement("memory.invalid-excluded")
async def test_what_was_derived_from_a_record_leaves_with_it(service: Service) -> None:
    async with connect_client(service, "keeper-key-7c1e") as client:
        offer = await call(client, "write-memory", namespace="vault:archive/2025", key="offer", content="It is dear.")
        derived = {"namespace": "vault:archive/2025", "key": "derived", "content": "Too dear."}
        await call(client, "write-memory", **derived, metadata={"derived_from": [offer["record_id"]]})
    mark = {"vault": "archive", "note": "2025/offer.md", "reason": "it expired"}
    with service.client() as http:
        left = http.post("/api/v1/memory/invalidate", json=mark).json()["left"]
    assert [note["path"] for note in left] == ["2025/derived.md", "2025/offer.md"]
