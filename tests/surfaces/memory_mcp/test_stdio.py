"""The stdio transport of the governed memory, in a process that the official client starts."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from mcp import Client, StdioServerParameters, stdio_client

from tests import forkserver
from tests.conftest import Service
from tests.requirements import requirement
from tests.surfaces.memory_mcp.conftest import MODES, call, denials

LAUNCH = {
    "SERVICE_MCP_PRINCIPAL": "desk",
    "SERVICE_MCP_NAMESPACES": "team, notes",
    "SERVICE_MCP_CAPABILITIES": "memory.read,memory.write",
    "SERVICE_EMBEDDING_MODEL": "none",
}


@asynccontextmanager
async def start_client(data_dir: Path, mode: str = MODES[0], **environ: str) -> AsyncIterator[Client]:
    env = {"PATH": os.environ["PATH"], "HOME": str(data_dir.parent), **LAUNCH, **environ}
    program = forkserver.script(data_dir.parent)
    command = StdioServerParameters(command=str(program), args=["mcp", "--data-dir", str(data_dir)], env=env)
    async with Client(stdio_client(command), mode=mode) as client:
        yield client


@requirement("memory_mcp.stdio-default", "memory_mcp.two-revisions")
@pytest.mark.parametrize("mode", MODES)
async def test_client_starts_the_server_and_uses_the_memory(tmp_path: Path, mode: str) -> None:
    async with start_client(tmp_path / "data", mode) as client:
        assert len((await client.list_tools()).tools) == 4
        assert (await call(client, "write-memory", namespace="team", key="a", content="x"))["disposition"] == "created"
        assert await call(client, "read-memory", namespace="other", key="a") == "AUTHORITY_DENIED"
    assert (tmp_path / "data/vault/Memory/team/a.md").read_text() == "x"
    assert '"by":"desk"' in denials(tmp_path / "data/stentor.db")[0]
    assert (tmp_path / "data/stentor.lock").read_bytes() == b""


@requirement("memory_mcp.stdio-default")
def test_the_server_of_a_client_starts_without_the_modules_of_the_service() -> None:
    """Clients wait only seconds for the list of its tools, also on a busy machine."""
    unneeded = {"stentor.bootstrap", "stentor.core.db", "fastapi", "ruamel", "prometheus_client"}
    modules = "stentor.cli.main, stentor.cli.commands.memory.mcp, stentor.cli.mcp.server"
    program = f"import sys, {modules}; stentor.cli.mcp.server.server; print({unneeded!r} & set(sys.modules))"
    started = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=200)
    assert started.stdout == "set()\n", started.stderr


@requirement("memory_mcp.stdio-default")
async def test_calls_go_to_the_running_service_of_the_data_folder(service: Service) -> None:
    async with start_client(service.data_dir) as client:
        assert (await call(client, "write-memory", namespace="notes", key="a", content="x"))["version"] == 1
        assert (await call(client, "read-memory", namespace="notes", key="a"))["content"] == "x"
        assert await call(client, "read-memory", namespace="other", key="a") == "AUTHORITY_DENIED"
        assert await call(client, "read-memory", namespace="notes", key="b") == "NOT_FOUND"
    last_denial = json.loads(denials(service.database)[-1])
    assert (last_denial["by"], last_denial["issuer"], last_denial["namespace"]) == ("desk", "stentor", "other")


@requirement("memory_mcp.blank-evidence-denied")
@pytest.mark.parametrize(
    "blank", [{"SERVICE_MCP_PRINCIPAL": ""}, {"SERVICE_MCP_PRINCIPAL": " \u200b"}, {"SERVICE_MCP_CAPABILITIES": " , "}]
)
async def test_every_tool_is_denied_with_a_blank_launch_configuration(tmp_path: Path, blank: dict[str, str]) -> None:
    async with start_client(tmp_path / "data", **blank) as client:
        for tool in ("write-memory", "read-memory", "search-memory", "get-memory-status"):
            assert await call(client, tool, namespace="team", key="a", content="x") == "AUTHORITY_DENIED"
    assert len(denials(tmp_path / "data/stentor.db")) == 4
    assert not (tmp_path / "data/vault/Memory").exists()


@requirement("memory_mcp.blank-evidence-denied")
async def test_running_service_denies_a_blank_launch_configuration(service: Service) -> None:
    before = len(denials(service.database))
    for blank in ({"SERVICE_MCP_CAPABILITIES": ""}, {"SERVICE_MCP_PRINCIPAL": ""}):
        async with start_client(service.data_dir, **blank) as client:
            denied = await client.call_tool("read-memory", {"namespace": "notes", "key": "a"})
        error = denied.structured_content["error"]
        assert error["code"] == "AUTHORITY_DENIED"
        assert "its principal or its capabilities are blank" in error["message"]
        assert json.loads(denials(service.database)[-1])["reason"] == error["message"]
    assert len(denials(service.database)) == before + 2


def test_a_namespace_that_cannot_be_one_stops_the_start(tmp_path: Path) -> None:
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), **LAUNCH, "SERVICE_MCP_NAMESPACES": "team,a/../b"}
    done = forkserver.run_text(["mcp", "--data-dir", str(tmp_path / "data")], environ)
    expected = "error: SERVICE_MCP_NAMESPACES: 'a/../b' is not a valid namespace. Example: team/notes,vault.\n"
    assert (done.returncode, done.stderr) == (3, expected)


def test_printed_claude_desktop_configuration_starts_the_server(tmp_path: Path) -> None:
    install = run_stentor(
        "mcp", "install", "claude-desktop", "--namespace", "team", "--data-dir", str(tmp_path / "data")
    )
    server = json.loads(install.stdout)["mcpServers"]["stentor-memory"]
    assert server["env"] == {
        "SERVICE_MCP_PRINCIPAL": "claude-desktop",
        "SERVICE_MCP_NAMESPACES": "team",
        "SERVICE_MCP_CAPABILITIES": "memory.read,memory.write",
    }
    params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    initialize_message = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}) + "\n"
    command = [server["command"], *server["args"]]
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), **server["env"]}
    process = subprocess.run(command, input=initialize_message, capture_output=True, text=True, timeout=200, env=env)
    result = json.loads(process.stdout)["result"]
    assert result["serverInfo"]["name"] == "stentor-memory"
    assert result["instructions"].endswith(" The namespaces that you may use: team.")
    assert process.returncode == 0, process.stderr


def test_install_supports_three_clients_and_read_only_access(tmp_path: Path) -> None:
    data_dir_option = ["--data-dir", str(tmp_path)]
    namespace_options = ["--namespace", "team", "--namespace", "ann"]
    vscode = run_stentor(
        "mcp", "install", "vscode", "--read-only", "--principal", "me", *namespace_options, *data_dir_option
    )
    assert "lets 'me' read team, ann and everything below" in vscode.stderr
    env = json.loads(vscode.stdout)["servers"]["stentor-memory"]["env"]
    assert (env["SERVICE_MCP_PRINCIPAL"], env["SERVICE_MCP_CAPABILITIES"]) == ("me", "memory.read")
    code = run_stentor("mcp", "install", "claude-code", *namespace_options, *data_dir_option)
    # Claude Code adds a server to the folder in which the command is run, unless it is told another scope.
    assert "in the folder of your project, or with `--scope user`" in code.stderr
    words = shlex.split(code.stdout)
    assert words[:4] == ["claude", "mcp", "add", "stentor-memory"]
    assert words[-3:] == ["mcp", "--data-dir", str(tmp_path)]
    unknown = run_stentor("mcp", "install", "emacs", *namespace_options, *data_dir_option)
    assert (unknown.returncode, unknown.stdout) == (2, "")
    assert "vscode" in unknown.stderr


@requirement("memory_mcp.install-grants-what-is-named")
def test_install_grants_only_named_namespaces(tmp_path: Path) -> None:
    data_dir_option = ["--data-dir", str(tmp_path)]
    for namespace_options in ([], ["--namespace", "a,b"], ["--namespace", "../x"]):
        refused = run_stentor("mcp", "install", "claude-code", *namespace_options, *data_dir_option)
        assert (refused.returncode, refused.stdout) == (2, "")
    wildcard = run_stentor("mcp", "install", "claude-code", "--namespace", "*", *data_dir_option)
    assert "read and write every namespace except vaults" in wildcard.stderr


@requirement("memory_mcp.named-vaults")
def test_install_includes_named_vaults_and_rejects_unknown_ones(tmp_path: Path) -> None:
    arguments = ("mcp", "install", "vscode", "--data-dir", str(tmp_path), "--namespace")
    vaults = f"archive={tmp_path / 'archive'}"
    refused = run_stentor(*arguments, "vault:archiv/2025", SERVICE_VAULTS=vaults)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "'vault:archiv' is not a vault of SERVICE_VAULTS" in " ".join(refused.stderr.split())
    configuration = json.loads(run_stentor(*arguments, "vault:archive/2025", SERVICE_VAULTS=vaults).stdout)
    env = configuration["servers"]["stentor-memory"]["env"]
    assert (env["SERVICE_VAULTS"], env["SERVICE_MCP_NAMESPACES"]) == (vaults, "vault:archive/2025")


async def test_installed_client_of_a_service_on_postgresql_writes_to_no_other_database(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    arguments = ("mcp", "install", "vscode", "--namespace", "team", "--data-dir", str(data_dir))
    service = {"SERVICE_VAULT_TENANT": "acme", "SERVICE_AUTHORITY_AUDIENCE": "memory"}
    printed = run_stentor(*arguments, SERVICE_DATABASE_URL="postgresql://ann:s3cret@db/stentor", **service).stdout
    env = json.loads(printed)["servers"]["stentor-memory"]["env"]
    assert env.items() >= {"SERVICE_DATABASE_URL": "postgresql://ann@db/stentor", **service}.items()
    async with start_client(data_dir, **env) as client:
        assert await call(client, "write-memory", namespace="team", key="a", content="x") == "SERVICE_UNAVAILABLE"
    assert not (data_dir / "stentor.db").exists()


@requirement("memory_mcp.capabilities-known")
def test_unknown_capability_stops_the_start_and_lists_the_known_ones(tmp_path: Path) -> None:
    process = run_stentor("mcp", "--data-dir", str(tmp_path), SERVICE_MCP_CAPABILITIES="memory.read,memory:write")
    assert process.returncode == 3
    for part in ("SERVICE_MCP_CAPABILITIES", "memory.read and memory.write", "'memory:write'"):
        assert part in process.stderr


def run_stentor(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    env = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", **environ}
    return forkserver.run_text(arguments, env)
