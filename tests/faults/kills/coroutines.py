"""Programs of a coroutine handler, made from a seed: timeouts, races, groups, `finally`, and what runs side by side.

Where the way of a program depends on which comes first, an effect follows on either way. So a program that takes
another way in a later attempt does both, or returns something else than it did.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from stentor_worker import StepFailed, Task, WaitTimeout
from tests.faults.journal.programs import Node, all_nodes, value_of
from tests.faults.kills.ledger import RemoteOutside

STEPS = ("step", "step", "many", "fails", "large", "slow")
EFFECTS = ("keys", "ask", "blind", "declined", "late")
WAITS = ("sleep", "signal", "early", "question", "options", "signal or timeout")
TIMEOUTS = (
    "hung",
    "hung or wait",
    "hung in a group",
    "hung beside a wait in a group",
    "nested",
    "race",
    "race of a group",
    "finally",
)
INNER = (
    "step of steps",
    "gather",
    "asyncio.gather",
    "group",
    "group with a wait",
    "child",
    "children",
    "timeout around",
)
RACES = ("race", "race of a group", "signal or timeout")
"""The program goes one of two ways, which is chance in the first attempt that comes to its end."""
FALLBACKS = ("hung", "hung or wait", "hung in a group", "hung beside a wait in a group", "nested")
MAX_DEPTH = 2
HANGS_SECONDS, SHORT, RACE_SECONDS = 30, 0.15, 0.08


def make_coroutines(dice: random.Random, size: int = 4, prefix: str = "", depth: int = 0) -> list[Node]:
    """Return a program of up to `size` nodes; those within are smaller."""
    return [_make_node(dice, f"{prefix}{n}", size, depth) for n in range(dice.randint(1 if depth else 2, size))]


def _make_node(dice: random.Random, node_id: str, size: int, depth: int) -> Node:
    kinds = [STEPS, EFFECTS, WAITS, TIMEOUTS, *([INNER] * 2 if depth < MAX_DEPTH else [])]
    node: Node = {"kind": dice.choice(dice.choice(kinds)), "id": node_id}
    within, size = depth + 1, max(1, size // 2)
    if node["kind"] in ("step of steps", "child", "timeout around"):
        node["nodes"] = make_coroutines(dice, size, f"{node_id}.", within)
    elif node["kind"] in INNER:
        parts = range(dice.randint(2, 3))
        node["programs"] = [make_coroutines(dice, size, f"{node_id}.{n}.", within) for n in parts]
    return node


def is_right(program: list[Node], result: Any) -> bool:
    """Return whether a program may return this."""
    if not isinstance(result, list) or len(result) != len(program):
        return False
    return all(_is_right(node, value) for node, value in zip(program, result, strict=True))


def _is_right(node: Node, value: Any) -> bool:
    kind, node_id = node["kind"], node["id"]
    if "nodes" in node:
        return is_right(node["nodes"], value)
    if "programs" in node:
        parts = node["programs"]
        return isinstance(value, list) and len(value) == len(parts) and all(map(is_right, parts, value))
    if kind in RACES:
        return value in (value_of(f"{node_id}-first"), value_of(f"{node_id}-fallback"))
    if kind in FALLBACKS:
        return bool(value == value_of(f"{node_id}-fallback"))
    if kind in ("fails", "declined", "finally"):
        return bool(value == f"caught {node_id}")
    return bool(value == {"sleep": None, "many": 12, "options": "yes"}.get(kind, value_of(node_id)))


def check_coroutine_effects(program: list[Node], sent: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Say what is wrong with how often each effect happened."""
    for node in all_nodes(program):
        kind, node_id = node["kind"], node["id"]
        if kind in RACES:
            ways = [f"{node_id}-first", f"{node_id}-fallback"]
        elif kind in (*FALLBACKS, "finally"):
            ways = [f"{node_id}-fallback"]
        elif kind in EFFECTS:
            ways = [node_id]
        else:
            continue
        times = [key for way in ways for key in sent.get(way, ())]
        if len(times) != (kind != "declined"):
            yield f"the effect of {node_id} ({kind}) happened {len(times)} times: {times}"


class Run:
    """An attempt at a program."""

    def __init__(self, task: Task, outside: RemoteOutside) -> None:
        self._task, self._outside = task, outside

    async def program(self, nodes: list[Node]) -> list[Any]:
        return [await self._node(node) for node in nodes]

    async def _node(self, node: Node) -> Any:
        kind = node["kind"]
        if "nodes" in node or "programs" in node:
            value = await self._inner(node)
        elif kind in EFFECTS:
            value = await self._caught_effect(node)
        elif kind in WAITS:
            value = await self._wait(node)
        elif kind in TIMEOUTS:
            value = await self._timeout(node)
        else:
            value = await self._steps(node)
        # An effect in `finally` may have happened where an attempt ended, before the step had an outcome.
        self._outside.settle(node["id"], value, runs_again=kind in ("fails", "finally"))
        return value

    async def _step(self, name: str, *, seconds: float = 0) -> Any:
        """A step that takes so long."""
        value = await self._task.step(f"step {name}", self._run, name, seconds)
        self._outside.acknowledge(name)
        return value

    async def _run(self, name: str, seconds: float) -> str:
        self._outside.run(name)
        await asyncio.sleep(seconds)
        return value_of(name)

    async def _hung(self, name: str) -> Any:
        return await self._task.step(f"hung {name}", self._run, name, HANGS_SECONDS)

    async def _effect(self, name: str, kind: str = "keys", seconds: float = 0) -> Any:
        node = {"kind": kind, "id": name}

        async def send(key: str) -> str:
            if seconds:
                await asyncio.sleep(seconds)
            return self._outside.send(key, node)

        check = self._outside.find if kind == "ask" else None
        return await self._task.effect(f"pay {name}", send, check=check, idempotent=kind == "keys")

    async def _steps(self, node: Node) -> Any:
        kind, node_id = node["kind"], node["id"]
        if kind == "many":
            return len(await asyncio.gather(*(self._step(f"{node_id}-{n}") for n in range(12))))
        if kind == "fails":
            try:
                return await self._task.step(f"fails {node_id}", self._fail, node_id)
            except StepFailed:
                return f"caught {node_id}"
        if kind == "large":
            value = await self._task.step(f"large {node_id}", self._long, node_id)
            return value_of(node_id) if value == [value_of(node_id)] * 2_000 else value
        if kind == "slow":
            async with asyncio.timeout(HANGS_SECONDS * 4):
                return await self._step(node_id, seconds=0.05)
        return await self._step(node_id, seconds=random.choice((0, 0, 0.02)))

    async def _fail(self, node_id: str) -> None:
        self._outside.run(node_id)
        raise ValueError("no")

    async def _long(self, node_id: str) -> list[str]:
        return [value_of(node_id)] * 2_000

    async def _caught_effect(self, node: Node) -> Any:
        kind, node_id = node["kind"], node["id"]
        try:
            if kind == "late":
                # The timeout comes while it is sent; the effect has its value all the same.
                try:
                    async with asyncio.timeout(SHORT / 2):
                        value = await self._effect(node_id, seconds=SHORT)
                except TimeoutError:
                    return value_of(node_id)
                return value
            return await self._effect(node_id, kind)
        except StepFailed:
            return f"caught {node_id}"

    async def _wait(self, node: Node) -> Any:
        task, kind, node_id = self._task, node["kind"], node["id"]
        if kind == "sleep":
            return await task.sleep(self._outside.sleep_seconds, name=f"sleep {node_id}")
        if kind in ("question", "options"):
            options = ["yes", "no"] if kind == "options" else None
            return await task.ask(f"question {node_id}", options, name=f"question {node_id}")
        self._outside.expect(task.id, f"signal {node_id}")
        if kind == "signal or timeout":
            try:
                await task.wait_for(f"signal {node_id}", self._outside.sleep_seconds * 2)
            except WaitTimeout:
                return await self._effect(f"{node_id}-fallback")
            return await self._effect(f"{node_id}-first")
        return await task.wait_for(f"signal {node_id}")

    async def _timeout(self, node: Node) -> Any:
        kind, node_id = node["kind"], node["id"]
        try:
            if kind == "finally":
                try:
                    async with asyncio.timeout(SHORT):
                        await self._hung(node_id)
                finally:
                    await self._effect(f"{node_id}-fallback")
                    await self._step(f"{node_id}-end")
            elif kind == "nested":
                async with asyncio.timeout(SHORT), asyncio.timeout(SHORT * random.choice((0.5, 1, 1.0001))):
                    await self._hung(node_id)
            elif kind == "hung in a group":
                async with asyncio.timeout(SHORT), asyncio.TaskGroup() as group:
                    group.create_task(self._hung(node_id))
                    group.create_task(self._step(f"{node_id}-b"))
            elif kind == "hung beside a wait in a group":
                async with asyncio.timeout(SHORT * 2), asyncio.TaskGroup() as group:
                    group.create_task(self._hung(node_id))
                    group.create_task(self._task.sleep(1, name=f"sleep {node_id}"))
            elif kind == "hung or wait":
                async with asyncio.timeout(SHORT * 2):
                    sleep = self._task.sleep(3600, name=f"abandoned {node_id}")
                    await self._task.gather(self._hung(node_id), sleep)
            elif kind == "race":
                async with asyncio.timeout(RACE_SECONDS):
                    await self._step(node_id, seconds=RACE_SECONDS)
            elif kind == "race of a group":
                # A timeout directly around a group can end it when no step is left to record that.
                async with asyncio.timeout(RACE_SECONDS):
                    await self._task.step(f"group {node_id}", self._race_of_a_group, node_id)
            else:
                await asyncio.wait_for(self._hung(node_id), SHORT)
        except TimeoutError:
            if kind == "finally":
                return f"caught {node_id}"
            return await self._effect(f"{node_id}-fallback")
        return await self._effect(f"{node_id}-first")

    async def _race_of_a_group(self, node_id: str) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._step(node_id, seconds=RACE_SECONDS))
            group.create_task(self._step(f"{node_id}-b", seconds=RACE_SECONDS))

    async def _inner(self, node: Node) -> Any:
        task, kind, node_id = self._task, node["kind"], node["id"]
        if kind == "step of steps":
            return await task.step(f"within {node_id}", self.program, node["nodes"])
        if kind == "timeout around":
            async with asyncio.timeout(3600):
                return await self.program(node["nodes"])
        if kind == "child":
            return await task.child("program", node["nodes"], capabilities=["coroutines"])
        if kind == "children":
            parts = node["programs"]
            children = [await task.start_child("program", part, capabilities=["coroutines"]) for part in parts]
            return await task.gather(*children)
        parts = [task.step(f"branch {node_id} {n}", self.program, part) for n, part in enumerate(node["programs"])]
        if kind == "gather":
            return await task.gather(*parts)
        if kind == "asyncio.gather":
            return list(await asyncio.gather(*parts))
        async with asyncio.TaskGroup() as group:
            running = [group.create_task(part) for part in parts]
            if kind == "group with a wait":
                group.create_task(task.sleep(0.02, name=f"sleep {node_id}"))
        return [one.result() for one in running]
