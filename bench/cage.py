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
from stentor import bootstrap
from stentor.core import migrations, settings
from stentor.core.clock import SystemClock
from stentor.core.db import Database
from stentor.core.db.sqlite import SqliteDriver
from stentor.domains.registry.model import AllowedTool, SandboxWhitelist
from stentor.domains.registry.service import AgentDraft
from stentor.domains.sandbox.broker.model import Run
from stentor.domains.sandbox.cage.cage import Cage, Room
from stentor.domains.sandbox.cage.plan import Options, Plan

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


def _open(folder: Path, *, on: bool = True) -> Cage:
    cage = Cage(folder, {}, on=on)
    cage.open()
    cage.require()
    return cage


async def _starts(cage: Cage, count: int) -> list[float]:
    """Milliseconds of each run."""
    return [await _start(cage) for _ in range(count)]


async def _start(cage: Cage) -> float:
    began = time.perf_counter_ns()
    async with cage.room() as room, cage.running(_plan(room, "true"), 1_000) as caged:
        caged.feed(b"")
        assert await caged.code() == 0
    return (time.perf_counter_ns() - began) / 1e6


def _plan(room: Room, *command: str) -> Plan:
    return Plan(command, room.work, Options(), 600, room.socket if room.socket.exists() else None)


async def _calls(folder: Path, count: int) -> list[float]:
    """Milliseconds of each call, as the program sees them."""
    environ = {"SERVICE_DATA_DIR": str(folder), "SERVICE_CAGE_DIR": str(folder / "calls"), "SERVICE_MEMORY": "0"}
    chosen = settings.load({**environ, "SERVICE_COMMAND_AGENTS": "1", "SERVICE_BUILTIN_AGENTS": "0"})
    driver = SqliteDriver(folder / "stentor.db")
    migrations.upgrade(driver)
    kernel = bootstrap.build(chosen, Database(driver), SystemClock())
    assert kernel.commands.command is not None
    try:
        allowed = SandboxWhitelist((AllowedTool("read_file", ("**",), ("read",)),))
        agent = await kernel.registry.register("default", AgentDraft("ann", sandbox_whitelist=allowed), "system")
        async with kernel.commands.cage.room() as room:
            (room.work / "note.txt").write_text("Salt comes from rocks.")
            event = agent.agent_id
            run = Run("default", agent.agent_id, "ann", "none", "bench", event, room.work, lambda tx: None)
            async with kernel.commands.command.broker.serving(run, room.socket):
                plan = _plan(room, "python3", "-c", CALLER, str(count))
                async with kernel.commands.cage.running(plan, 10_000_000) as caged:
                    caged.feed(b"")
                    text = b"".join([chunk async for chunk in caged.chunks()])
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
