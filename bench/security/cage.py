"""What a cage costs: a program in it against the same program without, and a call of a tool from inside."""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from bench.figures import Figure, at_most, percentile, spread
from bench.sizes import Scale
from stentor.bootstrap.kernel import build
from stentor.core import migrations, settings
from stentor.core.clock import SystemClock
from stentor.core.db import Database
from stentor.core.db.sqlite.driver import SqliteDriver
from stentor.domains.registry.model import AllowedTool, SandboxWhitelist
from stentor.domains.registry.service import AgentDraft
from stentor.domains.sandbox.broker.model import SandboxRun
from stentor.domains.sandbox.bubblewrap import RunPlan, SandboxOptions
from stentor.domains.sandbox.process_sandbox import ProcessSandbox, RunFolders

TITLE = "cages of command agents"
CALLER = """
import json, os, socket, sys, time
s = socket.socket(socket.AF_UNIX); s.connect(os.environ["STENTOR_TOOLS"]); w = s.makefile("rwb")
line = json.dumps({"tool": "read_file", "arguments": {"path": "note.txt"}}).encode() + b"\\n"
took = []
for _ in range(int(sys.argv[1])):
    began = time.perf_counter_ns()
    w.write(line); w.flush()
    assert json.loads(w.readline())["ok"]
    took.append((time.perf_counter_ns() - began) / 1e6)
print(json.dumps(took))
"""


def run(scale: Scale) -> list[Figure]:
    with _folder() as folder:
        return asyncio.run(_measure(scale, folder))


async def _measure(scale: Scale, folder: Path) -> list[Figure]:
    cage, bare = _open(folder / "on"), _open(folder / "off", on=False)
    count = scale.pick(60, 5)
    over, caged, plain = [], [], []
    for _ in range(scale.pick(scale.rounds, 2)):
        with_, without = await _starts(cage, count), await _starts(bare, count)
        caged += with_
        plain += without
        over.append(median(with_) - median(without))
    calls = await _calls(folder, scale.pick(2_000, 50))
    how = f"`true` under the limits, to its end, its folder made and removed, {len(caged)} times each, in turns"
    call = f"{len(calls):,} calls of `read_file` from a caged program, one after the other, each event committed"
    return [
        Figure("a cage over the plain process p50", median(over), "ms", how, at_most(20), spread(over)),
        Figure("run in a cage p50", median(caged), "ms", "the same runs", note=f"fastest {min(caged):.1f}"),
        Figure("run without a cage p50", median(plain), "ms", "the same runs"),
        Figure("tool call p50", median(calls), "ms", call, at_most(2)),
        Figure("tool call p99", percentile(calls, 0.99), "ms", "the same calls"),
    ]


def _open(folder: Path, *, on: bool = True) -> ProcessSandbox:
    cage = ProcessSandbox(folder, {}, enabled=on)
    cage.open()
    cage.require_host()
    return cage


async def _starts(cage: ProcessSandbox, count: int) -> list[float]:
    """Milliseconds of each run."""
    return [await _start(cage) for _ in range(count)]


async def _start(cage: ProcessSandbox) -> float:
    began = time.perf_counter_ns()
    async with cage.run_folders() as room, cage.start(_plan(room, "true"), 1_000) as caged:
        caged.write_stdin(b"")
        assert await caged.wait_exit_code() == 0
    return (time.perf_counter_ns() - began) / 1e6


def _plan(room: RunFolders, *command: str) -> RunPlan:
    return RunPlan(
        command, room.work_folder, SandboxOptions(), 600, room.socket_path if room.socket_path.exists() else None
    )


async def _calls(folder: Path, count: int) -> list[float]:
    """Milliseconds of each call, as the program sees them."""
    environ = {"SERVICE_DATA_DIR": str(folder), "SERVICE_CAGE_DIR": str(folder / "calls"), "SERVICE_MEMORY": "0"}
    chosen = settings.load({**environ, "SERVICE_COMMAND_AGENTS": "1", "SERVICE_BUILTIN_AGENTS": "0"})
    driver = SqliteDriver(folder / "stentor.db")
    migrations.upgrade(driver)
    kernel = build(chosen, Database(driver), SystemClock())
    assert kernel.command_agents.command is not None
    try:
        allowed = SandboxWhitelist((AllowedTool("read_file", ("**",), ("read",)),))
        agent = await kernel.agents.registry.register("default", AgentDraft("ann", sandbox_whitelist=allowed), "system")
        async with kernel.command_agents.sandbox.run_folders() as room:
            (room.work_folder / "note.txt").write_text("Salt comes from rocks.")
            event = agent.agent_id
            run = SandboxRun(
                "default", agent.agent_id, "ann", "none", "bench", event, room.work_folder, lambda tx: None
            )
            async with kernel.command_agents.command.broker.serve(run, room.socket_path):
                plan = _plan(room, "python3", "-c", CALLER, str(count))
                async with kernel.command_agents.sandbox.start(plan, 10_000_000) as caged:
                    caged.write_stdin(b"")
                    text = b"".join([chunk async for chunk in caged.read_stdout()])
        found: list[float] = json.loads(text)
        return found
    finally:
        await kernel.stop()


@contextmanager
def _folder() -> Iterator[Path]:
    """Where the caged user can get to."""
    made = Path(tempfile.mkdtemp(prefix="stentor-cage-"))
    made.chmod(0o711)
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)
