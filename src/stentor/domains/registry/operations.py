"""Operations on the registry of agents; for admins only. Source: core contract, "Agent registry"."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated

from fastapi import Query

from stentor.core.validation.text_checks import confusable_skeleton
from stentor.domains.registry import wire
from stentor.domains.registry.model import Agent, AgentStatus, Runtime, TrustTier
from stentor.domains.registry.model_checks import ModelChecks, describe_unserved
from stentor.domains.registry.service import AgentRegistry
from stentor.web.operations import operation
from stentor.web.wire import AgentId, Caller, Name, Offset, decode_cursor, encode_cursor

TrustLookup = Callable[[str, str], float | None]
"""(tenant, agent id) -> the trust score now, None if it was never set."""
PresenceLookup = Callable[[Agent], tuple[bool, int | None]]
"""Returns whether an agent is online, and when it was last seen, in microseconds; None if never."""
CountOpenTasks = Callable[[str, str], Awaitable[int]]
"""(tenant, agent id) -> how many of its tasks have not ended."""
CheckRuntime = Callable[[Runtime], None]
"""Raises StentorError if this service cannot run the runtime."""


class RegistryOperations:
    """The operations of administrators on agents."""

    def __init__(
        self,
        registry: AgentRegistry,
        trust_of: TrustLookup,
        check_runtime: CheckRuntime,
        presence_of: PresenceLookup,
        model_checks: ModelChecks,
        count_open_tasks: CountOpenTasks,
    ) -> None:
        self._registry = registry
        self._model_checks, self._count_open_tasks = model_checks, count_open_tasks
        self._trust_of, self._check_runtime, self._presence_of = trust_of, check_runtime, presence_of

    @operation("agents.register", "admin", "POST /registry/agents", 201, (409, 501))
    async def register(self, caller: Caller, body: wire.Register) -> wire.Registered:
        """Register an agent; it is active at once.

        `notice` warns if another agent has its name or one that looks the same, if an agent with its key is
        quarantined, or if no provider serves its model.
        """
        draft = body.to_draft()
        self._check_runtime(draft.runtime)
        namesake = _find_namesake(self._registry.agents.list_by_tenant(caller.tenant), draft.name)
        of_key = self._registry.agents.list_by_key(caller.tenant, draft.key_name) if draft.key_name else []
        quarantined = next((agent for agent in of_key if agent.is_quarantined), None)
        agent = await self._registry.register(caller.tenant, draft, caller)
        notices = [_describe_namesake(namesake, draft.name)] if namesake else []
        notices += [_describe_quarantined(quarantined)] if quarantined else []
        notices += filter(None, [await self._model_checks.check(agent)])
        return wire.Registered.of(agent, notice=" ".join(notices) or None)

    @operation("agents.list", "admin", "GET /registry/agents")
    async def list_agents(
        self,
        caller: Caller,
        capability: Annotated[str | None, Query(max_length=255)] = None,
        status: Annotated[AgentStatus | None, Query()] = None,
        trust_tier: Annotated[TrustTier | None, Query()] = None,
        archived: Annotated[bool | None, Query()] = None,
        ref: Annotated[Name | None, Query()] = None,
        limit: Annotated[int, Query(ge=1, le=1000)] = 100,
        offset: Offset = 0,
        cursor: Annotated[str | None, Query(max_length=512)] = None,
    ) -> wire.AgentPage:
        """List the agents that match, oldest first; `malformed` has the ids whose records cannot be read.

        Archived agents are listed with `archived`, or if `ref` refers to no other. `ref` is a name, the beginning or
        the end of an id, or the beginning of the last group of a UUID.
        """
        after = None if cursor is None else decode_cursor(cursor, int, str)
        agents = await self._registry.list_matching(
            caller.tenant,
            capability=capability,
            status=status,
            trust_tier=trust_tier,
            archived=None if ref is not None and archived is None else bool(archived),
        )
        if ref is not None:
            agents = _select_referred(agents, ref)
        # By the key and not the place of the last agent: others may have left the list since.
        remaining = agents if after is None else [agent for agent in agents if agent.position > after]
        listed = remaining[offset : offset + limit]
        return wire.AgentPage(
            agents=[
                wire.AgentRow.of(agent, notice=self._model_checks.known_problem(agent), **self._state(agent))
                for agent in listed
            ],
            total=len(agents),
            limit=limit,
            offset=offset,
            next_cursor=encode_cursor(*listed[-1].position) if offset + limit < len(remaining) else None,
            malformed=self._registry.list_malformed(caller.tenant),
        )

    @operation("agents.get", "admin", "GET /registry/agents/{agent_id}", errors=(404,))
    async def read(self, caller: Caller, agent_id: AgentId) -> wire.AgentOut:
        """Read one agent."""
        # For its trust, which is not in the record.
        await self._registry.agents.catch_up(limited=False)
        agent, last_task = await self._registry.get(caller.tenant, agent_id)
        notice = self._model_checks.known_problem(agent)
        return wire.AgentOut.of(agent, last_task=last_task, notice=notice, **self._state(agent))

    def _state(self, agent: Agent) -> dict[str, object]:
        """Return the fields that are not in the registry's row."""
        online, last_seen = self._presence_of(agent)
        return {
            "trust_score": self._trust_of(agent.tenant, agent.agent_id),
            "online": online,
            "offline_reason": None if online or agent.runtime.kind != "llm" else describe_unserved(agent),
            "last_seen": last_seen,
        }

    @operation("agents.edit", "admin", "PATCH /registry/agents/{agent_id}", errors=(404,))
    async def edit(self, caller: Caller, agent_id: AgentId, body: wire.Edit) -> wire.Scores:
        """Change the declared scores, the trust tier or the key of an agent at once.

        Capabilities, runtime and allow-list change by a proposal (`POST /governance/updates`). A looser trust tier
        needs a reason; it and another key need the key of a person that is not the agent's own.
        """
        agent = await self._registry.edit(
            caller.tenant, agent_id, body.to_changes(), caller, reason=body.reason.strip()
        )
        return wire.Scores.of(agent)

    @operation("agents.violations", "admin", "GET /registry/agents/{agent_id}/violations", errors=(404,))
    async def violations(
        self, caller: Caller, agent_id: AgentId, include_cleared: Annotated[bool, Query()] = False
    ) -> wire.Violations:
        """List the violations of an agent that count now; with `include_cleared` also those that were cleared."""
        agent, violations = await self._registry.list_violations(caller.tenant, agent_id, cleared=include_cleared)
        return wire.Violations.of(agent, violations=violations)

    @operation(
        "agents.clear_violations", "admin", "POST /registry/agents/{agent_id}/clear-violations", errors=(404, 409)
    )
    async def clear(self, caller: Caller, agent_id: AgentId, body: wire.Clear) -> wire.Cleared:
        """Clear the violations: set the count to 0, lift the quarantine and override the trust tier."""
        agent = await self._registry.clear_violations(
            caller.tenant, agent_id, body.override_tier, body.rationale, caller
        )
        return wire.Cleared.of(agent, overridden_by=caller.name)

    @operation("agents.suspend", "admin", "POST /registry/agents/{agent_id}/suspend", errors=(404, 409))
    async def suspend(self, caller: Caller, agent_id: AgentId, body: wire.Suspend) -> wire.StatusOut:
        """Suspend an active agent: it gets no new tasks."""
        return wire.StatusOut.of(await self._registry.suspend(caller.tenant, agent_id, body.reason, caller))

    @operation("agents.activate", "admin", "POST /registry/agents/{agent_id}/activate", errors=(404, 409))
    async def activate(self, caller: Caller, agent_id: AgentId) -> wire.StatusOut:
        """Lift a suspension."""
        return wire.StatusOut.of(await self._registry.activate(caller.tenant, agent_id, caller))

    @operation("agents.archive", "admin", "POST /registry/agents/{agent_id}/archive", errors=(404, 409))
    async def archive(self, caller: Caller, agent_id: AgentId, body: wire.Archive) -> wire.ArchivedOut:
        """Archive an agent: it gets no tasks, and lists leave it out; its history and proofs stay.

        409 while its tasks are running or waiting, unless `force` is set: suspend it first, and wait.
        """
        agent = await self._registry.archive(caller.tenant, agent_id, body.reason.strip(), caller, force=body.force)
        return wire.ArchivedOut.of(agent, open_tasks=await self._count_open_tasks(agent.tenant, agent.agent_id))

    @operation("agents.restore", "admin", "POST /registry/agents/{agent_id}/restore", errors=(404, 409))
    async def restore(self, caller: Caller, agent_id: AgentId) -> wire.StatusOut:
        """Bring an archived agent back, with the status that it had."""
        return wire.StatusOut.of(await self._registry.restore(caller.tenant, agent_id, caller))


def _find_namesake(agents: Sequence[Agent], name: str) -> Agent | None:
    """Return an agent with this name, else one whose name looks the same."""
    looks = confusable_skeleton(name)
    namesakes = [agent for agent in agents if confusable_skeleton(agent.name) == looks and not agent.is_archived]
    return min(namesakes, key=lambda agent: agent.name != name, default=None)


def _describe_namesake(agent: Agent, name: str) -> str:
    if agent.name == name:
        return f"another agent has the name {name!r}: {agent.agent_id}. Commands and workers need the id of yours."
    return f"the name {name!r} looks like that of another agent, {agent.name!r}: {agent.agent_id}."


def _describe_quarantined(agent: Agent) -> str:
    return (
        f"the key {agent.key_name!r} is also that of the agent {agent.name!r}, which is quarantined: {agent.agent_id}. "
        "A program with this key gets tasks again, as the new agent."
    )


def _select_referred(agents: list[Agent], ref: str) -> list[Agent]:
    """Return the agents that a text refers to: archived ones only if there is no other.

    One with this id goes before those with this name, and these before those with it as a part of their id.
    """
    whole = [agent for agent in agents if agent.agent_id == ref] or [agent for agent in agents if agent.name == ref]
    matching = whole or [agent for agent in agents if agent.matches(ref)]
    return [agent for agent in matching if not agent.is_archived] or matching
