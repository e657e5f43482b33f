"""The operation that replays a run."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Query

from stentor.core.jsontext import JsonObject
from stentor.domains.execution.replay.model import StepVerdict, Verdict
from stentor.domains.execution.replay.service import ReplayService
from stentor.web.operations import operation
from stentor.web.wire import Caller, Name, ResponseModel, TaskId


class ReplayedStepOut(ResponseModel):
    """A step of the replay. `reasons` say in what it differs from the run.

    `unknown`: the run did not record its request. `taken_over`: it belongs to another task, and is not compared. `new`:
    it is not recorded, and `no_outcome`: nobody knows whether the effect happened; the replay stops at either.
    `not_reached`: the agent would not come to it now.
    """

    key: str
    name: str
    kind: str
    verdict: StepVerdict
    reasons: list[str]


class ReplayOut(ResponseModel):
    """`difference` says in what the end of the run differs, null if in nothing. `stopped_at` is the step that is not
    recorded; otherwise the run would end with `result` or `error`.
    """

    task_id: str
    agent_id: str
    agent_name: str
    verdict: Verdict
    steps: list[ReplayedStepOut]
    difference: str | None
    stopped_at: str | None
    result: Any
    error: JsonObject | None


class ReplayOperations:
    """The operation on runs of `llm` agents; those of workers are replayed by their SDK."""

    def __init__(self, replays: ReplayService) -> None:
        self._replays = replays

    @operation("tasks.replay", "read", "GET /tasks/{task_id}/replay", errors=(404, 409), cancellable=True)
    async def replay(
        self,
        caller: Caller,
        task_id: TaskId,
        agent_id: Annotated[Name | None, Query(description="Another agent, by its id.")] = None,
        model: Annotated[Name | None, Query(description="Another model than the agent's.")] = None,
    ) -> ReplayOut:
        """Run the loop of an `llm` agent again over what a run recorded, and say where it would differ now.

        No model and no tool is called, and nothing is recorded.
        """
        report = await self._replays.replay(caller, task_id, agent_id, model)
        steps = [ReplayedStepOut.of(step) for step in report.steps]
        return ReplayOut.of(report, task_id=task_id, steps=steps)
