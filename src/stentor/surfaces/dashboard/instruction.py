"""Turns an instruction into an ATP envelope and a task draft. Pure functions, no I/O; `streaming` executes them.

Only the envelope decides which agents are eligible. With `atp_strict` the caller writes it; otherwise it is built from
the fields and then parsed in the same way.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from pydantic import AfterValidator, StringConstraints

from stentor.core.errors import InvalidRequest
from stentor.domains.atp import bodies, text_format
from stentor.domains.atp import header as atp_header
from stentor.domains.atp.bodies import ExecuteBody
from stentor.domains.atp.model import MAX_CONTEXT_LENGTH, MAX_SPECIAL_NOTES_LENGTH, AtpHeader
from stentor.domains.tasks.model import TaskDraft, TaskMetadata
from stentor.web.routes import RequestModel, example_config
from stentor.web.wire import Name

MAX_INSTRUCTION_CHARACTERS = 200_000
DEFAULT_CONTEXT = "dashboard"
EXECUTE_ADDRESSES = (("kernel", "execute"), ("kernel", "query"))


def _no_nul(value: str) -> str:
    if "\0" in value:
        raise ValueError("must not contain the character NUL")
    return value


class Instruction(RequestModel):
    """The request's body. `agent` is an id or a name. With `atp_strict` the instruction is an ATP message in wire
    format.
    """

    model_config = example_config(
        instruction="Agents do tasks. Stentor routes each. It records why.", capability="summarize"
    )

    instruction: Annotated[
        str, StringConstraints(min_length=1, max_length=MAX_INSTRUCTION_CHARACTERS), AfterValidator(_no_nul)
    ]
    capability: Name | None = None
    agent: Name | None = None
    title: Name | None = None
    atp_strict: bool = False


class PlannedTask(msgspec.Struct, frozen=True):
    """A task to submit, with the ATP header of the instruction it comes from."""

    header: AtpHeader
    draft: TaskDraft


def plan_task(body: Instruction, agent_id: str | None) -> PlannedTask:
    """Plan the task of an instruction; `agent_id` is the id of `body.agent`.

    Raises InvalidRequest, and MessageInvalid with `atp_strict`.
    """
    return _plan_from_message(body, agent_id) if body.atp_strict else _plan_from_fields(body, agent_id)


def _plan_from_message(body: Instruction, agent_id: str | None) -> PlannedTask:
    message = text_format.parse_message(body.instruction)
    # Only these addresses submit a task; any other message is for the page Messages.
    message_body = bodies.parse_body(message) if message.header.zone_action in EXECUTE_ADDRESSES else None
    if not isinstance(message_body, ExecuteBody):
        raise InvalidRequest.of_field("instruction", "must be an execute message to the zone kernel")
    task, header = message_body.task, message.header
    capabilities = atp_header.required_capabilities(header, task.required_capabilities)
    preferred = atp_header.named_agent(header) or task.agent_preference
    if body.capability is not None and body.capability not in capabilities:
        raise InvalidRequest.of_field("capability", "does not match the envelope; leave it out")
    if agent_id is not None and agent_id != preferred:
        raise InvalidRequest.of_field("agent", "does not match the agent in the envelope; leave it out")
    task_input = text_format.strip_header(task.input) if isinstance(task.input, str) else task.input
    metadata = TaskMetadata(priority=header.priority, tags=_tags(body))
    return PlannedTask(
        header, TaskDraft(task.type, task_input, task.id, capabilities, task.timeout_seconds, preferred, metadata)
    )


def _plan_from_fields(body: Instruction, agent_id: str | None) -> PlannedTask:
    hints_by_name = {"capability": body.capability, "type": body.capability, "agent": agent_id}
    hints = ",".join(f"{key}={value}" for key, value in hints_by_name.items() if value is not None)
    context = (body.title or DEFAULT_CONTEXT)[:MAX_CONTEXT_LENGTH].strip() or DEFAULT_CONTEXT
    header = AtpHeader("stream", context, "normal", "execute", "kernel", hints or None)
    # Parse the hints back: a comma or outer spaces in a value would change which agents the envelope reaches.
    capabilities = atp_header.required_capabilities(header)
    if len(hints) > MAX_SPECIAL_NOTES_LENGTH or capabilities != ((body.capability,) if body.capability else ()):
        raise InvalidRequest.of_field(
            "capability", "not allowed in an envelope: no commas, no outer spaces, at most 90 characters"
        )
    draft = TaskDraft(
        atp_header.task_type_of_text(header),
        text_format.strip_header(body.instruction),
        None,
        capabilities,
        agent_preference=atp_header.named_agent(header),
        metadata=TaskMetadata(tags=_tags(body)),
    )
    return PlannedTask(header, draft)


def _tags(body: Instruction) -> tuple[str, ...]:
    return (body.title,) if body.title else ()
