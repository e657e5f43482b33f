"""`stentor governance checkpoints` and `rollback`: list and take checkpoints of agents, and return to one."""

from __future__ import annotations

import asyncio
import time
from typing import Annotated

import msgspec
import typer

from stentor.cli import output
from stentor.cli.client import ServiceClient, quote_segment
from stentor.cli.command import Access, ServiceTarget, current_user, with_service
from stentor.cli.governance_reference import find_agent, with_part_of_id
from stentor.cli.output import EXIT_USAGE, CommandFailed, console, report_errors
from stentor.cli.responses import Response
from stentor.core.jsontext import JsonObject

CHECKPOINTS, ROLLBACKS = "/governance/checkpoints", "/governance/rollbacks"
ROLLBACK_TIMEOUT_SECONDS = 300.0
"""How long the command waits for a rollback to end; it usually ends at once."""


class CheckpointRow(msgspec.Struct, frozen=True):
    checkpoint_id: str
    agent_id: str
    cause: str
    taken_by: str
    taken_at: str
    intact: bool


class CheckpointList(msgspec.Struct, frozen=True):
    checkpoints: list[CheckpointRow]

    @property
    def labels(self) -> dict[str, str]:
        return {row.checkpoint_id: f"{row.cause}, {output.format_age(row.taken_at)}" for row in self.checkpoints}


class StartedRollback(msgspec.Struct, frozen=True):
    rollback_id: str


class RollbackState(msgspec.Struct, frozen=True):
    """A rollback; `completed_at` is set once it has succeeded or failed."""

    rollback_id: str
    status: str
    completed_at: str | None
    verified: bool
    notes: str | None


@with_service
def checkpoints(
    service: ServiceTarget,
    agent: Annotated[str | None, typer.Option(help="Only checkpoints of this agent: its name or id.")] = None,
    take: Annotated[bool, typer.Option("--take", help="Create a checkpoint of --agent first.")] = False,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Maximum number of checkpoints.")] = 100,
) -> None:
    """List checkpoints, newest first; with --take create one first."""
    if take and agent is None:
        with report_errors(as_json=service.as_json):
            raise CommandFailed("--take needs --agent.", EXIT_USAGE)

    async def work(api: ServiceClient) -> Response[CheckpointList]:
        agent_id = None if agent is None else await find_agent(api, agent)
        if take:
            await api.post(CHECKPOINTS, JsonObject, {"agent_id": agent_id})
        return await api.get(CHECKPOINTS, CheckpointList, agent_id=agent_id, limit=limit)

    access: Access = "change" if take else "read"
    service.call(work, _show_checkpoints, access=access)


@with_service
def rollback(
    service: ServiceTarget,
    checkpoint_id: Annotated[
        str, typer.Argument(metavar="CHECKPOINT", help="The checkpoint's id, or the beginning or end of the id.")
    ],
    reason: Annotated[str, typer.Option(help="Reason, stored with the rollback.")],
    details: Annotated[str | None, typer.Option(help="Further details.")] = None,
) -> None:
    """Roll an agent back to a checkpoint, and wait until the rollback is verified."""
    body = {"initiated_by": current_user(), "reason": reason, "details": details or ""}

    async def work(api: ServiceClient) -> Response[RollbackState]:
        started = await with_part_of_id(
            api,
            CHECKPOINTS,
            CheckpointList,
            checkpoint_id,
            lambda found: api.post(ROLLBACKS, StartedRollback, body | {"checkpoint_id": found}),
        )
        return await wait_for_rollback(api, started.value.rollback_id)

    service.call(work, _show_rollback, access="change", is_success=lambda rollback: rollback.status != "failed")


async def wait_for_rollback(
    api: ServiceClient, rollback_id: str, timeout_seconds: float = ROLLBACK_TIMEOUT_SECONDS
) -> Response[RollbackState]:
    """Return the rollback once it has succeeded or failed. Raises CommandFailed if it is still running after a time."""
    deadline, pause = time.monotonic() + timeout_seconds, 0.1
    while True:
        response = await api.get(f"{ROLLBACKS}/{quote_segment(rollback_id)}", RollbackState)
        if response.value.completed_at is not None:
            return response
        if time.monotonic() + pause > deadline:
            raise CommandFailed(
                f"Rollback {rollback_id} is still {response.value.status} after {timeout_seconds:g} s. It continues in "
                f"the service. Check it with: stentor call rollbacks.get rollback_id={rollback_id}"
            )
        await asyncio.sleep(pause)
        # A rollback that takes longer must not use up the rate limit of the key.
        pause = min(1.0, pause * 1.5)


def _show_checkpoints(page: CheckpointList) -> None:
    rows = [
        (
            output.shorten_id(c.checkpoint_id),
            output.shorten_id(c.agent_id),
            c.cause,
            c.taken_by,
            output.format_age(c.taken_at),
            "yes" if c.intact else "no",
        )
        for c in page.checkpoints
    ]
    console.print(output.render_table(("id", "agent", "cause", "by", "created", "intact"), rows))


def _show_rollback(rollback: RollbackState) -> None:
    verified = " and verified" if rollback.verified else ""
    output.print_line(
        f"Rollback {rollback.rollback_id} is {rollback.status}{verified}. {rollback.notes or ''}".rstrip()
    )
