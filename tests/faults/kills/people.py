"""The people around the service: they submit, answer, send signals, look up held effects and retry."""

from __future__ import annotations

import random
import time
from collections import Counter
from typing import Any
from urllib.parse import quote

import httpx

from tests.faults.journal.programs import Node, all_nodes, make_program
from tests.faults.kills.ledger import Ledger
from tests.faults.kills.members import KEY

PAUSE_SECONDS = 0.05
GIVE_UP_SECONDS = 120
LOOKS = 6
"""Open tasks that are looked at in a turn."""


class People:
    """Repeat each request until it has a response, at one gateway or another."""

    def __init__(self, addresses: list[str], ledger: Ledger, seed: int, *, plants_doubles: bool = False) -> None:
        self._clients = [httpx.Client(base_url=a, headers={"X-API-Key": KEY}, timeout=30) for a in addresses]
        self._ledger, self._seed, self._plants_doubles = ledger, seed, plants_doubles
        self.programs: dict[str, list[Node]] = {}
        """What was submitted, by the id of the task."""
        self.open: set[str] = set()
        """Tasks of these that have not completed."""
        self.wrong: list[str] = []
        self.done: Counter[str] = Counter()
        self._resolved: set[str] = set()
        """Tasks whose held effect was shown and looked up, and which are not retried yet."""

    def close(self) -> None:
        for client in self._clients:
            client.close()

    def send(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Return status and JSON of the response."""
        ends, at = time.monotonic() + GIVE_UP_SECONDS, random.randrange(len(self._clients))
        while time.monotonic() < ends:
            at = (at + 1) % len(self._clients)
            try:
                answer = self._clients[at].request(method, f"/api/v1{path}", json=body)
            except httpx.TransportError:
                time.sleep(PAUSE_SECONDS)
                continue
            if answer.status_code == 503:
                time.sleep(PAUSE_SECONDS)
                continue
            if answer.status_code >= 500:
                self.wrong.append(f"{method} {path} was answered with {answer.status_code}: {answer.text[:500]}")
            return answer.status_code, answer.json()
        raise AssertionError(f"{method} {path} has had no response for {GIVE_UP_SECONDS} s")

    def register(self) -> str:
        """Register the agent of the workers; return its id."""
        body = {"name": "runner", "capabilities": ["program"], "runtime": {"kind": "worker"}}
        _, made = self.send("POST", "/registry/agents", body)
        while "agent_id" not in made:  # the response to a request that arrived was lost
            _, listed = self.send("GET", "/registry/agents?capability=program")
            made = listed["agents"][0]
        return str(made["agent_id"])

    def submit(self) -> None:
        """Submit the next program."""
        name = f"case-{self._seed}-{len(self.programs)}"
        program = make_program(random.Random(f"{self._seed} {name}"), prefix=f"{name}/")
        if self._plants_doubles:
            program = [{"kind": "unprotected", "id": f"{name}/{at}"} for at in range(5)]
        self.programs[name] = program
        body = {"id": name, "type": "program", "input": program, "required_capabilities": ["program"]}
        status, answer = self.send("POST", "/tasks", body)
        if status != 202 and status != 200:
            self.wrong.append(f"the task {name} was answered with {status}: {answer}")
        self.open.add(name)
        for node in program:
            if node["kind"] == "early":
                self._signal(name, f"signal {node['id']}")

    def attend(self) -> None:
        """Do once what there is to do."""
        for task_id, name in self._ledger.take_expected():
            self._signal(task_id, name)
        failed = [self._read(task["task_id"]) for status in ("failed", "aborted") for task in self._list(status)]
        _, decisions = self.send("GET", "/decisions?limit=500")
        shown = {step["task_id"] for step in decisions["steps"] if step["kind"] == "effect"}
        for task in failed:
            if _code(task) == "EFFECT_UNKNOWN" and task["task_id"] not in shown | self._resolved:
                self.wrong.append(f"the task {task['task_id']} holds an effect that no list shows")
        for step in decisions["steps"]:
            self._decide(step)
        for task in failed:
            self.done[f"retried after {_code(task)}"] += 1
            self._resolved.discard(task["task_id"])
            self.send("POST", f"/tasks/{task['task_id']}/retry")
        looked_at = random.sample(sorted(self.open), min(LOOKS, len(self.open)))
        self.open -= {task_id for task_id in looked_at if self._read(task_id)["status"] == "completed"}

    def _list(self, status: str) -> list[dict[str, Any]]:
        _, found = self.send("GET", f"/tasks?status={status}&limit=100")
        return list(found["tasks"])

    def _decide(self, step: dict[str, Any]) -> None:
        task_id = step["task_id"]
        path = f"/tasks/{task_id}/steps/{quote(step['key'], safe='')}"
        if step["kind"] == "question":
            self.done["answers"] += 1
            self.send("POST", f"{path}/answer", {"value": step["waits_for"].replace("question", "value")})
            return
        value = self._ledger.look_up(task_id, step["provenance_id"])
        self._resolved.add(task_id)
        fact = {"happened": value is not None, "reason": "looked it up"}
        status, _ = self.send("POST", f"{path}/resolve", fact | ({} if value is None else {"value": value}))
        self.done[f"held effects that {'had' if value else 'had not'} happened"] += status < 300

    def _signal(self, task_id: str, name: str) -> None:
        self.done["signals"] += 1
        self.send("POST", f"/tasks/{task_id}/signals", {"name": name, "value": name.replace("signal", "value")})

    def _read(self, task_id: str) -> dict[str, Any]:
        _, task = self.send("GET", f"/tasks/{task_id}")
        return dict(task)

    def nodes(self) -> list[Node]:
        return [node for program in self.programs.values() for node in all_nodes(program)]


def _code(task: dict[str, Any]) -> str:
    return str((task.get("error") or {}).get("code"))
