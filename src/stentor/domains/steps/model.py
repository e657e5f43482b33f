"""A step of a task and its record, and what a person is asked about it. No I/O."""

from __future__ import annotations

import base64
import hashlib
from typing import Any, Literal
from urllib.parse import urlsplit

import msgspec

from stentor.core import jsontext
from stentor.core.clock import format_iso
from stentor.core.errors import InvalidRequest, StepMismatch
from stentor.core.jsontext import JsonObject
from stentor.domains.registry.model import Agent
from stentor.domains.tasks.model import Task

StepKind = Literal["step", "effect", "sleep", "signal", "question", "child"]
WaitKind = Literal["sleep", "signal", "question", "child"]
StepState = Literal["started", "completed", "failed"]
Encoding = Literal["json", "base64"]
MAX_KEY = 1024
MAX_INLINE_BYTES = 4096
"""A longer value is stored beside the journal, once for each content."""
MAX_PAGE = 1000
MAX_WAIT_SECONDS = 10 * 365 * 86_400
MAX_SIGNALS = 1_000
"""Signals of a task that nobody has waited for yet."""
WAIT_TIMEOUT = "WaitTimeout"
"""The error of a wait that ended without what it waited for."""
NOT_SENT = "NotSent"
"""The error of an effect of which a person said that it did not happen."""
CHILD_FAILED = "ChildFailed"
"""The error of a wait for a child that did not complete."""
HAPPENED = (
    "It happened: it is not sent again. Its value is recorded, and the task continues with it when it is retried."
)
NOT_HAPPENED = "It did not happen: it is sent again, with the same key, when the task is retried."
HTTP_REQUEST, TOOL_CALL = "request", "/tool "
"""Key and name of the request to an `http` agent, and a part of the keys of the tools that an `llm` agent calls."""


class Step(msgspec.Struct, frozen=True):
    """A recorded step.

    `key` identifies the step in its task. `event_id` is that of its first event: it gives the order, and is the
    idempotency key of an effect, the same in each attempt. A long value is not in `value`: only its SHA-256, in hex,
    is in `value_hash`. `size` is in bytes, `epoch` is the attempt that recorded it, times are in microseconds.

    A wait ends by itself at `wake_at`. It waits for `reference`: the name of a signal, the text of a question, whose
    answer is one of `options` if there are any, or the id of a child. The task continues when all open waits with the
    same `together` have ended; without it, when this one has. `handled`: the program continued after the step failed.

    A step that was recorded for another task, from which this one continues, has the epoch 0. Its `event_id` only gives
    its place, and `together` is the event of its last run if that is another one.
    """

    key: str
    event_id: str
    name: str
    kind: StepKind
    state: StepState
    position: int | None
    epoch: int
    encoding: Encoding
    value: Any
    value_hash: str | None
    size: int
    error: JsonObject | None
    started_at: int
    ended_at: int | None
    wake_at: int | None = None
    reference: str | None = None
    options: tuple[Any, ...] | None = None
    together: str | None = None
    handled: int = 0

    @property
    def duration_ms(self) -> int | None:
        """How long it took, or how long the task waited; None until it has ended."""
        return None if self.ended_at is None else max(self.ended_at - self.started_at, 0) // 1000


class StepOutcome(msgspec.Struct, frozen=True):
    """How a step ended: with a value, as the bytes of its JSON or of what base64 decodes to, or with an error."""

    content: bytes = b"null"
    encoding: Encoding = "json"
    error: JsonObject | None = None

    @classmethod
    def of_value(cls, value: Any, encoding: Encoding = "json") -> StepOutcome:
        """Return the outcome with a value as it is on the wire. Raises InvalidRequest for wrong base64."""
        if encoding == "json":
            return cls(jsontext.encode(value))
        try:
            return cls(base64.b64decode(value, validate=True), encoding)
        except (TypeError, ValueError):
            raise InvalidRequest("value: must be base64, as `encoding` says.") from None

    @property
    def state(self) -> StepState:
        return "completed" if self.error is None else "failed"

    @property
    def sha256(self) -> str:
        """The SHA-256 of the value in hex."""
        return hashlib.sha256(self.content).hexdigest()


class StepDraft(msgspec.Struct, frozen=True):
    """A step as the worker names it.

    `position` is its place among the steps of its scope that run one after another, None for one that runs beside
    others: by it the worker notices that its program has changed.
    `seconds` is how long a wait may take; `reference`, `options` and `together` as in a Step. `request` says what the
    outcome came from, in digests; it is in the event only, for replays. So is `tool`, the tool that it called, for
    traces.
    """

    key: str
    name: str
    kind: StepKind = "step"
    position: int | None = None
    seconds: float | None = None
    reference: str | None = None
    options: tuple[Any, ...] | None = None
    together: str | None = None
    request: JsonObject | None = None
    tool: str | None = None


def decode_value(encoding: Encoding, content: bytes) -> Any:
    """Return the value as it is on the wire."""
    return jsontext.load(content) if encoding == "json" else base64.b64encode(content).decode()


def is_superseded(step: Step, task: Task) -> bool:
    """Return whether a failed step runs again, because the task was retried since or a person says it did not happen.

    Other outcomes stay, and so does an error after which the program continued: otherwise what failed before would be
    done in addition to what it did then, such as a payment with another card.
    """
    # Up to the claim that was the last one when a person retried: later failures stay as they are.
    return step.state == "failed" and (step.epoch <= task.retry_epoch or _was_denied(step)) and not step.handled


def replaced_event(step: Step, event_id: str) -> str:
    """Return the `event_id` of a step that runs again: a new one, but for an effect of which a person said that it did
    not happen. Should that be wrong, the other side still recognizes the key.
    """
    return step.together or step.event_id if _was_denied(step) else event_id


def _was_denied(step: Step) -> bool:
    """Return whether a person says of an effect that it did not happen: no error of a worker has `resolved_by`."""
    return step.error is not None and "resolved_by" in step.error


def timeout_outcome(step: Step) -> StepOutcome:
    """Return how a wait ends whose time is over: a sleep well, everything else with an error."""
    if step.kind == "sleep":
        return StepOutcome()
    message = {
        "signal": f"No signal {step.reference!r} arrived in time.",
        "question": "Nobody answered in time.",
        "child": "The child did not end in time.",
    }[step.kind]
    return StepOutcome(error={"type": WAIT_TIMEOUT, "message": message})


def require_same_step(recorded: Step, draft: StepDraft) -> None:
    """Raise StepMismatch if the journal has another step at this key, or a wait for something else."""
    before, now = f"{recorded.kind} {recorded.name!r}", f"{draft.kind} {draft.name!r}"
    if draft.kind in ("signal", "question", "child") and before == now:
        # The answer to another question, or the end of another child, must not be taken for this one's.
        before, now = _describe_wait(recorded), _describe_wait(draft)
    if before != now:
        raise StepMismatch(
            f"The journal has the {before} at this key, and the program runs the {now}: the program has changed since "
            "the task began. Start the old version and retry the task, or submit it again.",
            {"key": draft.key, "recorded": recorded.name, "received": draft.name},
        )


def _describe_wait(wait: Step | StepDraft) -> str:
    options = f" with the options {', '.join(map(repr, wait.options))}" if wait.options else ""
    return f"{wait.kind} {wait.reference!r}{options}"


def describe_question(step: Step, agent: Agent | None) -> str | None:
    """Return what a person is asked about an open step of an agent's task; None if nothing is asked."""
    if step.state != "started" or step.kind not in ("question", "effect"):
        return None
    if step.kind == "question":
        return step.reference
    moment = f"{format_iso(step.started_at)[:19].replace('T', ' ')} UTC"
    name, kind = ("its agent", "") if agent is None else (f"the agent {agent.name}", agent.runtime.kind)
    if kind == "http" and step.key == HTTP_REQUEST:
        host = urlsplit(agent.runtime.endpoint or "").hostname if agent is not None else None
        return f"Did {name} do the task? The request was sent{f' to {host}' if host else ''} at {moment}."
    what = "call of the tool" if kind == "llm" and TOOL_CALL in step.key else "effect"
    return f"Did the {what} {step.name!r} happen? {name[0].upper()}{name[1:]} began it at {moment}."
