"""A plain key with namespaces and folders of the vault of its own, through the official client over HTTP."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from mcp import Client

from tests import forkserver
from tests.conftest import Service
from tests.requirements import requirement
from tests.surfaces.memory_mcp.conftest import MODES, connected, use

DENIED = "AUTHORITY_DENIED"


@pytest.fixture(scope="module")
def service(serve_module: Callable[..., Service]) -> Service:
    found = serve_module(
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
    with found.client() as http:
        for path in ("Readme", "Projects/plan", "Projects/Old/plan", "Private/diary", "Tasks/Inbox/x", "Memory/team/a"):
            document = {"path": f"{path}.md", "content": f"# {path}\n\nA zeppelin of {path}.\n"}
            body = {"operation": "write", "vault": "default", "document": document}
            assert http.post("/api/v1/memory/write", json=body).status_code == 200
    return found


async def found(client: Client, namespace: str, mode: str = "keyword") -> list[str]:
    answer = await use(client, "search-memory", namespace=namespace, query="the zeppelin", mode=mode)
    return sorted(one["path"] for one in answer["results"])


@requirement("memory_mcp.vault-access")
@pytest.mark.parametrize("mode", MODES)
async def test_a_key_reads_and_finds_the_notes_of_the_vault_it_was_given(service: Service, mode: str) -> None:
    async with connected(service, "librarian-key-7c1e", mode) as client:
        read = await use(client, "read-memory", namespace="vault/Projects", key="plan.md")
        assert (read["path"], read["record_id"]) == ("Projects/plan.md", "vault/Projects/plan")
        assert "A zeppelin of Projects/plan." in read["content"]
        for kind in ("keyword", "hybrid"):
            paths = await found(client, "vault", kind)
            assert paths == ["Private/diary.md", "Projects/Old/plan.md", "Projects/plan.md", "Readme.md"]
            assert await found(client, "vault/Projects", kind) == ["Projects/Old/plan.md", "Projects/plan.md"]
        status = await use(client, "get-memory-status", namespace="vault", record_id="vault/Readme")
        assert (status["records"] >= 4, status["record"]["indexed"]) == (True, True)


@requirement("memory_mcp.vault-access")
async def test_it_writes_only_where_it_was_given_that_and_overwrites_nothing_unread(service: Service) -> None:
    async with connected(service, "librarian-key-7c1e") as client:
        assert (await use(client, "write-memory", namespace="research", key="k", content="x"))["version"] == 1
        new = await use(client, "write-memory", namespace="vault/Projects", key="new", content="One.\n")
        assert (new["path"], new["disposition"]) == ("Projects/new.md", "created")
        again = {"namespace": "vault/Projects", "key": "new", "content": "Two.\n"}
        assert await use(client, "write-memory", **again) == "CONFLICT"
        assert (await use(client, "write-memory", **again, base_hash=new["content_sha256"]))["version"] == 2
        for namespace in ("vault", "vault/Private", "vault/Projectsx"):
            assert await use(client, "write-memory", namespace=namespace, key="no", content="x") == DENIED
    assert (service.data_dir / "vault/Projects/new.md").read_text() == "Two.\n"
    assert not (service.data_dir / "vault/no.md").exists()


@requirement("memory_mcp.vault-access")
async def test_the_vault_is_no_way_to_the_notes_of_tasks_or_to_other_namespaces(service: Service) -> None:
    async with connected(service, "librarian-key-7c1e") as client:
        for namespace in ("team", "vault/Memory/team", "vault/memory/team", "vault/Memory", "vault/Tasks/Inbox"):
            assert await use(client, "read-memory", namespace=namespace, key="a") == DENIED
            assert await use(client, "search-memory", namespace=namespace, query="zeppelin") == DENIED
            assert await use(client, "write-memory", namespace=namespace, key="a", content="x") == DENIED
        await use(client, "write-memory", namespace="research", key="own", content="x")
        assert (await use(client, "read-memory", namespace="vault/Memory/research", key="own"))[
            "namespace"
        ] == "research"
        assert await use(client, "read-memory", namespace="vault/../Private", key="diary") == "INVALID_REQUEST"


@requirement("memory_mcp.vault-access")
async def test_all_namespaces_are_not_the_vault_and_nobody_writes_tasks(service: Service) -> None:
    async with connected(service, "inbox-key-7c1e") as client:
        assert (await use(client, "read-memory", namespace="team", key="a"))["path"] == "Memory/team/a.md"
        assert await use(client, "read-memory", namespace="vault", key="Readme") == DENIED
        assert (await use(client, "read-memory", namespace="vault/Tasks/Inbox", key="x"))["key"] == "x"
        assert await use(client, "write-memory", namespace="vault/Tasks/Inbox", key="y", content="x") == DENIED
        assert await use(client, "write-memory", namespace="team", key="y", content="x") == DENIED
    async with connected(service) as client:
        assert await use(client, "write-memory", namespace="vault/Tasks/Inbox", key="y", content="x") == DENIED
        assert (await use(client, "read-memory", namespace="vault", key="Readme"))["path"] == "Readme.md"


@requirement("memory_mcp.vault-access")
async def test_a_key_has_what_it_was_given_and_never_more_than_its_permissions(service: Service) -> None:
    async with connected(service, "nothing-key-7c1e") as client:
        for namespace in ("nothing", "shared", "vault"):
            assert await use(client, "read-memory", namespace=namespace, key="k") == DENIED
    async with connected(service, "looking-key-7c1e") as client:
        assert await use(client, "write-memory", namespace="research", key="l", content="x") == DENIED
        assert await use(client, "read-memory", namespace="research", key="none") == "NOT_FOUND"


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
def test_an_access_that_cannot_be_read_stops_the_start(
    service: Service, tmp_path: str, variable: str, value: str, part: str
) -> None:
    words = ["mcp", "--http", "--port", "0", "--data-dir", str(tmp_path)]
    plain = {k: v for k, v in service.environ.items() if not k.startswith("SERVICE_MEMORY_ACCESS_")}
    plain.pop("SERVICE_DATABASE_URL", None)
    ended = forkserver.run_text(words, plain | {variable: value})
    assert ended.returncode == 3, ended.stderr
    assert variable in ended.stderr
    assert part in " ".join(ended.stderr.split())
