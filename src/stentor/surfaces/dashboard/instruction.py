"""What the caller wants done, as an ATP envelope and the task that follows from it: pure.

The envelope alone says which agents are reached. In the strict form the caller writes it; otherwise it is made here
from the fields, and read back the same way.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from pydantic import AfterValidator, StringConstraints

from stentor.core.errors import InvalidRequest
from stentor.domains.atp import checks, notes, text
from stentor.domains.atp.bodies import Execute
from stentor.domains.atp.model import MAX_CONTEXT, MAX_NOTES, Header
from stentor.domains.tasks.model import TaskDraft, TaskMetadata
from stentor.web.routes import RequestModel, example_config
from stentor.web.wire import Name

MAX_INSTRUCTION_CHARACTERS = 200_000
"""Characters of an instruction."""
DEFAULT_CONTEXT = "dashboard"
EXECUTE_ADDRESSES = (("kernel", "execute"), ("kernel", "query"))


def _no_nul(value: str) -> str:
    if "\0" in value:
        raise ValueError("must not contain the character NUL")
    return value


class Instruction(RequestModel):
    """`agent` is an id or a name. With `atp_strict` the instruction is an ATP message in its wire form."""

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
    header: Header
    draft: TaskDraft


def plan_task(body: Instruction, agent_id: str | None) -> PlannedTask:
    """`agent_id` is the id of `body.agent`. Raises InvalidRequest, and MessageInvalid in the strict form."""
    return _strict(body, agent_id) if body.atp_strict else _loose(body, agent_id)


def _strict(body: Instruction, agent_id: str | None) -> PlannedTask:
    message = text.parse(body.instruction)
    wanted = checks.body_of(message) if message.header.address in EXECUTE_ADDRESSES else None
    if not isinstance(wanted, Execute):
        raise _invalid("instruction", "must be a message to the zone kernel that has work done (execute)")
    task, header = wanted.task, message.header
    capabilities = notes.capabilities(header, task.required_capabilities)
    preferred = notes.agent(header) or task.agent_preference
    if body.capability is not None and body.capability not in capabilities:
        raise _invalid("capability", "is not what the envelope asks for; leave it out")
    if agent_id is not None and agent_id != preferred:
        raise _invalid("agent", "is not the agent that the envelope names; leave it out")
    given = text.without_head(task.input) if isinstance(task.input, str) else task.input
    metadata = TaskMetadata(priority=header.priority, tags=_tags(body))
    return PlannedTask(
        header, TaskDraft(task.type, given, task.id, capabilities, task.timeout_seconds, preferred, metadata)
    )


def _loose(body: Instruction, agent_id: str | None) -> PlannedTask:
    named = {"capability": body.capability, "type": body.capability, "agent": agent_id}
    hints = ",".join(f"{key}={value}" for key, value in named.items() if value is not None)
    context = (body.title or DEFAULT_CONTEXT)[:MAX_CONTEXT].strip() or DEFAULT_CONTEXT
    header = Header("stream", context, "normal", "execute", "kernel", hints or None)
    capabilities = notes.capabilities(header)
    if len(hints) > MAX_NOTES or capabilities != ((body.capability,) if body.capability else ()):
        raise _invalid("capability", "cannot stand in an envelope: no commas, no spaces around it, 90 characters")
    draft = TaskDraft(
        notes.task_type(header),
        text.without_head(body.instruction),
        None,
        capabilities,
        agent_preference=notes.agent(header),
        metadata=TaskMetadata(tags=_tags(body)),
    )
    return PlannedTask(header, draft)


def _tags(body: Instruction) -> tuple[str, ...]:
    return (body.title,) if body.title else ()


def _invalid(field: str, reason: str) -> InvalidRequest:
    return InvalidRequest(f"{field}: {reason}.", {"fields": {field: reason}})
