"""The agents in docs/sandbox.md work as they stand there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from stentor.domains.sandbox.bubblewrap import SandboxOptions
from tests.domains.sandbox.conftest import FILES, Caged, MakeCaged
from tests.domains.sandbox.test_service_tools import MEMORY

PAGE = (Path(__file__).parents[3] / "docs" / "sandbox.md").read_text()
pytestmark = pytest.mark.parametrize("driver", ["sqlite"], indirect=True)


def block(language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    assert found is not None
    return found[1]


async def test_the_agent_in_python_works(make_caged: MakeCaged) -> None:
    caged: Caged = await make_caged(SERVICE_MEMORY="1")
    tools = [{**tool, "paths": []} for tool in MEMORY]
    await caged.register("python3", "-c", block("python"), tools=tools)
    task = await caged.do(input="salt")
    assert (task["status"], task["result"]) == ("completed", {"matches": [], "total": 0})


async def test_the_agent_in_sh_works(caged: Caged) -> None:
    await caged.register("sh", "-c", block("sh"), tools=FILES)
    task = await caged.do(input="hello \\ world")
    assert task["status"] == "completed", task["error"]
    assert task["result"]["bytes"] > 50


def test_every_tool_option_and_error_is_in_the_page(driver: object) -> None:
    for name in (
        *SandboxOptions.__struct_fields__,
        "read_file",
        "write_file",
        "list_files",
        "http_request",
        "memory_search",
    ):
        assert f"`{name}`" in PAGE, name
