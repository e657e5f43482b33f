"""The example agents in docs/sandbox.md work as written."""

from __future__ import annotations

import re
from pathlib import Path

from stentor.domains.sandbox.bubblewrap import SandboxOptions
from tests.domains.sandbox.conftest import FILES, MakeSandbox, SandboxedService
from tests.domains.sandbox.test_service_tools import MEMORY_TOOLS
from tests.patience import soon

PAGE = (Path(__file__).parents[3] / "docs" / "sandbox.md").read_text()


def code_block(language: str) -> str:
    match = re.search(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    assert match is not None
    return match[1]


async def test_python_example_agent_works(make_sandbox: MakeSandbox) -> None:
    sandbox: SandboxedService = await make_sandbox(SERVICE_MEMORY="1")
    tools = [{**tool, "paths": []} for tool in MEMORY_TOOLS]
    await sandbox.register("python3", "-c", code_block("python"), tools=tools)
    await soon(sandbox.world.memory.default.index.was_reconciled)
    task = await sandbox.do(input="salt")
    assert (task["status"], task["result"]) == ("completed", {"matches": [], "total": 0})


async def test_shell_example_agent_works(sandbox: SandboxedService) -> None:
    await sandbox.register("sh", "-c", code_block("sh"), tools=FILES)
    task = await sandbox.do(input="hello \\ world")
    assert task["status"] == "completed", task["error"]
    assert task["result"]["bytes"] > 50


def test_docs_name_every_option_and_tool(driver: object) -> None:
    for name in (
        *SandboxOptions.__struct_fields__,
        "read_file",
        "write_file",
        "list_files",
        "http_request",
        "memory_search",
    ):
        assert f"`{name}`" in PAGE, name
