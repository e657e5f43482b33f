"""`stentor-tool`, the broker client: as a command in a sandbox, and as an MCP server."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from mcp import Client, StdioServerParameters, stdio_client

from stentor.domains.sandbox.process_sandbox import TOOL_SCRIPT
from tests.domains.sandbox.conftest import FILES, SandboxedService
from tests.patience import soon
from tests.requirements import requirement


@requirement("sandbox.tool-command")
async def test_shell_script_calls_tools(sandbox: SandboxedService) -> None:
    script = (
        "stentor-tool write_file path=a.txt content='two words' > /dev/null\n"
        "text=$(stentor-tool read_file path=a.txt limit:=3)\n"
        "stentor-tool read_file path=../x 2> denied; code=$?\n"
        "stentor-tool 2>/dev/null >&2; usage=$?\n"
        "stentor-tool read_file path 2>/dev/null; wrong=$?\n"
        "stentor-tool list_files --operation list > listed\n"
        'echo "{\\"result\\": [$text, $code, $(cat denied), $usage, $wrong, $(cat listed)]}"'
    )
    await sandbox.register("sh", "-c", script, tools=FILES)
    task = await sandbox.do()
    text, code, denied, usage, wrong, listed = task["result"]
    assert (text["content"], code, denied["code"]) == ("two", 1, "TOOL_DENIED")
    assert (usage, wrong) == (2, 2)
    assert {entry["name"] for entry in listed["entries"]} == {"a.txt", "denied", "listed"}


@asynccontextmanager
async def running_task_socket(sandbox: SandboxedService) -> AsyncIterator[Path]:
    """Start a run and yield the path of its tool socket."""
    task_id = await sandbox.world.submit()
    sockets = await soon(lambda: list((sandbox.folder / "runs").glob("*/tools.sock")))
    yield sockets[0]
    await sandbox.world.admin.post(f"/api/v1/tasks/{task_id}/cancel")


@requirement("sandbox.tool-mcp")
async def test_official_mcp_client_lists_and_calls_tools(sandbox: SandboxedService) -> None:
    await sandbox.register("sleep", "600", tools=FILES)
    async with running_task_socket(sandbox) as socket:
        command = StdioServerParameters(
            command=sys.executable, args=[str(TOOL_SCRIPT), "mcp"], env={"STENTOR_TOOLS": str(socket)}
        )
        async with Client(stdio_client(command)) as client:
            listed = await client.list_tools()
            assert [tool.name for tool in listed.tools] == ["list_files", "read_file", "write_file"]
            written = await client.call_tool("write_file", {"path": "a", "content": "hi"})
            assert not written.is_error
            assert written.structured_content == {"path": "a", "size": 2}
            denied = await client.call_tool("shell", {})
            assert denied.is_error
            assert "TOOL_DENIED" in str(denied.content)
    assert await sandbox.violations() == ["unauthorized_tool"]


@requirement("sandbox.tool-mcp")
async def test_mcp_server_works_inside_the_sandbox(sandbox: SandboxedService) -> None:
    lines = [
        {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": "2025-06-18"}},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "list_files", "arguments": {}}},
        {"jsonrpc": "2.0", "id": 3, "method": "no/such"},
        {"jsonrpc": "2.0", "id": 4, "method": "tools/call", "params": [1]},
        [1],
    ]
    text = "\n".join(json.dumps(line) for line in lines) + "\n{\n"
    result = await sandbox.result(
        f"done = subprocess.run(['stentor-tool', 'mcp'], input={text!r}, capture_output=True, text=True)\n"
        "answer([done.returncode, [json.loads(line) for line in done.stdout.splitlines()]])",
        tools=FILES,
    )
    code, responses = result
    assert code == 0
    assert [response.get("id") for response in responses] == [1, 2, 3, 4, None, None]
    assert responses[0]["result"]["protocolVersion"] == "2025-06-18"
    assert responses[1]["result"]["structuredContent"]["path"] == "."
    assert [response["error"]["code"] for response in responses[2:]] == [-32601, -32602, -32600, -32700]


@requirement("sandbox.tool-command")
async def test_tool_command_without_a_broker_returns_no_answer(driver: Any, tmp_path: Path) -> None:
    environ = {**os.environ, "STENTOR_TOOLS": str(tmp_path / "none.sock")}
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(TOOL_SCRIPT), "read_file", "path=a", env=environ, stderr=asyncio.subprocess.PIPE
    )
    _, errors = await process.communicate()
    assert (process.returncode, json.loads(errors)["code"]) == (1, "NO_ANSWER")
