"""What each kind of key may do with each tool in each namespace, as a table against a running service."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from mcp import MCPError

from tests.conftest import Service
from tests.surfaces.memory_mcp.conftest import call, connect_client

READ_TOOLS: dict[str, dict[str, Any]] = {
    "read-memory": {"key": "seed"},
    "search-memory": {"query": "canary"},
    "get-memory-status": {},
}
WRITE_TOOL = "write-memory"
RECORDS = ("team", "secret", "secret/deep")
VAULT = ("vault", "vault/Sub", "vault/Memory/secret")
TASKS = "vault/Tasks"
ODD = ("VAULT", "vault:archive", "vault/memory/secret", "Shared", "secret\u200b", "secret ", "*", "", "/", "../secret")
NAMESPACES = (*RECORDS, *VAULT, TASKS, "shared")


class Holder(NamedTuple):
    """A key that a test makes, and the namespaces that it may read and write."""

    body: dict[str, Any]
    readable: tuple[str, ...]
    writable: tuple[str, ...]


OWN = ("{own}", "shared")
EVERYTHING = ("{own}", *NAMESPACES)
HOLDERS = {
    "the-viewer": Holder({"role": "viewer"}, OWN, ()),
    "the-operator": Holder({"role": "operator"}, OWN, OWN),
    "the-approver": Holder({"role": "approver"}, OWN, ()),
    "the-admin": Holder({"role": "admin"}, EVERYTHING, tuple(set(EVERYTHING) - {TASKS})),
    "an-agent": Holder({"role": "agent"}, OWN, OWN),
    "agent-reads": Holder({"role": "agent", "permissions": ["read"]}, OWN, ()),
    "agent-writes": Holder({"role": "agent", "permissions": ["write"]}, (), OWN),
    "agent-deletes": Holder({"role": "agent", "permissions": ["delete", "propose"]}, (), ()),
    "agent-admin": Holder({"role": "agent", "permissions": ["admin"]}, EVERYTHING, tuple(set(EVERYTHING) - {TASKS})),
    "model-limit": Holder({"role": "agent", "models": ["openai/x"]}, OWN, OWN),
    "admin-team": Holder({"role": "admin", "memory": "team:rw"}, ("team",), ("team",)),
    "admin-reads": Holder({"role": "admin", "memory": "team:r,vault/Sub:r"}, ("team", "vault/Sub"), ()),
    "vault": Holder({"role": "agent"}, ("shared",), ("shared",)),
}


@pytest.fixture(scope="module")
def secrets(service: Service) -> dict[str, str]:
    with service.client() as client:
        made = {name: client.post("/api/v1/keys", json={"name": name, **h.body}) for name, h in HOLDERS.items()}
    return {name: response.raise_for_status().json()["key"] for name, response in made.items()}


@pytest.mark.parametrize("name", HOLDERS)
async def test_a_key_reaches_only_what_its_permissions_and_its_access_allow(
    service: Service, secrets: dict[str, str], name: str
) -> None:
    holder = HOLDERS[name]
    async with connect_client(service) as admin:
        for namespace in (*RECORDS, "vault", "vault/Sub", "shared"):
            await call(admin, WRITE_TOOL, namespace=namespace, key="seed", content=f"canary {namespace}")
    wrong = []
    async with connect_client(service, secrets[name]) as client:
        for namespace in ("{own}", *NAMESPACES):
            for tool, arguments in {**READ_TOOLS, WRITE_TOOL: {"key": f"by-{name}", "content": "x"}}.items():
                allowed = namespace in (holder.writable if tool == WRITE_TOOL else holder.readable)
                result = await call(client, tool, namespace=namespace.format(own=name), **arguments)
                if (result == "AUTHORITY_DENIED") is allowed:
                    wrong.append((namespace, tool, result))
    assert wrong == []


@pytest.mark.parametrize("namespace", ODD)
@pytest.mark.parametrize("name", ["an-agent", "vault", "admin-team"])
async def test_odd_names_of_namespaces_reach_nothing(
    service: Service, secrets: dict[str, str], name: str, namespace: str
) -> None:
    async with connect_client(service, secrets[name]) as client:
        for tool, arguments in {**READ_TOOLS, WRITE_TOOL: {"key": "odd", "content": "x"}}.items():
            result = await call(client, tool, namespace=namespace, **arguments)
            assert result in ("AUTHORITY_DENIED", "INVALID_REQUEST"), tool


async def test_a_change_of_a_key_counts_for_the_next_call_of_an_open_session(service: Service) -> None:
    with service.client() as admin:
        made = admin.post("/api/v1/keys", json={"name": "changing", "role": "operator"}).raise_for_status().json()
        async with connect_client(service, made["key"]) as client:
            written: Any = await call(client, WRITE_TOOL, namespace="shared", key="changing", content="x")
            assert written["disposition"] == "created"
            admin.patch("/api/v1/keys/changing", json={"role": "viewer"}).raise_for_status()
            assert await call(client, WRITE_TOOL, namespace="shared", key="more", content="x") == "AUTHORITY_DENIED"
            admin.post("/api/v1/keys/changing/revoke").raise_for_status()
            with pytest.raises(MCPError):
                await call(client, "get-memory-status", namespace="shared")
