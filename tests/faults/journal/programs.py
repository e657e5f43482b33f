"""Programs of a task, made from a seed: what they consist of, how a handler runs them, and their right result."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, Protocol

from stentor_worker import EffectFailed, StepFailed, Task

Node = dict[str, Any]
"""`kind`, `id` (unique within the root task), and for some kinds `nodes`, or `programs` of children."""
LEAVES = ("step", "step", "fails", "keys", "ask", "blind", "declined", "sleep", "signal", "early", "question")
EFFECTS = ("keys", "ask", "blind", "declined", "unprotected")
MAX_DEPTH = 2


class World(Protocol):
    """What a program reaches: `Outside`, or one in another process."""

    sleep_seconds: float

    def run(self, node_id: str) -> str: ...
    def acknowledge(self, node_id: str) -> None: ...
    def expect(self, task_id: str, signal: str) -> None: ...
    def send(self, key: str, node: Node) -> str: ...
    def find(self, key: str) -> str | None: ...


def make_program(dice: random.Random, size: int = 4, prefix: str = "", depth: int = 0) -> list[Node]:
    """Return a program of up to `size` nodes; children and groups are smaller."""
    return [_make_node(dice, f"{prefix}{n}", size, depth) for n in range(dice.randint(1 if depth else 2, size))]


def _make_node(dice: random.Random, node_id: str, size: int, depth: int) -> Node:
    kind = dice.choice((*LEAVES, *(("group", "child", "gather") if depth < MAX_DEPTH else ())))
    node: Node = {"kind": kind, "id": node_id}
    if kind in ("group", "child"):
        node["nodes"] = make_program(dice, max(1, size // 2), f"{node_id}.", depth + 1)
    if kind == "gather":
        node["programs"] = [make_program(dice, max(1, size // 2), f"{node_id}.{n}.", depth + 1) for n in range(2)]
    return node


def all_nodes(program: list[Node]) -> list[Node]:
    """Return all nodes of a program and of its children."""
    inner = [part for node in program for part in (node.get("nodes", []), *node.get("programs", []))]
    return [*program, *(node for part in inner for node in all_nodes(part))]


def expected(program: list[Node]) -> list[Any]:
    """Return the result of a program in which each step and each effect happens as it should."""
    return [_expected(node) for node in program]


def _expected(node: Node) -> Any:
    kind, node_id = node["kind"], node["id"]
    if kind in ("group", "child"):
        return expected(node["nodes"])
    if kind == "gather":
        return [expected(program) for program in node["programs"]]
    if kind in ("fails", "declined"):
        return f"caught {node_id}"
    return None if kind == "sleep" else value_of(node_id)


def check_effects(program: list[Node], sent: Mapping[str, Sequence[object]]) -> Iterator[str]:
    """Say what is wrong with how often each effect happened."""
    for node in all_nodes(program):
        times = sent.get(node["id"], [])
        if node["kind"] in EFFECTS and len(times) != (node["kind"] != "declined"):
            yield f"the effect {node['id']} ({node['kind']}) happened {len(times)} times: {times}"


def value_of(node_id: str) -> str:
    """Return the value of a step, an effect, a signal or an answer."""
    return f"value {node_id}"


@dataclass
class Outside:
    """What the steps and effects of the programs reach. Thread-safe."""

    runs: Counter[str] = field(default_factory=Counter)
    """How often the function of a step ran, by the node."""
    again: list[str] = field(default_factory=list)
    """Steps whose function ran although their record was acknowledged before."""
    sent: dict[str, list[str]] = field(default_factory=dict)
    """The keys with which an effect happened, by the node: one if it happened once."""
    sleep_seconds: float = 60
    _acknowledged: set[str] = field(default_factory=set)
    _lock: Lock = field(default_factory=Lock)

    def run(self, node_id: str) -> str:
        with self._lock:
            self.runs[node_id] += 1
            if node_id in self._acknowledged:
                self.again.append(node_id)
        return value_of(node_id)

    def acknowledge(self, node_id: str) -> None:
        """Note that the program has got the value of a step."""
        with self._lock:
            self._acknowledged.add(node_id)

    def expect(self, task_id: str, signal: str) -> None:
        """Note that a task is about to wait for a signal."""

    def send(self, key: str, node: Node) -> str:
        """Do an effect; with `keys` the other side repeats none that it knows. Raises EffectFailed if it declines."""
        if node["kind"] == "declined":
            raise EffectFailed("no")
        with self._lock:
            sent = self.sent.setdefault(node["id"], [])
            if not (node["kind"] == "keys" and key in sent):
                sent.append(key)
        return value_of(node["id"])

    def find(self, key: str) -> str | None:
        """Return the value of the effect with this key; None if none happened."""
        with self._lock:
            return next((value_of(node_id) for node_id, keys in self.sent.items() if key in keys), None)


def run_program(task: Task, program: list[Node], outside: World) -> list[Any]:
    """Run a program in a handler."""
    return [_run_node(task, node, outside) for node in program]


def _run_node(task: Task, node: Node, outside: World) -> Any:
    kind, node_id = node["kind"], node["id"]
    if kind in EFFECTS or kind in ("step", "fails"):
        return _run_caught(task, node, outside)
    if kind == "group":
        return task.step("group", run_program, task, node["nodes"], outside)
    if kind == "sleep":
        return task.sleep(outside.sleep_seconds)
    if kind in ("signal", "early"):
        outside.expect(task.id, f"signal {node_id}")
        return task.wait_for(f"signal {node_id}")
    if kind == "question":
        return task.ask(f"question {node_id}")
    if kind == "child":
        return task.child("program", node["nodes"], capabilities=["program"])
    return task.gather(*[task.start_child("program", part, capabilities=["program"]) for part in node["programs"]])


def _run_caught(task: Task, node: Node, outside: World) -> Any:
    kind, node_id = node["kind"], node["id"]
    try:
        if kind == "step":
            value = task.step("step", outside.run, node_id)
            outside.acknowledge(node_id)
            return value
        if kind == "fails":
            return task.step("fails", _fail, outside, node_id)
        if kind == "unprotected":  # as many do it: an effect in a step
            return task.step("pay", outside.send, f"{task.id} {task.epoch}", node)
        check = outside.find if kind == "ask" else None
        return task.effect("pay", outside.send, node, check=check, idempotent=kind == "keys")
    except StepFailed:
        return f"caught {node_id}"


def _fail(outside: World, node_id: str) -> None:
    outside.run(node_id)
    raise ValueError("no")
