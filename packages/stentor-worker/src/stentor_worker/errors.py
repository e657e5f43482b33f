"""What a handler may raise, and what `Task` raises in a handler."""

from __future__ import annotations

from typing import Any


class TaskCancelled(Exception):
    """The task is no longer this worker's: it was cancelled, timed out, or went to another worker."""


class Failed(Exception):
    """Raise it in a handler to fail the task; the submitter sees the message."""

    outcome_class = "agent_failure"

    def __init__(self, message: str, code: str = "AGENT_ERROR") -> None:
        super().__init__(message)
        self.code = code


class ProviderFailed(Failed):
    """A dependency of the agent failed; it does not count against the agent."""

    outcome_class = "provider_failure"


class StepFailed(Failed):
    """The function of a step raised an error, in this attempt or in an earlier one. `kind` is the name of its class."""

    def __init__(self, name: str, kind: str, message: str) -> None:
        super().__init__(f"Step {name!r} failed: {kind}: {message}", "STEP_FAILED")
        self.name, self.kind = name, kind
        if kind == ProviderFailed.__name__:
            self.outcome_class = ProviderFailed.outcome_class


class WaitTimeout(Failed, TimeoutError):
    """What a task waited for did not come in time."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(f"{name}: {message}", "WAIT_TIMEOUT")
        self.name = name


class ChildFailed(Failed):
    """A child did not complete: `status` is failed, aborted or cancelled, `error` is the error of the child."""

    def __init__(self, name: str, task_id: str, status: str, error: Any) -> None:
        reason = error.get("message", "") if isinstance(error, dict) else ""
        super().__init__(f"The child {name!r} ({task_id}) is {status}. {reason}".rstrip(), "CHILD_FAILED")
        self.task_id, self.status, self.error = task_id, status, error


class Suspended(BaseException):
    """Ends an attempt whose task waits. Not an Exception, so that no `except Exception` of a handler stops it."""


class StepMismatch(Failed):
    """The program has changed since the task began: the journal has another step where `received` runs now."""

    def __init__(self, recorded: str, received: str | None) -> None:
        instead = f"this program runs {received!r} there" if received else "this program did not run it"
        super().__init__(
            f"An earlier attempt ran the step {recorded!r}, and {instead}: the program has changed since the task "
            "began. Start the old version and retry the task, or submit it again.",
            "STEP_MISMATCH",
        )
        self.recorded, self.received = recorded, received


class EffectFailed(Failed):
    """Raise it in an effect that certainly did not happen, such as a declined payment. It is recorded as failed."""


class EffectUnknown(Failed):
    """An effect was sent, and it is not known whether it happened. It is not sent again: a person has to find out."""

    outcome_class = "provider_failure"

    def __init__(self, name: str, key: str) -> None:
        super().__init__(
            f"It is not known whether the effect {name!r} (idempotency key {key}) happened, and it is not sent again. "
            "Find out, record it with `stentor task resolve`, then retry the task.",
            "EFFECT_UNKNOWN",
        )
        self.name, self.key = name, key
