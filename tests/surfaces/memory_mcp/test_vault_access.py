"""Agent keys with access to namespaces and folders of the vault, through the official client over HTTP."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from mcp import Client

from tests import forkserver
from tests.conftest import Service
from tests.requirements import requirement
from tests.surfaces.memory_mcp.conftest import MODES, call, connect_client

DENIED = "AUTHORITY_DENIED"


@pytest.fixture(scope="module")
def service(serve_module: Callable[..., Service]) -> Service:
    running_service = serve_module(
        SERVICE_EMBEDDING_MODEL="none",
        SERVICE_API_KEY_LIBRARIAN="librarian-key-7c1e:agent:read,write",
        SERVICE_MEMORY_ACCESS_LIBRARIAN="research:rw, vault:r, vault/Projects:rw",
        SERVICE_API_KEY_INBOX="inbox-key-7c1e:agent:read,write",
        SERVICE_MEMORY_ACCESS_INBOX="vault/Tasks:rw, *:r",
        SERVICE_API_KEY_NOTHING="nothing-key-7c1e:agent:read,write",
        SERVICE_MEMORY_ACCESS_NOTHING="",
        SERVICE_API_KEY_LOOKING="looking-key-7c1e:agent:read",
        SERVICE_MEMORY_ACCESS_LOOKING="research:rw",
    )
    with running_service.client() as http:
        for path in ("Readme", "Projects/plan", "Projects/Old/plan", "Private/diary", "Tasks/Inbox/x", "Memory/team/a"):
            document = {"path": f"{path}.md", "content": f"# {path}\n\nA zeppelin of {path}.\n"}
            body = {"operation": "write", "vault": "default", "document": document}
            assert http.post("/api/v1/memory/write", json=body).status_code == 200
    return running_service


async def search_paths(client: Client, namespace: str, mode: str = "keyword") -> list[str]:
    response = await call(client, "search-memory", namespace=namespace, query="the zeppelin", mode=mode)
    return sorted(result["path"] for result in response["results"])


@requirement("memory_mcp.vault-access")
@pytest.mark.parametrize("mode", MODES)
async def test_key_with_vault_access_reads_and_finds_its_notes(service: Service, mode: str) -> None:
    async with connect_client(service, "librarian-key-7c1e", mode) as client:
        read = await call(client, "read-memory", namespace="vault/Projects", key="plan.md")
        assert (read["path"], read["record_id"]) == ("Projects/plan.md", "vault/Projects/plan")
        assert "A zeppelin of Projects/plan." in read["content"]
        for kind in ("keyword", "hybrid"):
            paths = await search_paths(client, "vault", kind)
            assert paths == ["Private/diary.md", "Projects/Old/plan.md", "Projects/plan.md", "Readme.md"]
            assert await search_paths(client, "vault/Projects", kind) == ["Projects/Old/plan.md", "Projects/plan.md"]
        status = await call(client, "get-memory-status", namespace="vault", record_id="vault/Readme")
        assert (status["records"] >= 4, status["record"]["indexed"]) == (True, True)


@requirement("memory_mcp.vault-access")
async def test_write_needs_a_grant_and_overwrite_needs_the_base_hash(service: Service) -> None:
    async with connect_client(service, "librarian-key-7c1e") as client:
        assert (await call(client, "write-memory", namespace="research", key="k", content="x"))["version"] == 1
        created = await call(client, "write-memory", namespace="vault/Projects", key="new", content="One.\n")
        assert (created["path"], created["disposition"]) == ("Projects/new.md", "created")
        overwrite = {"namespace": "vault/Projects", "key": "new", "content": "Two.\n"}
        assert await call(client, "write-memory", **overwrite) == "CONFLICT"
        assert (await call(client, "write-memory", **overwrite, base_hash=created["content_sha256"]))["version"] == 2
        for namespace in ("vault", "vault/Private", "vault/Projectsx"):
            assert await call(client, "write-memory", namespace=namespace, key="no", content="x") == DENIED
    assert (service.data_dir / "vault/Projects/new.md").read_text() == "Two.\n"
    assert not (service.data_dir / "vault/no.md").exists()


@requirement("memory_mcp.vault-access")
async def test_vault_access_excludes_task_notes_and_other_namespaces(service: Service) -> None:
    async with connect_client(service, "librarian-key-7c1e") as client:
        for namespace in ("team", "vault/Memory/team", "vault/memory/team", "vault/Memory", "vault/Tasks/Inbox"):
            assert await call(client, "read-memory", namespace=namespace, key="a") == DENIED
            assert await call(client, "search-memory", namespace=namespace, query="zeppelin") == DENIED
            assert await call(client, "write-memory", namespace=namespace, key="a", content="x") == DENIED
        await call(client, "write-memory", namespace="research", key="own", content="x")
        assert (await call(client, "read-memory", namespace="vault/Memory/research", key="own"))[
            "namespace"
        ] == "research"
        assert await call(client, "read-memory", namespace="vault/../Private", key="diary") == "INVALID_REQUEST"


@requirement("memory_mcp.vault-access")
async def test_wildcard_access_excludes_the_vault_and_task_notes_are_read_only(service: Service) -> None:
    async with connect_client(service, "inbox-key-7c1e") as client:
        assert (await call(client, "read-memory", namespace="team", key="a"))["path"] == "Memory/team/a.md"
        assert await call(client, "read-memory", namespace="vault", key="Readme") == DENIED
        assert (await call(client, "read-memory", namespace="vault/Tasks/Inbox", key="x"))["key"] == "x"
        assert await call(client, "write-memory", namespace="vault/Tasks/Inbox", key="y", content="x") == DENIED
        assert await call(client, "write-memory", namespace="team", key="y", content="x") == DENIED
    async with connect_client(service) as client:
        assert await call(client, "write-memory", namespace="vault/Tasks/Inbox", key="y", content="x") == DENIED
        assert (await call(client, "read-memory", namespace="vault", key="Readme"))["path"] == "Readme.md"


@requirement("memory_mcp.vault-access")
async def test_memory_access_is_limited_by_the_permissions_of_the_key(service: Service) -> None:
    async with connect_client(service, "nothing-key-7c1e") as client:
        for namespace in ("nothing", "shared", "vault"):
            assert await call(client, "read-memory", namespace=namespace, key="k") == DENIED
    async with connect_client(service, "looking-key-7c1e") as client:
        assert await call(client, "write-memory", namespace="research", key="l", content="x") == DENIED
        assert await call(client, "read-memory", namespace="research", key="none") == "NOT_FOUND"


@requirement("memory_mcp.access-checked-at-start")
@pytest.mark.parametrize(
    ("variable", "value", "part"),
    [
        ("SERVICE_MEMORY_ACCESS_BOB", "research", "'research' does not name a valid namespace"),
        ("SERVICE_MEMORY_ACCESS_BOB", "research:w", "must end with :r or :rw"),
        ("SERVICE_MEMORY_ACCESS_BOB", "a/../b:r", "does not name a valid namespace"),
        ("SERVICE_MEMORY_ACCESS_BOBBY", "research:r", "Known keys: "),
        ("SERVICE_MEMORY_ACCESS_BOB", "vault:archiv/2025:r", "'vault:archiv' is not a vault of SERVICE_VAULTS"),
    ],
)
def test_invalid_memory_access_setting_stops_the_start(
    service: Service, tmp_path: str, variable: str, value: str, part: str
) -> None:
    arguments = ["mcp", "--http", "--port", "0", "--data-dir", str(tmp_path)]
    environ = {k: v for k, v in service.environ.items() if not k.startswith("SERVICE_MEMORY_ACCESS_")}
    environ.pop("SERVICE_DATABASE_URL", None)
    process = forkserver.run_text(arguments, environ | {variable: value})
    assert process.returncode == 3, process.stderr
    assert variable in process.stderr
    assert part in " ".join(process.stderr.split())
