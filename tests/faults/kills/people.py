"""The people around the service: they submit, answer, send signals, look up held effects and retry."""

from __future__ import annotations

import random
import time
from collections import Counter
from typing import Any
from urllib.parse import quote

import httpx

from tests.faults.journal.programs import Node, all_nodes, make_program
from tests.faults.kills.coroutines import make_coroutines
from tests.faults.kills.ledger import Ledger
from tests.faults.kills.members import KEY

PAUSE_SECONDS = 0.05
GIVE_UP_SECONDS = 600
CAPABILITIES = ("program", "coroutines", "plain")
UNPROTECTED, LOST_ANSWER = "unprotected", "answer lost"
"""Flaws that a test plants here: programs that use no effects, and answers that are accepted and lost."""
ONLY = {UNPROTECTED: "unprotected", LOST_ANSWER: "question", "held repeated": "blind", "plain held repeated": "blind"}
"""What programs consist of alone, so that a flaw has its chance."""
RETRIED = ("EFFECT_UNKNOWN", "CHILD_FAILED")
"""What a program may fail with, until a person has looked up an effect."""
LOOKS = 6
"""Open tasks that are looked at in a turn."""


class People:
    """Repeat each request until it has a response, at one gateway or another."""

    def __init__(self, addresses: list[str], ledger: Ledger, seed: int, plant: str = "") -> None:
        self._clients = [httpx.Client(base_url=a, headers={"X-API-Key": KEY}, timeout=30) for a in addresses]
        self._ledger, self._seed, self._plant = ledger, seed, plant
        self.programs: dict[str, list[Node]] = {}
        """What was submitted, by the id of the task."""
        self.open: set[str] = set()
        """Tasks of these that have not completed."""
        self.wrong: list[str] = []
        self.done: Counter[str] = Counter()
        self._answered: set[tuple[str, str]] = set()
        """Questions, by task and key."""
        self._signalled: set[tuple[str, str]] = set()
        """Names of signals, by task: each is sent once, and kept until the task waits for it."""
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

    def register(self, capability: str) -> str:
        """Register the agent of workers; return its id."""
        body = {"name": f"runner of {capability}", "capabilities": [capability], "runtime": {"kind": "worker"}}
        _, made = self.send("POST", "/registry/agents", body)
        while "agent_id" not in made:  # the response to a request that arrived was lost
            _, listed = self.send("GET", f"/registry/agents?capability={capability}")
            made = listed["agents"][0]
        return str(made["agent_id"])

    def submit(self) -> None:
        """Submit the next program."""
        capability = CAPABILITIES[len(self.programs) % len(CAPABILITIES)]
        name = f"{capability}-{self._seed}-{len(self.programs)}"
        make = make_coroutines if capability == "coroutines" else make_program
        program = make(random.Random(f"{self._seed} {name}"), prefix=f"{name}/")
        if self._plant in ONLY:
            program = [{"kind": ONLY[self._plant], "id": f"{name}/{at}"} for at in range(5)]
        self.programs[name] = program
        body = {"id": name, "type": "program", "input": program, "required_capabilities": [capability]}
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
        _, decisions = self.send("GET", "/decisions?limit=500")
        again = self._answered & {(step["task_id"], step["key"]) for step in decisions["steps"]}
        self.wrong += [f"{task_id}: {key} was answered, and is asked again" for task_id, key in again]
        for task in failed:
            if _code(task) not in RETRIED:
                self.wrong.append(f"the task {task['task_id']} failed with {task['error']}")
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
            value = "yes" if step["options"] else step["waits_for"].replace("question", "value")
            is_lost = self._plant == LOST_ANSWER and random.random() < 0.5
            status, answer = (200, None) if is_lost else self.send("POST", f"{path}/answer", {"value": value})
            if status < 300:
                self._answered.add((task_id, step["key"]))
            elif status != 409:
                self.wrong.append(f"the answer to {task_id} {step['key']} was answered with {status}: {answer}")
            return
        value = self._ledger.look_up(task_id, step["provenance_id"])
        self._resolved.add(task_id)
        fact = {"happened": value is not None, "reason": "looked it up"}
        status, _ = self.send("POST", f"{path}/resolve", fact | ({} if value is None else {"value": value}))
        self.done[f"held effects that {'had' if value else 'had not'} happened"] += status < 300

    def _signal(self, task_id: str, name: str) -> None:
        if (task_id, name) in self._signalled:
            return
        self._signalled.add((task_id, name))
        self.done["signals"] += 1
        body = {"name": name, "value": name.replace("signal", "value")}
        status, answer = self.send("POST", f"/tasks/{task_id}/signals", body)
        if status >= 300 and status != 409:  # of a task that was cancelled
            self.wrong.append(f"the signal {name} for {task_id} was answered with {status}: {answer}")

    def _read(self, task_id: str) -> dict[str, Any]:
        _, task = self.send("GET", f"/tasks/{task_id}")
        return dict(task)

    def nodes(self) -> list[Node]:
        return [node for program in self.programs.values() for node in all_nodes(program)]


def _code(task: dict[str, Any]) -> str:
    return str((task.get("error") or {}).get("code"))
