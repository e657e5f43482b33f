"""The first steps in a new installation: what each is for, how to take it, and whether it was taken. Pure."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

MAX_TASKS = 500
"""Tasks after which an installation is not new any more."""


class FirstStep(msgspec.Struct, frozen=True):
    """A step that ticks itself off. `command` does it in a terminal, `url` leads to the page that does it."""

    name: str
    title: str
    reason: str
    command: str
    url: str
    is_done: bool = False


STEPS = (
    FirstStep(
        "task",
        "Send a task",
        "The builtin agent summarizes at once, without a model.",
        'stentor task submit --type summarize --capability summarize --input "One sentence. And another one." --wait',
        "/console",
    ),
    FirstStep(
        "agent",
        "Add an agent of your own",
        "A worker, an HTTP endpoint, a model or a program. Each task goes to the best eligible agent.",
        "stentor agent register writer --capability write",
        "/agents",
    ),
    FirstStep(
        "grade",
        "Grade a result",
        "On the task's page. Routing learns from it which agent does a task best.",
        "stentor task grade TASK 0.9",
        "/tasks?status=completed",
    ),
    FirstStep(
        "model",
        "Connect a model",
        "Start the service with a provider's key, or register one here; then any OpenAI client may call its /v1.",
        "OPENAI_API_KEY=... stentor serve",
        "/models",
    ),
    FirstStep(
        "key",
        "Create a key for a colleague",
        "With a role: who may look, who may submit, who may approve.",
        "stentor keys create dana --role approver",
        "/keys",
    ),
)


def open_steps(done: Mapping[str, bool], total_tasks: int) -> list[FirstStep]:
    """Return all steps with whether each is done; none once all are, or the installation is not new any more."""
    if total_tasks > MAX_TASKS or all(done[step.name] for step in STEPS):
        return []
    return [msgspec.structs.replace(step, is_done=done[step.name]) for step in STEPS]
