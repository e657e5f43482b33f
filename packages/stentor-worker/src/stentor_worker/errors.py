"""What a handler may raise, and what `Task` raises in a handler."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from typing import Any

_GROUP: Any = getattr(builtins, "BaseExceptionGroup", ())
"""Python 3.10 has no groups."""
MAX_MESSAGE, MAX_CODE = 2_000, 255
"""Characters of the message of an error, and of its code."""
Moment = tuple[int, str]
"""When an outcome was there: the first attempt that could know it, and the time at which it was recorded."""
FIRST: Moment = (0, "")


class TaskCancelled(Exception):
    """The task is no longer this worker's: it was cancelled, timed out, or went to another worker."""


class Failed(Exception):
    """Raise it in a handler to fail the task; the submitter sees the message.

    `cost` is what the attempt cost all the same, in US dollars.
    """

    outcome_class = "agent_failure"
    code = "AGENT_ERROR"
    cost: float | None = None
    moment: Moment = FIRST
    """Of the recorded error that this one is."""

    def __init__(self, message: str, code: str = "AGENT_ERROR", *, cost: float | None = None) -> None:
        super().__init__(message)
        self.code, self.cost = code, cost


class ProviderFailed(Failed):
    """A dependency of the agent failed; it does not count against the agent."""

    outcome_class = "provider_failure"


class StepFailed(Failed):
    """The function of a step raised an error, in this attempt or in an earlier one.

    `kind` is the name of its class. If it was a Failed, this one has its code, and counts as it does.
    """

    def __init__(self, name: str, error: dict[str, Any]) -> None:
        super().__init__(
            f"Step {name!r} failed: {error['type']}: {error['message']}", error.get("code") or "STEP_FAILED"
        )
        self.name, self.kind = name, error["type"]
        self.outcome_class = error.get("outcome_class") or self.outcome_class


class WaitTimeout(Failed, TimeoutError):
    """A wait of a task reached its timeout."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(f"{name}: {message}", "WAIT_TIMEOUT")
        self.name = name


class ChildFailed(Failed):
    """A child did not complete: `status` is failed, aborted or cancelled, `error` is the error of the child."""

    def __init__(self, name: str, task_id: str, status: str, error: Any) -> None:
        reason = error.get("message", "") if isinstance(error, dict) else ""
        # A retry of the parent would end here again.
        hint = "A cancelled child is not retried: `stentor task rerun` runs this task again, with a new child."
        text = f"The child {name!r} ({task_id}) is {status}. {hint if status == 'cancelled' else reason}"
        super().__init__(text.rstrip(), "CHILD_FAILED")
        self.name, self.task_id, self.status, self.error = name, task_id, status, error


class Suspended(BaseException):
    """Ends an attempt whose task waits. Not an Exception, so that no `except Exception` of a handler stops it."""


class AttemptEnded(BaseException):
    """Ends an attempt that must not continue, as what the program does next could be wrong. The task fails.

    Not an Exception, so that no `except Exception` of a handler stops it.
    """

    def __init__(self, message: str, code: str, outcome_class: str = "agent_failure") -> None:
        super().__init__(message)
        self.code, self.outcome_class = code, outcome_class


class StepMismatch(AttemptEnded):
    """The program has changed since the task began: the journal has another step where `received` runs now."""

    def __init__(self, recorded: str, received: str | None) -> None:
        instead = f"this program runs {received!r} there" if received else "this program did not run it"
        super().__init__(
            f"An earlier attempt ran the step {recorded!r}, and {instead}: the program has changed since the task "
            "began. Start the old version and retry the task, or submit it again.",
            "STEP_MISMATCH",
        )
        self.recorded, self.received = recorded, received


class ServiceGone(AttemptEnded):
    """Ends an attempt of a worker that stops while the service is down. Not reported: another worker continues."""


class EffectFailed(Failed):
    """Raise it in an effect that certainly did not happen, such as a declined payment. It is recorded as failed."""


class EffectUnknown(AttemptEnded):
    """An effect was sent, and it is not known whether it happened. `reason` is what went wrong, if anything did.

    It is not sent again before a person retries the task; even then only if `is_safe`: the other side takes its key,
    or can be asked. `has_raised` says that the reason is an error of its function.
    """

    def __init__(
        self,
        name: str,
        key: str,
        reason: BaseException | None = None,
        *,
        is_safe: bool = False,
        has_raised: bool = False,
    ) -> None:
        # Half of a message at most, so that what to do is not cut.
        because = f" ({type(reason).__name__}: {to_message(reason)[: MAX_MESSAGE // 2]})" if reason else ""
        what_to_do = (
            "Retry the task: it is then asked about, or sent again with the same key."
            if is_safe
            else "It is not sent again. Find out, record it with `stentor task resolve`, then retry the task."
        )
        if has_raised:
            what_to_do += " If such an error means that nothing happened, raise EffectFailed in the function instead."
        super().__init__(
            f"It is not known whether the effect {name!r} (idempotency key {key}) happened{because}. {what_to_do}",
            "EFFECT_UNKNOWN",
            "provider_failure",
        )
        self.name, self.key, self.reason = name, key, reason


def to_message(error: BaseException) -> str:
    """Return the text of an error as a report may have it; of a group of errors with those in it."""
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - of a class of the program; the error is reported all the same
        text = "its text cannot be read"
    if isinstance(error, _GROUP):
        # The exception of a TaskGroup says only how many there are.
        text = f"{text}: {'; '.join(f'{type(one).__name__}: {to_message(one)}' for one in _flatten(error))}"
    return to_plain(text)


def to_plain(text: str) -> str:
    """Return a text that JSON and the database accept, of at most MAX_MESSAGE characters."""
    return text[:MAX_MESSAGE].encode("utf-8", "replace").decode().replace("\0", "\N{REPLACEMENT CHARACTER}")


def to_code(code: object) -> str:
    """Return the code of an error as the service accepts it: 1 to MAX_CODE printable characters."""
    text = to_plain(str(code))[:MAX_CODE]
    return "".join(c if c.isprintable() else "?" for c in text) or Failed.code


def most_urgent(errors: Sequence[BaseException]) -> BaseException:
    """Return the error that ends an attempt of which several parts ended with one, also in groups of errors.

    A lost lease comes first: nothing may be reported then. A wait comes last: it would not lead past the other errors.
    """
    return min((single for error in errors for single in _flatten(error)), key=_urgency)


def urgency(error: BaseException) -> int:
    """Return how urgent an error or a group of errors is: the lower, the more."""
    return _urgency(most_urgent([error]))


def _flatten(error: BaseException) -> list[BaseException]:
    singles, rest = list[BaseException](), [error]
    # Without recursion: groups may be nested deeper than Python calls functions.
    while rest:
        one = rest.pop()
        if isinstance(one, _GROUP):
            rest += reversed(one.exceptions)
        else:
            singles.append(one)
    return singles


def _urgency(error: BaseException) -> int:
    if isinstance(error, TaskCancelled):
        return 0
    return 1 if isinstance(error, AttemptEnded) else 3 if isinstance(error, Suspended) else 2
