"""The rows of the filled database, one by one: what the service would have written for such a task."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from stentor.core import jsontext
from stentor.core.clock import DAY, SECOND
from stentor.core.runlog import EventDraft, EventType, RunLogEvent
from stentor.domains.registry.model import Agent, Runtime, SandboxWhitelist
from stentor.domains.tasks.model import PRIORITIES, OutcomeClass, Task, TaskMetadata, TaskStatus

TENANTS = ("default", "other")
AGENTS = {"default": 20, "other": 5}
DAYS = 90
TYPES = ("summarize", "review", "translate", "classify", "extract")
ENDS: tuple[tuple[TaskStatus, OutcomeClass, int], ...] = (
    ("completed", "success", 880),
    ("completed", "degraded_success", 20),
    ("failed", "agent_failure", 35),
    ("failed", "provider_failure", 10),
    ("failed", "routing_failed", 10),
    ("aborted", "timeout", 25),
    ("cancelled", "cancelled", 20),
)
WEIGHTS = [weight for _, _, weight in ENDS]
LIVING: tuple[TaskStatus, ...] = ("executing", "queued", "queued", "pending_approval")
PRIORITY_CHOICES: tuple[Literal["high", "low"] | None, ...] = (None, "high", "low")
EVENT_OF: dict[TaskStatus, EventType] = {
    "completed": "task_completed",
    "failed": "task_failed",
    "aborted": "task_aborted",
    "cancelled": "task_cancelled",
}
WORDS = "agent task route trust queue lease epoch outcome weight ledger vault note policy worker stream claim".split()


class Rows:
    """`count` tasks that end at `now` (microseconds); the last thousandth of them has not ended yet.

    `agents` says how many each tenant has.
    """

    def __init__(self, count: int, now: int, agents: Mapping[str, int] = AGENTS) -> None:
        self.count = count
        self._random = random.Random(7)
        self._start = now - DAYS * DAY
        self._step = DAYS * DAY // count
        self._living = count - max(8, count // 1000)
        self._texts = [jsontext.dump(self._prose(40 + 12 * n)) for n in range(20)]
        self._results = [{"summary": self._prose(20 + 2 * n), "coverage": 0.4 + n / 50} for n in range(20)]
        self._agents = {tenant: [self._id(self._start) for _ in range(n)] for tenant, n in agents.items()}
        # The n-th agent has about a share of 1/n, and the last one nearly nothing.
        self._shares = {t: [*(1 / (n + 1) for n in range(len(ids) - 1)), 0.001] for t, ids in self._agents.items()}

    def agents(self) -> Iterator[Agent]:
        for tenant, agent_ids in self._agents.items():
            for n, agent_id in enumerate(agent_ids):
                runtime, may, made = Runtime(), SandboxWhitelist(), self._start
                yield Agent(
                    agent_id, tenant, f"{tenant}-{n}", TYPES, 0.5, 0.6, 0.7, "auto", "active", runtime, may,
                    None, 0, None, made, made,
                )  # fmt: skip

    def task(self, n: int) -> tuple[Task, str]:
        """The n-th task, oldest first, and the text of its input."""
        made = self._start + n * self._step + self._random.randrange(self._step)
        tenant = TENANTS[self._random.random() < 0.1]
        status, outcome = self._end(n)
        denied = outcome == "routing_failed"
        agent = None if denied else self._random.choices(self._agents[tenant], self._shares[tenant])[0]
        begun = made + self._random.randrange(2, 4_000) * 1_000 if _began(status, denied) else None
        ended = None if outcome is None else (begun or made) + self._random.randrange(5, 20_000) * 1_000 * (not denied)
        return self._task(tenant, made, status, outcome, agent, begun, ended), self._random.choice(self._texts)

    def _end(self, n: int) -> tuple[TaskStatus, OutcomeClass | None]:
        if n >= self._living:
            return LIVING[n % len(LIVING)], None
        status, outcome, _ = self._random.choices(ENDS, WEIGHTS)[0]
        return status, outcome

    def _task(
        self, tenant: str, made: int, status: TaskStatus, outcome: OutcomeClass | None, agent: str | None,
        begun: int | None, ended: int | None,
    ) -> Task:  # fmt: skip
        executing = status == "executing"
        kind = self._random.choice(TYPES)
        priority = self._random.choices(PRIORITY_CHOICES, (8, 1, 1))[0]
        success = outcome == "success"
        return Task(
            tenant=tenant,
            task_id=self._id(made),
            status=status,
            type=kind,
            priority=PRIORITIES[priority or "normal"],
            assigned_agent=agent,
            runtime_kind=None if agent is None else "worker",
            created_at=made,
            queued_at=made,
            start_time=begun,
            completion_time=ended,
            timeout_seconds=3_600,
            epoch=int(begun is not None),
            attempt_epoch=0,
            lease_until=made + 60 * SECOND if executing else None,
            deadline_at=made + 3_600 * SECOND if executing else None,
            outcome_class=outcome,
            learning_eligible=None if outcome is None else outcome in ("success", "agent_failure", "timeout"),
            learning_pending=False,
            performance=0.7 if success else None,
            provenance_id=self._id(made),
            head_id=self._id(ended or made),
            parent_task_id=None,
            submitted_by="shared",
            submitted_status="failed" if outcome == "routing_failed" else "queued",
            estimated_start=made,
            estimated_completion=made + SECOND,
            body_hash=self._random.randbytes(32).hex(),
            required_capabilities=(kind,),
            agent_preference=None,
            metadata=TaskMetadata(priority=priority),
            error=None if status not in ("failed", "aborted") else _error(outcome),
            result=self._random.choice(self._results) if status == "completed" else None,
        )

    def events(self, task: Task) -> Iterator[RunLogEvent]:
        """The run log of the task, as a chain from its root."""
        parent: str | None = None
        for n, draft in enumerate(self._drafts(task)):
            at = (task.created_at, task.start_time or task.created_at, task.completion_time or task.created_at)[n // 3]
            event_id = task.provenance_id if n == 0 else self._id(at + n)
            yield RunLogEvent(
                event_id, task.tenant, task.task_id, draft.agent_id, parent, at, draft.event_type, draft.component,
                draft.message, draft.duration_ms, draft.metadata,
            )  # fmt: skip
            parent = event_id

    def _drafts(self, task: Task) -> list[EventDraft]:
        asked = {"type": task.type, "required_capabilities": list(task.required_capabilities), "by": "shared"}
        drafts = [EventDraft("prompt_received", "tasks", f"Task of type {task.type} received.", asked)]
        if task.assigned_agent is None:
            return [
                *drafts,
                EventDraft("dispatch_denied", "routing", "Nobody may take it.", _error(task.outcome_class)),
            ]
        routing = {"routing": self._decision(task), "agent_name": "default-0"}
        drafts.append(EventDraft("routing_decision", "routing", "Routed.", routing, agent_id=task.assigned_agent))
        drafts.append(EventDraft("task_queued", "execution", "Queued.", {"priority": task.priority}))
        if task.start_time is not None:
            drafts.append(
                EventDraft("task_started", "execution", "Started.", {"epoch": 1}, agent_id=task.assigned_agent)
            )
        if task.completion_time is not None:
            ended = {"status": task.status, "outcome_class": task.outcome_class, "learning_eligible": True}
            drafts.append(EventDraft(EVENT_OF[task.status], "execution", "Ended.", ended, agent_id=task.assigned_agent))
            learned = {"task_type": task.type, "weight_before": 1.2, "weight_after": 1.25, "epoch": 1}
            drafts.append(
                EventDraft("learning_updated", "learning", "Weight moved.", learned, agent_id=task.assigned_agent)
            )
        return drafts

    def _decision(self, task: Task) -> dict[str, Any]:
        """With the terms of five candidates."""
        terms = {"composite": 0.58, "hebbian": 0.91, "trust": 0.5, "blended": 0.679}
        candidates = [{"agent_id": a, "name": a[:8], **terms} for a in self._agents[task.tenant][:5]]
        policy = {"alpha": 0.3, "beta": 0.0, "trust_floor": 0.0, "trust_available": True}
        chosen = {"agent_id": task.assigned_agent, "agent_name": "default-0", "capability": [task.type]}
        more = {"denied_total": 0, "preferred": False, "duration_us": 31}
        return {**chosen, **policy, "candidates": candidates, "candidates_total": 5, "denied": [], **more}

    def _prose(self, words: int) -> str:
        return " ".join(self._random.choice(WORDS) for _ in range(words)).capitalize() + "."

    def _id(self, at: int) -> str:
        """A UUIDv7 of a past moment in microseconds, laid out as `stentor.core.ids` does."""
        low = self._random.getrandbits(62) | 1 << 63
        text = f"{at // 1000:012x}7{at % 1000 << 2:03x}{low:016x}"
        return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def _began(status: TaskStatus, denied: bool) -> bool:
    return not denied and status in ("executing", "completed", "failed", "aborted")


def _error(outcome: OutcomeClass | None) -> dict[str, Any]:
    return {"code": str(outcome).upper(), "message": "It could not be done.", "details": {"outcome_class": outcome}}
