"""A worker without the SDK: the calls that docs/steps-over-http.md lists, and nothing else.

It runs the programs of `tests.faults.journal`, one task at a time. Its keys of steps are the ids of nodes, with a slash
in each, so that paths need encoding.
"""

from __future__ import annotations

import http.client
import json
import random
import threading
import time
import uuid
from contextlib import closing, suppress
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote, urlsplit

from stentor_worker import EffectFailed
from tests.faults.journal.programs import EFFECTS, Node
from tests.faults.kills.ledger import RemoteOutside
from tests.faults.kills.mortality import Mortality

PAUSE_SECONDS = 0.05
CLAIM_SECONDS = 5
PAGE = 3
"""Steps on a page of the journal, so that it has several."""
Json = dict[str, Any]


class Ended(Exception):
    """The attempt ends here: what is said last of it is in `verb` and `body`, if anything is."""

    def __init__(self, verb: str = "", **body: Any) -> None:
        super().__init__(verb)
        self.verb, self.body = verb, body


class StepError(Exception):
    """The recorded error of a step, which the program may handle."""


class Connection:
    """Repeats each request until it has a response, at one service or another."""

    def __init__(self, addresses: list[str], key: str, mortality: Mortality) -> None:
        self._addresses, self._mortality = [urlsplit(address).netloc for address in addresses], mortality
        self._headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        self._at = random.randrange(len(addresses))

    def send(self, place: str, method: str, path: str, body: Json | None = None) -> tuple[int, Json]:
        while True:
            with suppress(OSError, http.client.HTTPException), self._mortality.around(place):
                status, text = self._send(method, path, body)
                if status != http.client.SERVICE_UNAVAILABLE:
                    return status, json.loads(text)
            self._at = (self._at + 1) % len(self._addresses)
            time.sleep(PAUSE_SECONDS)

    def _send(self, method: str, path: str, body: Json | None) -> tuple[int, bytes]:
        with closing(http.client.HTTPConnection(self._addresses[self._at], timeout=30)) as wire:
            wire.request(method, f"/api/v1{path}", None if body is None else json.dumps(body), self._headers)
            response = wire.getresponse()
            return response.status, response.read()


class PlainWorker:
    """Claims tasks and runs them, for ever."""

    def __init__(self, busy: Connection, idle: Connection, agent: str, lease_seconds: int) -> None:
        self._busy, self._idle, self._agent, self._lease_seconds = busy, idle, agent, lease_seconds

    def run(self, ledger: str, mortality: Mortality) -> None:
        claim = {"max": 1, "wait_seconds": CLAIM_SECONDS, "lease_seconds": self._lease_seconds}
        while True:
            _, claimed = self._idle.send("POST claims", "POST", f"/agents/{self._agent}/claims", claim)
            for task in claimed["tasks"]:
                who: Any = SimpleNamespace(id=task["task_id"], epoch=task["epoch"])
                with closing(RemoteOutside(who, ledger, mortality)) as outside:
                    self._attempt(task, outside)

    def _attempt(self, task: Json, outside: RemoteOutside) -> None:
        attempt, has_ended = Attempt(self._busy, task, outside), threading.Event()
        beats = threading.Thread(target=self._beat, args=(task, has_ended), daemon=True)
        beats.start()
        try:
            with suppress(Ended):
                attempt.run()
        finally:
            has_ended.set()
            beats.join()

    def _beat(self, task: Json, has_ended: threading.Event) -> None:
        body = {"epoch": task["epoch"], "lease_seconds": self._lease_seconds}
        while not has_ended.wait(self._lease_seconds / 4):
            if self._idle.send("POST heartbeat", "POST", f"/tasks/{task['task_id']}/heartbeat", body)[0] >= 400:
                return


class Attempt:
    """One attempt at a program."""

    def __init__(self, connection: Connection, task: Json, outside: RemoteOutside) -> None:
        self._connection, self._outside = connection, outside
        self._id, self._epoch, self._program = task["task_id"], task["epoch"], task["input"]
        self._journal: dict[str, Json] = {}
        self._failed_before: dict[str, Json] = {}
        """Steps that run again, because a person has retried the task."""
        self._handled: list[str] = []

    def run(self) -> None:
        self._read_journal()
        try:
            result = self._run(self._program, "")
        except Ended as end:
            if end.verb:
                self._post(end.verb, **end.body)
        else:
            self._post("complete", result=result)

    def _read_journal(self) -> None:
        cursor = ""
        while True:
            page = self._call("GET steps", "GET", f"/tasks/{self._id}/steps?limit={PAGE}{cursor}")
            for step in page["steps"]:
                (self._failed_before if step["superseded"] else self._journal)[step["key"]] = step
            if page["next_cursor"] is None:
                return
            cursor = f"&cursor={quote(page['next_cursor'])}"

    def _run(self, program: list[Node], outer: str) -> list[Any]:
        return [self._node(node, outer) for node in program]

    def _node(self, node: Node, outer: str) -> Any:
        kind, node_id, key = node["kind"], node["id"], f"{outer}{node['id']}"
        try:
            if kind in EFFECTS and kind != "unprotected":
                value = self._effect(node, key)
            elif kind in ("step", "fails", "group", "unprotected"):
                value = self._step(node, key)
            elif kind in ("child", "gather"):
                parts = [node["nodes"]] if kind == "child" else node["programs"]
                values = self._children(parts, key)
                value = values[0] if kind == "child" else values
            else:
                value = self._value(self._wait(node, key))
        except StepError:
            value = f"caught {node_id}"
        self._outside.settle(node_id, value, runs_again=kind == "fails")
        return value

    def _step(self, node: Node, key: str) -> Any:
        kind, node_id = node["kind"], node["id"]
        step = self._journal.get(key)
        if step is None:
            if kind == "group":
                outcome: Json = {"value": self._run(node["nodes"], f"{key}/")}
            elif kind == "unprotected":
                outcome = {"value": self._outside.send(f"{self._id} {self._epoch}", node)}
            else:
                self._outside.run(node_id)
                error = {"type": "ValueError", "message": "no"}
                outcome = {"error": error} if kind == "fails" else {"value": f"value {node_id}"}
            step = self._record(key, kind, outcome)
        value = self._value(step)
        if kind == "step":
            self._outside.acknowledge(node_id)
        return value

    def _effect(self, node: Node, key: str) -> Any:
        step = self._journal.get(key)
        if step is None or step["state"] == "started":
            step = self._post("effects", key=key, name="pay", handled=self._take_handled())
        if step["state"] != "started":
            return self._value(step)
        idempotency_key, value = step["idempotency_key"], None
        if step["epoch"] != self._epoch:
            # An earlier attempt may have sent it.
            if node["kind"] == "ask":
                value = self._outside.find(idempotency_key)
            elif node["kind"] != "keys":
                raise Ended("fail", error={"code": "EFFECT_UNKNOWN", "message": "Did it happen?"})
        try:
            outcome: Json = {"value": self._outside.send(idempotency_key, node) if value is None else value}
        except EffectFailed as error:
            outcome = {"error": {"type": "EffectFailed", "message": str(error)}}
        return self._value(self._record(key, "pay", outcome, kind="effect"))

    def _wait(self, node: Node, key: str) -> Json:
        kind, node_id = node["kind"], node["id"]
        if kind == "sleep":
            fields: Json = {"kind": "sleep", "seconds": self._outside.sleep_seconds}
        elif kind == "question":
            fields = {"kind": "question", "question": f"question {node_id}"}
        else:
            self._outside.expect(self._id, f"signal {node_id}")
            fields = {"kind": "signal", "signal": f"signal {node_id}"}
        step = self._begin_wait(key, kind, fields)
        if step["state"] == "started":
            raise Ended("suspend", keys=[key])
        return step

    def _begin_wait(self, key: str, name: str, fields: Json) -> Json:
        """Return a wait; one that was read from the journal may have ended since."""
        step = self._journal.get(key)
        if step is not None and (step["state"] != "started" or random.random() < 0.5):
            return step
        return self._post("waits", key=key, name=name, **fields)

    def _children(self, programs: list[list[Node]], key: str) -> list[Any]:
        children = [self._start(program, f"{key}/start {at}") for at, program in enumerate(programs)]
        waits = {f"{key}/child {at}": child for at, child in enumerate(children)}
        together = {"together": next(iter(waits))} if len(waits) > 1 else {}
        ends = []
        for wait, child in waits.items():
            if wait in self._failed_before:
                # It has failed, and this task was retried. It may run again already.
                self._connection.send("POST retry", "POST", f"/tasks/{child}/retry", {})
            ends.append(self._begin_wait(wait, "child", {"kind": "child", "child_task_id": child, **together}))
        if any(end["state"] == "failed" for end in ends):
            raise Ended("fail", error={"code": "CHILD_FAILED", "message": "A child has failed."})
        if any(end["state"] == "started" for end in ends):
            raise Ended("suspend", keys=[end["key"] for end in ends if end["state"] == "started"])
        return [self._value(end)["result"] for end in ends]

    def _start(self, program: list[Node], key: str) -> str:
        child = str(uuid.uuid5(uuid.NAMESPACE_OID, f"{self._id} {key}"))
        if key not in self._journal:
            about = {"type": "program", "input": program, "required_capabilities": ["plain"]}
            body = {"id": child, "metadata": {"parent_task_id": self._id}, **about}
            self._call("POST tasks", "POST", "/tasks", body)
            self._record(key, "start", {"value": child}, handled=self._take_handled())
        return child

    def _record(self, key: str, name: str, outcome: Json, **fields: Any) -> Json:
        """Record a step, and return it as the next attempt finds it."""
        step = self._post("steps", key=key, name=name, **outcome, **fields)
        # A value that was recorded now is not in the response.
        return step | {"value": outcome.get("value")} if step["recorded"] else step

    def _value(self, step: Json) -> Any:
        if step["state"] == "failed":
            self._handled.append(step["key"])
            raise StepError(step["error"]["message"])
        if step["value"] is None and step["value_sha256"] is not None:
            # Pages of the journal leave long values out.
            path = f"/tasks/{self._id}/steps/{quote(step['key'], safe='')}"
            return self._call("GET steps", "GET", path)["value"]
        return step["value"]

    def _take_handled(self) -> list[str]:
        handled, self._handled = self._handled, []
        return handled

    def _post(self, verb: str, **fields: Any) -> Json:
        path = f"/tasks/{self._id}/{verb}"
        return self._call(f"POST {verb}", "POST", path, {"epoch": self._epoch, **fields})

    def _call(self, place: str, method: str, path: str, body: Json | None = None) -> Json:
        status, answer = self._connection.send(place, method, path, body)
        if status == http.client.CONFLICT and answer["error"]["code"] == "LEASE_LOST":
            raise Ended
        if status >= 400:
            self._outside.complain(f"{method} {path} was answered with {status}: {answer}")
            raise Ended
        return answer
