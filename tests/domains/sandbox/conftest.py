"""A service with command agents in real sandboxes, in folders that the sandbox's user can reach."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import MakeWorld, World
from tests.system import need

TOOLS = ("read_file", "write_file", "list_files")
FILES = [
    {"name": "read_file", "paths": ["**"], "operations": ["read"]},
    {"name": "write_file", "paths": ["**"], "operations": ["write"]},
    {"name": "list_files", "paths": ["**"], "operations": ["list"]},
]
PRELUDE = """
import json, os, socket, subprocess, sys, time
task = json.load(sys.stdin)
wire = None
def call(tool, operation=None, **arguments):
    global wire
    if wire is None:
        link = socket.socket(socket.AF_UNIX)
        link.connect(os.environ["STENTOR_TOOLS"])
        wire = link.makefile("rwb")
    request = {"id": 1, "tool": tool, "arguments": arguments}
    if operation: request["operation"] = operation
    wire.write(json.dumps(request).encode() + b"\\n"); wire.flush()
    line = wire.readline()
    return json.loads(line) if line else None
def answer(result, **more):
    print(json.dumps({"result": result, **more}))
"""


@pytest.fixture
def sandbox_dir() -> Iterator[Path]:
    """The service's folder for sandboxes; skips the test where bubblewrap is missing."""
    need("bwrap")
    need("/usr/bin/python3")
    folder = Path(tempfile.mkdtemp(prefix="stentor-cage-"))
    folder.chmod(0o711)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@dataclass
class SandboxedService:
    """A service that runs command agents in sandboxes; `agents` maps names to ids."""

    world: World
    folder: Path
    agents: dict[str, str] = field(default_factory=dict)

    async def register(
        self, *command: str, name: str = "ann", tools: Any = (), network: Any = None, **more: Any
    ) -> str:
        """Register an agent that runs this command; return its id."""
        whitelist = {"tools": list(tools), "network": network or {"allowlist": [], "ports": []}}
        options = more.pop("options", {})
        runtime = {"kind": "command", "command": list(command), "options": options}
        agent = await self.world.register(name, runtime=runtime, sandbox_whitelist=whitelist, **more)
        self.agents[name] = agent
        return agent

    async def python(self, code: str, **more: Any) -> str:
        return await self.register("python3", "-c", PRELUDE + code, **more)

    async def do(self, **fields: Any) -> dict[str, Any]:
        """Submit a task and wait until it ends."""
        return await self.world.ended(await self.world.submit(**fields))

    async def result(self, code: str, **more: Any) -> Any:
        """Register an agent that runs this Python program; return the result of one task."""
        await self.python(code, **more)
        task = await self.do()
        assert task["status"] == "completed", task["error"]
        return task["result"]

    async def violations(self, name: str = "ann") -> list[str]:
        response = await self.world.admin.get(f"/api/v1/registry/agents/{self.agents[name]}/violations")
        return [violation["type"] for violation in response.json()["violations"]]

    async def status(self, name: str = "ann") -> str:
        response = await self.world.admin.get(f"/api/v1/registry/agents/{self.agents[name]}")
        return str(response.json()["status"])


MakeSandbox = Callable[..., Any]


@pytest.fixture
async def make_sandbox(make_world: MakeWorld, sandbox_dir: Path) -> MakeSandbox:
    async def make(**environ: str) -> SandboxedService:
        environment = {"SERVICE_COMMAND_AGENTS": "1", "SERVICE_CAGE_DIR": str(sandbox_dir), **environ}
        world = await make_world(**environment)
        return SandboxedService(world, sandbox_dir)

    return make


@pytest.fixture
async def sandbox(make_sandbox: MakeSandbox) -> SandboxedService:
    service: SandboxedService = await make_sandbox()
    return service
