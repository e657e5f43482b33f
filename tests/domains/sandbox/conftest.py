"""A service with command agents in real cages. Its folders lie where the caged user can get to."""

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
def cage_dir() -> Iterator[Path]:
    """The service's folder of cages; skips by name where there is no bubblewrap."""
    need("bwrap")
    need("/usr/bin/python3")
    folder = Path(tempfile.mkdtemp(prefix="stentor-cage-"))
    folder.chmod(0o711)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@dataclass
class Caged:
    world: World
    folder: Path
    agents: dict[str, str] = field(default_factory=dict)

    async def register(
        self, *command: str, name: str = "ann", tools: Any = (), network: Any = None, **more: Any
    ) -> str:
        """An agent that runs this command; answers its id."""
        whitelist = {"tools": list(tools), "network": network or {"allowlist": [], "ports": []}}
        options = more.pop("options", {})
        runtime = {"kind": "command", "command": list(command), "options": options}
        agent = await self.world.register(name, runtime=runtime, sandbox_whitelist=whitelist, **more)
        self.agents[name] = agent
        return agent

    async def python(self, code: str, **more: Any) -> str:
        return await self.register("python3", "-c", PRELUDE + code, **more)

    async def do(self, **fields: Any) -> dict[str, Any]:
        """Submit a task and wait for its end."""
        return await self.world.ended(await self.world.submit(**fields))

    async def result(self, code: str, **more: Any) -> Any:
        """What a Python program answers as the result of one task."""
        await self.python(code, **more)
        task = await self.do()
        assert task["status"] == "completed", task["error"]
        return task["result"]

    async def violations(self, name: str = "ann") -> list[str]:
        answer = await self.world.admin.get(f"/api/v1/registry/agents/{self.agents[name]}/violations")
        return [one["type"] for one in answer.json()["violations"]]

    async def status(self, name: str = "ann") -> str:
        answer = await self.world.admin.get(f"/api/v1/registry/agents/{self.agents[name]}")
        return str(answer.json()["status"])


MakeCaged = Callable[..., Any]


@pytest.fixture
async def make_caged(make_world: MakeWorld, cage_dir: Path) -> MakeCaged:
    async def make(**environ: str) -> Caged:
        chosen = {"SERVICE_COMMAND_AGENTS": "1", "SERVICE_CAGE_DIR": str(cage_dir), **environ}
        world = await make_world(**chosen)
        return Caged(world, cage_dir)

    return make


@pytest.fixture
async def caged(make_caged: MakeCaged) -> Caged:
    made: Caged = await make_caged()
    return made
