"""The transport on standard input and output: a real process, started by the official client."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from mcp import Client, StdioServerParameters, stdio_client

from tests import forkserver
from tests.conftest import Service
from tests.requirements import requirement
from tests.surfaces.memory_mcp.conftest import MODES, denials, use

LAUNCH = {
    "SERVICE_MCP_PRINCIPAL": "desk",
    "SERVICE_MCP_NAMESPACES": "team, notes",
    "SERVICE_MCP_CAPABILITIES": "memory.read,memory.write",
    "SERVICE_EMBEDDING_MODEL": "none",
}


@asynccontextmanager
async def started(data_dir: Path, mode: str = MODES[0], **environ: str) -> AsyncIterator[Client]:
    env = {"PATH": os.environ["PATH"], "HOME": str(data_dir.parent), **LAUNCH, **environ}
    program = forkserver.script(data_dir.parent)
    command = StdioServerParameters(command=str(program), args=["mcp", "--data-dir", str(data_dir)], env=env)
    async with Client(stdio_client(command), mode=mode) as client:
        yield client


@requirement("memory_mcp.stdio-default", "memory_mcp.two-revisions")
@pytest.mark.parametrize("mode", MODES)
async def test_a_client_starts_it_and_uses_the_memory(tmp_path: Path, mode: str) -> None:
    async with started(tmp_path / "data", mode) as client:
        assert len((await client.list_tools()).tools) == 4
        assert (await use(client, "write-memory", namespace="team", key="a", content="x"))["disposition"] == "created"
        assert await use(client, "read-memory", namespace="other", key="a") == "AUTHORITY_DENIED"
    assert (tmp_path / "data/vault/Memory/team/a.md").read_text() == "x"
    assert '"by":"desk"' in denials(tmp_path / "data/stentor.db")[0]
    assert (tmp_path / "data/stentor.lock").read_bytes() == b""


@requirement("memory_mcp.stdio-default")
async def test_with_a_service_running_its_calls_are_the_services(service: Service) -> None:
    async with started(service.data_dir) as client:
        assert (await use(client, "write-memory", namespace="notes", key="a", content="x"))["version"] == 1
        assert (await use(client, "read-memory", namespace="notes", key="a"))["content"] == "x"
        assert await use(client, "read-memory", namespace="other", key="a") == "AUTHORITY_DENIED"
        assert await use(client, "read-memory", namespace="notes", key="b") == "NOT_FOUND"
    last = json.loads(denials(service.database)[-1])
    assert (last["by"], last["issuer"], last["namespace"]) == ("desk", "stentor", "other")


@requirement("memory_mcp.blank-evidence-denied")
@pytest.mark.parametrize(
    "blank", [{"SERVICE_MCP_PRINCIPAL": ""}, {"SERVICE_MCP_PRINCIPAL": " \u200b"}, {"SERVICE_MCP_CAPABILITIES": " , "}]
)
async def test_a_blank_launch_configuration_is_denied(tmp_path: Path, blank: dict[str, str]) -> None:
    async with started(tmp_path / "data", **blank) as client:
        for tool in ("write-memory", "read-memory", "search-memory", "get-memory-status"):
            assert await use(client, tool, namespace="team", key="a", content="x") == "AUTHORITY_DENIED"
    assert len(denials(tmp_path / "data/stentor.db")) == 4
    assert not (tmp_path / "data/vault/Memory").exists()


@requirement("memory_mcp.blank-evidence-denied")
async def test_a_blank_launch_configuration_is_denied_by_a_running_service_too(service: Service) -> None:
    before = len(denials(service.database))
    for blank in ({"SERVICE_MCP_CAPABILITIES": ""}, {"SERVICE_MCP_PRINCIPAL": ""}):
        async with started(service.data_dir, **blank) as client:
            denied = await client.call_tool("read-memory", {"namespace": "notes", "key": "a"})
        error = denied.structured_content["error"]
        assert error["code"] == "AUTHORITY_DENIED"
        assert "its principal or its capabilities are blank" in error["message"]
        assert json.loads(denials(service.database)[-1])["reason"] == error["message"]
    assert len(denials(service.database)) == before + 2


def test_what_install_prints_for_a_desktop_starts_the_server(tmp_path: Path) -> None:
    printed = run("mcp", "install", "claude-desktop", "--namespace", "team", "--data-dir", str(tmp_path / "data"))
    server = json.loads(printed.stdout)["mcpServers"]["stentor-memory"]
    assert server["env"] == {
        "SERVICE_MCP_PRINCIPAL": "claude-desktop",
        "SERVICE_MCP_NAMESPACES": "team",
        "SERVICE_MCP_CAPABILITIES": "memory.read,memory.write",
    }
    client = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    hello = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": client}) + "\n"
    command = [server["command"], *server["args"]]
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), **server["env"]}
    ended = subprocess.run(command, input=hello, capture_output=True, text=True, timeout=60, env=env)
    assert json.loads(ended.stdout)["result"]["serverInfo"]["name"] == "stentor-memory"
    assert ended.returncode == 0, ended.stderr


def test_install_knows_three_clients_and_how_to_read_only(tmp_path: Path) -> None:
    folder = ["--data-dir", str(tmp_path)]
    space = ["--namespace", "team", "--namespace", "ann"]
    code = run("mcp", "install", "vscode", "--read-only", "--principal", "me", *space, *folder)
    assert "lets 'me' read team, ann and everything below" in code.stderr
    env = json.loads(code.stdout)["servers"]["stentor-memory"]["env"]
    assert (env["SERVICE_MCP_PRINCIPAL"], env["SERVICE_MCP_CAPABILITIES"]) == ("me", "memory.read")
    words = shlex.split(run("mcp", "install", "claude-code", *space, *folder).stdout)
    assert words[:4] == ["claude", "mcp", "add", "stentor-memory"]
    assert words[-3:] == ["mcp", "--data-dir", str(tmp_path)]
    unknown = run("mcp", "install", "emacs", *space, *folder)
    assert (unknown.returncode, unknown.stdout) == (2, "")
    assert "vscode" in unknown.stderr


@requirement("memory_mcp.install-grants-what-is-named")
def test_install_grants_no_namespace_that_is_not_named(tmp_path: Path) -> None:
    folder = ["--data-dir", str(tmp_path)]
    for spaces in ([], ["--namespace", "a,b"], ["--namespace", "../x"]):
        refused = run("mcp", "install", "claude-code", *spaces, *folder)
        assert (refused.returncode, refused.stdout) == (2, "")
    everything = run("mcp", "install", "claude-code", "--namespace", "*", *folder)
    assert "read and write every namespace except vaults" in everything.stderr


@requirement("memory_mcp.named-vaults")
def test_install_hands_the_named_vaults_on_and_knows_no_others(tmp_path: Path) -> None:
    asked = ("mcp", "install", "vscode", "--data-dir", str(tmp_path), "--namespace")
    vaults = f"archive={tmp_path / 'archive'}"
    refused = run(*asked, "vault:archiv/2025", SERVICE_VAULTS=vaults)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "'vault:archiv' is not a vault of SERVICE_VAULTS" in " ".join(refused.stderr.split())
    printed = json.loads(run(*asked, "vault:archive/2025", SERVICE_VAULTS=vaults).stdout)
    given = printed["servers"]["stentor-memory"]["env"]
    assert (given["SERVICE_VAULTS"], given["SERVICE_MCP_NAMESPACES"]) == (vaults, "vault:archive/2025")


@requirement("memory_mcp.capabilities-known")
def test_a_mistyped_capability_stops_the_start_and_names_those_there_are(tmp_path: Path) -> None:
    ended = run("mcp", "--data-dir", str(tmp_path), SERVICE_MCP_CAPABILITIES="memory.read,memory:write")
    assert ended.returncode == 3
    for part in ("SERVICE_MCP_CAPABILITIES", "memory.read and memory.write", "'memory:write'"):
        assert part in ended.stderr


def run(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    env = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", **environ}
    return forkserver.run_text(arguments, env)
