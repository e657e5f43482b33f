"""Replays a run of an `llm` agent: its loop runs again with the agent as it is now, over what the run recorded.

Nothing is called and nothing is recorded: no model, no tool, no event, no cost, no attempt.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from stentor.auth.principal import Principal
from stentor.core.db import Tx
from stentor.core.errors import Conflict, NotFound
from stentor.core.jsontext import JsonObject
from stentor.domains.execution.journal import RecordedSteps
from stentor.domains.execution.model import AgentFailed
from stentor.domains.execution.replay.model import ReplayedStep, ReplayEnd, ReplayReport
from stentor.domains.execution.runtimes import llm_request, session_messages
from stentor.domains.execution.runtimes.llm import build_request, parse_llm_options, read_conversation
from stentor.domains.execution.runtimes.llm_loop import ToolLoop, Turn
from stentor.domains.llm.calls.call_guard import LlmCaller
from stentor.domains.llm.model import ChatRequest, ToolCall
from stentor.domains.llm.service import LlmGateway
from stentor.domains.registry.agent_cache import AgentCache
from stentor.domains.registry.model import Agent, LlmOptions
from stentor.domains.sandbox.broker.model import SandboxRun
from stentor.domains.sandbox.broker.service import ToolDispatcher
from stentor.domains.sessions.model import Item
from stentor.domains.sessions.service import SessionService
from stentor.domains.steps.model import StepKind
from stentor.domains.steps.service import JournalEntry, StepService
from stentor.domains.steps.starts import is_start
from stentor.domains.tasks.model import Task
from stentor.domains.tasks.reading.reader import TaskReader


class ReplayService:
    """Replays of runs. Whoever may see a task may replay it."""

    def __init__(
        self,
        tasks: TaskReader,
        steps: StepService,
        sessions: SessionService,
        gateway: LlmGateway,
        tools: ToolDispatcher,
        agents: AgentCache,
    ) -> None:
        self._tasks, self._steps, self._sessions, self._gateway = tasks, steps, sessions, gateway
        self._tools, self._agents = tools, agents

    async def replay(
        self, principal: Principal, task_id: str, agent_id: str | None = None, model: str | None = None
    ) -> ReplayReport:
        """Replay a run with its agent, or as another agent or model would do it.

        Raises NotFound for an unknown task or agent, and Conflict for a run that cannot be replayed here.
        """

        task = await self._tasks.get(principal, task_id)
        agent = self._find_agent(task, agent_id)
        journal = ReplayJournal(self._steps, principal, task_id)
        await journal.load()
        if journal.is_empty:
            raise Conflict(_why_empty(task, agent))
        try:
            options = parse_llm_options(agent)
            if model is not None:
                options = msgspec.structs.replace(options, model=model)
            said = read_conversation(task_input := await self._tasks.read_input(principal, task_id))
            request = build_request(task_input, options, said)
            history: list[Item] = []
            if task.metadata.session is not None:
                first = await self._steps.find_first_run(task.tenant, task_id)
                history = await self._sessions.list_before(principal, task.metadata.session, first)
                request = session_messages.insert_history(request, history, len(said))
            loop = self._open_loop(task, agent, options, journal)
            end = ReplayEnd(await loop.run(request, len(said), history=history))
        except AgentFailed as error:
            end = ReplayEnd(error.outcome)
        except ReplayStopped as stop:
            end = ReplayEnd(stopped_at=stop.key)
        steps = [*journal.steps.values(), *journal.list_unreached()]
        return ReplayReport(agent.agent_id, agent.name, steps, end, end.compare(task))

    def _find_agent(self, task: Task, agent_id: str | None) -> Agent:
        wanted = agent_id or task.assigned_agent
        if wanted is None:
            raise Conflict("The task has no agent, so it has not run. Name an agent to replay it with.")
        agent = self._agents.get(task.tenant, wanted)
        if agent is None:
            raise NotFound(f"There is no agent {wanted!r}." if agent_id else "The task's agent is gone: name another.")
        if agent.runtime.kind == "worker" and agent.agent_id != task.assigned_agent:
            raise Conflict(
                f"The agent {agent.name!r} is a worker: its program can only replay its own runs. To replay the run of "
                "another agent, name an agent of the runtime `llm`."
            )
        if agent.runtime.kind == "worker":
            raise Conflict(
                f"The service cannot replay a run of the worker {agent.name!r}: only its program has the code. Run "
                f"this where the program is installed: `stentor-worker replay MODULE:WORKER {task.task_id}`"
            )
        if agent.runtime.kind != "llm":
            raise Conflict(
                f"The agent {agent.name!r} has the runtime {agent.runtime.kind}. Runs of `llm` agents and of workers "
                "can be replayed."
            )
        return agent

    def _open_loop(self, task: Task, agent: Agent, options: LlmOptions, journal: ReplayJournal) -> ReplayLoop:
        caller = LlmCaller(task.tenant, task.submitted_by, agent.agent_id, task.task_id)
        run = SandboxRun(
            task.tenant, agent.agent_id, agent.name, task.task_id, task.submitted_by, task.head_id, None, _refuse
        )
        tools = self._tools.describe_tools(agent, has_folder=False)
        return ReplayLoop(self._gateway, self._tools, journal, caller, run, options, tools)


class ReplayLoop(ToolLoop):
    """The loop of an agent over the journal of a run. Answers are judged by the agent's present schema."""

    def __init__(
        self,
        gateway: LlmGateway,
        tools: ToolDispatcher,
        journal: ReplayJournal,
        caller: LlmCaller,
        run: SandboxRun,
        options: LlmOptions,
        allowed: list[JsonObject],
    ) -> None:
        super().__init__(gateway, tools, journal, caller, run, options, lambda token: None)
        self._replayed, self._allowed = journal, allowed

    def _list_tools(self) -> list[JsonObject]:
        # Allowed for a suspended agent too, because its runs are worth examining.
        return self._allowed

    async def _ask(self, request: ChatRequest, describe: Callable[[], JsonObject]) -> Turn:
        turn = await super()._ask(request, describe)
        if turn.tool_calls:
            return turn
        problem = await self._judge(turn.content, self._turns[:-1])
        if (problem is None) != (turn.problem is None):
            now = "matches output_schema now" if problem is None else f"does not match output_schema now: {problem}"
            self._replayed.note(f"model {len(self._turns)}", f"the answer {now}")
        self._turns[-1] = msgspec.structs.replace(turn, problem=problem)
        return self._turns[-1]

    async def _execute_tool_call(self, call: ToolCall, number: int) -> tuple[str, str | None]:
        text, key = await super()._execute_tool_call(call, number)
        if key is not None and all(tool["name"] != call.name for tool in self._allowed):
            value = self._replayed.outcome_of(key)
            error = value.get("error") if isinstance(value, dict) else None
            if not isinstance(error, dict) or error.get("code") != "TOOL_DENIED":
                self._replayed.note(key, f"the agent may no longer use {call.name}")
        return text, key


def _refuse(tx: Tx) -> None:
    """Stop whatever would be done in earnest: a replay does nothing."""
    raise Conflict("A replay calls no tools.")


def _why_empty(task: Task, agent: Agent) -> str:
    if task.status in ("queued", "pending_approval", "executing", "waiting"):
        return f"The run has recorded no steps yet: the task is {task.status}."
    if task.runtime_kind == "llm" and not agent.sandbox_whitelist.tools:
        return (
            "This run has no journal. An agent without tools, output_schema and compact_after_tokens makes a single "
            "call of its model, which is not recorded as a step: run the task again to compare."
        )
    return "This run has no journal: it ended before its first step."


class ReplayStopped(Exception):
    """The program came to a step that has no recorded outcome."""

    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.key = key


class ReplayJournal(RecordedSteps):
    """A StepJournal that only reads. `steps` is the report, in the order of the program."""

    def __init__(self, steps: StepService, principal: Principal, task_id: str) -> None:
        super().__init__(steps, principal, task_id)
        self._requests: dict[int, JsonObject] = {}
        """The requests of the recorded model calls, by epoch."""
        self.steps: dict[str, ReplayedStep] = {}

    @property
    def is_empty(self) -> bool:
        return not self._recorded

    async def load(self) -> None:
        """Read the journal and the requests of its steps. Raises NotFound for a task that the caller may not see."""
        if self._recorded:
            return
        await super().load()
        self._recorded = {key: entry for key, entry in self._recorded.items() if not is_start(key)}
        requests = await self._steps.list_requests(self._principal, self._task_id)
        for entry in self._recorded.values():
            if entry.step.event_id in requests:
                self._requests.setdefault(entry.step.epoch, requests[entry.step.event_id])

    async def step(
        self, key: str, name: str, work: Callable[[], Awaitable[Any]], request: Callable[[], JsonObject] | None = None
    ) -> Any:
        """Return the recorded outcome. Raises ReplayStopped without one."""
        entry, step = self._find(key, name, "step")
        if request is not None and step.verdict == "same":
            recorded = self._requests.get(entry.step.epoch)
            if recorded is None:
                step.verdict = "unknown"
                step.reasons.append("the run did not record what it asked")
            else:
                self.note(key, *llm_request.compare(recorded, request()))
        return await self._read_outcome(entry)

    async def effect(self, key: str, name: str, work: Callable[[str], Awaitable[Any]]) -> Any:
        """Return the recorded outcome of an effect, which is never sent."""
        return await self._read_outcome(self._find(key, name, "effect")[0])

    def note(self, key: str, *reasons: str) -> None:
        """Record how a step differs from the run. Steps of another task are not compared."""
        step = self.steps[key]
        if reasons and step.verdict != "taken_over":
            step.verdict = "differs"
            step.reasons += reasons

    def outcome_of(self, key: str) -> Any:
        """Return the recorded value of a step; None if there is none, or if it is too long to be in the journal."""
        entry = self._recorded.get(key)
        return None if entry is None else entry.value

    def list_unreached(self) -> list[ReplayedStep]:
        """List the recorded steps that the program did not reach."""
        entries = [entry.step for key, entry in self._recorded.items() if key not in self.steps]
        return [ReplayedStep(step.key, step.name, step.kind, "not_reached") for step in entries]

    def _find(self, key: str, name: str, kind: StepKind) -> tuple[JournalEntry, ReplayedStep]:
        entry = self._recorded.get(key)
        step = self.steps[key] = ReplayedStep(key, name, kind, "same", [])
        if entry is None or entry.is_superseded:
            step.verdict = "new"
            if entry is not None:
                step.reasons.append("it failed, and runs again since the task was retried")
            raise ReplayStopped(key)
        if entry.step.state == "started":
            step.verdict = "no_outcome"
            raise ReplayStopped(key)
        if self.is_taken_over(key):
            step.verdict = "taken_over"
        recorded = f"{entry.step.kind} {entry.step.name}"
        if recorded != f"{kind} {name}":
            self.note(key, f"{recorded} before, {kind} {name} now")
        return entry, step
