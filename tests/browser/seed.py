"""Something to see on every page, made over the gateway's API."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import httpx

REPORT = """# Findings

The **agents** did their work:

- routed by what its agent declares and has shown
- learned from each outcome

Nothing else is of note.
"""
PLAN = """---
owner: ann
tags: [deployment, night/work]
---
# Plan

Deploying happens every night, after [[launch]].

> [!warning] Not on [[backups|Fridays]]
> - [ ] ask

> [!tip]-
> [[launch]]

- [x] write it
"""
BUDGET = """---
derived_from: ["[[offer]]"]
valid_from: 2026-01-01
---
# Budget

## How many disks we need for each of the hosts in production, and why

Ten.
"""
NOTES = {
    "Projects/launch.md": "# Launch\n\nWe launch in May. See [[plan]], [[backups]].\n\n1. Build\n2. Deploy it\n",
    "Projects/plan.md": PLAN,
    "Notes/offer.md": "---\ninvalid: The vendor withdrew it.\ninvalid_by: ann\n---\n# Offer\n\n## Costs\n\nTen.\n",
    "Notes/budget.md": BUDGET,
    "Notes/backups.md": "# Backups\n\nBackups are taken before each deployment, and tried out once a month.\n",
}
NAMES = ("scribe", "archivist", "critic", "planner", "translator")
TOOLS = [{"name": "read_file", "paths": ["notes/**"], "operations": ["read"]}]
CHANGES = {
    "files_modified": ["agents/scribe.toml"],
    "lines_added": 3,
    "lines_deleted": 1,
    "lines_total": 900,
    "breaking": False,
    "new_dependencies": False,
    "touches_policy": True,
}


Body = dict[str, Any]


@dataclass
class Seeded:
    """Ids of what was made."""

    agents: dict[str, str] = field(default_factory=dict)
    done: str = ""
    failed: str = ""
    waiting: str = ""
    asking: str = ""
    talking: str = ""
    update: str = ""
    message: str = ""
    webhook: str = ""
    checkpoint: str = ""
    rollback: str = ""
    delivery: str = ""
    root: str = ""
    """The provenance of the task that is done."""


class Seed:
    """`api` is a client of the gateway with an admin's key, `second` one with another's."""

    def __init__(self, api: httpx.Client, second: httpx.Client) -> None:
        self.api = api
        self.second = second
        self.made = Seeded()
        self._random = random.Random(7)

    def all(self, tasks: int = 40) -> Seeded:
        self.agents()
        self.tasks(tasks)
        self.notes()
        self.governance()
        self.neighbours()
        self.session()
        self.made.root = self.api.get(f"/api/v1/tasks/{self.made.done}").json()["provenance_id"]
        return self.made

    def post(self, path: str, body: Any = None, api: httpx.Client | None = None) -> Any:
        answer = (api or self.api).post(f"/api/v1{path}", json={} if body is None else body)
        assert answer.status_code < 300, f"{path}: {answer.text}"
        return answer.json() if answer.content else None

    def agents(self) -> None:
        for n, name in enumerate(NAMES):
            scores = {f"{of}_score": round(0.95 - 0.07 * n, 2) for of in ("alignment", "accuracy", "efficiency")}
            tier = ("auto", "monitored", "auto", "auto", "human")[n]
            body = {"name": name, "capabilities": ["write", "review"], "trust_tier": tier, **scores}
            self.made.agents[name] = self.post("/registry/agents", body | {"sandbox_whitelist": {"tools": TOOLS}})[
                "agent_id"
            ]
        for name, score in (("scribe", 0.91), ("archivist", 0.74), ("critic", 0.42)):
            answer = self.api.put(f"/api/v1/trust/{self.made.agents[name]}", json={"score": score})
            assert answer.status_code == 200, answer.text

    def tasks(self, count: int) -> None:
        routed: set[str] = set()
        for n in range(count):
            # Every other task goes to the best agent; the rest is spread, so that more than one learns.
            preferred = {"agent_preference": self.made.agents[NAMES[n % 4]]} if n % 2 else {}
            body: Body = {"type": ("write", "review")[n // 2 % 2], "input": {"text": f"Write about topic {n}."}}
            made = self.post("/tasks", body | {"required_capabilities": ["write"]} | preferred)
            routed |= set() if preferred else {made["task_id"]}
        for name in NAMES[:4]:
            while claimed := self.post(f"/agents/{self.made.agents[name]}/claims", {"max": 10})["tasks"]:
                for task in claimed:
                    self._end(task, task["task_id"] in routed)
        self.journal()
        for n in range(3):
            body = {"type": "write", "input": f"Later {n}", "required_capabilities": ["write"]}
            preferred = {"agent_preference": self.made.agents[NAMES[4 if n == 0 else 1]]}
            # A title of one letter is a link that is too small for a thumb, unless the page sees to it.
            preferred |= {"title": "a"} if n == 2 else {}
            self.made.waiting = self.post("/tasks", body | preferred)["task_id"] if n else self.made.waiting

    def journal(self) -> None:
        """A task that asks a person after two steps, and one with a payment of which nothing is known."""
        for title in ("Book the trip to Lisbon", "Pay the hotel"):
            body: Body = {
                "type": "trip",
                "title": title,
                "input": {"city": "Lisbon"},
                "required_capabilities": ["write"],
            }
            self.post("/tasks", body | {"agent_preference": self.made.agents["archivist"]})
            task = self.post(f"/agents/{self.made.agents['archivist']}/claims")["tasks"][0]
            address, epoch = f"/tasks/{task['task_id']}", {"epoch": task["epoch"]}
            plan = {"key": "plan", "name": "plan", "value": {"hotel": "Sol", "price": 240}, "duration_ms": 2}
            self.post(f"{address}/steps", epoch | plan)
            if title == "Pay the hotel":
                self.post(f"{address}/effects", epoch | {"key": "pay", "name": "pay"})
                error = {"code": "EFFECT_UNKNOWN", "message": "It is not known whether the effect 'pay' happened."}
                self.post(f"{address}/fail", epoch | {"error": error, "outcome_class": "provider_failure"})
            else:
                question = {"question": "Book Sol for 240 EUR?", "options": ["yes", "no"]}
                ask = {"key": "question", "name": "question", "kind": "question"} | question
                self.post(f"{address}/waits", epoch | ask)
                self.post(f"{address}/suspend", epoch | {"keys": ["question"]})
                self.made.asking = task["task_id"]

    def _end(self, task: Body, routed: bool) -> None:
        address, epoch = f"/tasks/{task['task_id']}", {"epoch": task["epoch"]}
        if self._random.random() < 0.15:
            error = {"code": "SOURCE_UNREADABLE", "message": "The source could not be read."}
            self.post(f"{address}/fail", epoch | {"error": error})
            self.made.failed = task["task_id"]
        else:
            self.post(f"{address}/complete", epoch | {"result": REPORT})
            self.made.done = task["task_id"] if routed else self.made.done

    def notes(self) -> None:
        for path, content in NOTES.items():
            document = {"path": path, "content": content}
            answer = self.api.post("/api/v1/memory/write", json={"operation": "write", "document": document})
            assert answer.status_code < 300, answer.text

    def governance(self) -> None:
        scribe = self.made.agents["scribe"]
        taken = self.post("/governance/checkpoints", {"agent_id": scribe})
        self.made.checkpoint = taken["checkpoint_id"]
        earlier = self.post("/governance/checkpoints", {"agent_id": self.made.agents["critic"]})["checkpoint_id"]
        said = {"initiated_by": "dana", "reason": "It answers without sources.", "details": ""}
        back = {"checkpoint_id": earlier, **said}
        self.made.rollback = self.post("/governance/rollbacks", back)["rollback_id"]
        patch = {
            "sandbox_whitelist": {
                "tools": [*TOOLS, {"name": "write_file", "paths": ["out/**"], "operations": ["write"]}]
            }
        }
        self.made.update = self.propose("Let the scribe write files", scribe, patch)

    def propose(self, summary: str, agent: str, patch: dict[str, Any]) -> str:
        """By the second key, so that the first one may approve it."""
        body: Body = {"agent_id": agent, "update_type": "policy", "description": summary}
        body |= {"changes": {**CHANGES, "agent_patch": patch}}
        return str(self.post("/governance/updates", body, self.second)["update_id"])

    def session(self) -> None:
        """A conversation with each kind of item, values, and tasks: one that is queued, one that was cancelled."""
        self.post("/sessions", {"id": "support/4711", "name": "Lost parcel", "metadata": {"customer": 4711}})
        self.post("/sessions", {"id": "thread-with-a-rather-long-id-of-somebody-elses-system-0042"})
        call = {
            "id": "call-1",
            "type": "function",
            "function": {"name": "find_parcel", "arguments": '{"order": 4711}'},
        }
        values: list[Any] = [
            {"role": "user", "content": "Where is my parcel?"},
            {"role": "assistant", "content": "I look it up.", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "call-1", "content": '{"place": "Lisbon", "since": "2026-03-02"}'},
            {"role": "assistant", "content": "It is in Lisbon.\n\nIt arrives tomorrow."},
            {"step": 7, "of": "a program"},
            {"role": "user", "content": "A long story. " * 400},
        ]
        summary = {"kind": "summary", "value": {"role": "system", "content": "The parcel of order 4711 is in Lisbon."}}
        items: list[Any] = [{"value": value} for value in values]
        self.post("/sessions/support%2F4711/items", {"items": [*items[:4], summary, *items[4:]]})
        stored = {"values": {"checkpoint/7": {"step": 7, "done": ["find", "ask"]}, "blob": "x" * 600}, "bytes": {}}
        answer = self.api.put("/api/v1/sessions/support%2F4711/values", json=stored | {"bytes": {"image": "AAECAw=="}})
        assert answer.status_code == 200, answer.text
        body: Body = {"type": "write", "input": "And when does it arrive?", "required_capabilities": ["write"]}
        for status in ("queued", "cancelled"):
            self.made.talking = self.post("/tasks", body | {"session": "support/4711"})["task_id"]
            if status == "cancelled":
                self.post(f"/tasks/{self.made.talking}/cancel")

    def neighbours(self) -> None:
        header = {"mode": "direct", "context": "trace-0001", "priority": "high", "actionType": "list"}
        header |= {"targetZone": "registry", "specialNotes": ""}
        self.made.message = self.post("/atp/send", {"header": header, "payload": {"content": "{}"}})["messageId"]
        hook = {"url": "https://hooks.example.com/stentor", "events": ["task.completed"], "description": "The team"}
        budget = {
            "kind": "agent",
            "subject": self.made.agents["scribe"],
            "unit": "usd",
            "period": "month",
            "limit": 0.5,
        }
        self.post("/llm/budgets", budget)
        self.post("/llm/budgets", {**budget, "kind": "tenant", "subject": "default", "limit": 20})
        self.post("/llm/budgets", {**budget, "kind": "team", "subject": "support", "limit": 4})
        limits = {"budgets": ["usd/month=20"], "models": ["openai/gpt-*", "anthropic/claude-sonnet-4-5"]}
        self.post("/keys", {"name": "dana", "role": "approver", "description": "Support", "team": "support", **limits})
        self.post("/keys", {"name": "nightly", "role": "agent", "expires_at": "2099-01-01T00:00:00Z"})
        self.post("/keys", {"name": "old-laptop", "role": "operator"})
        self.post("/keys/old-laptop/revoke")
        daily: Body = {
            "name": "morning-report",
            "cron": "30 6 * * MON-FRI",
            "timezone": "Europe/Rome",
            "overlap": "skip",
        }
        daily["task"] = {"type": "write", "input": {"text": "The day."}, "required_capabilities": ["write"]}
        self.post("/schedules", daily)
        self.post("/schedules", daily | {"name": "weekly-review", "cron": "@weekly", "paused": True})
        self.made.webhook = self.post("/webhooks", hook)["id"]
        self.made.delivery = self.post(f"/webhooks/{self.made.webhook}/test")["id"]
