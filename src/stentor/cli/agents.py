"""How commands list and show agents, and find one by its name."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from stentor.cli import output
from stentor.cli.client.responses import read_fields
from stentor.cli.output import console
from stentor.core.jsontext import JsonObject

AGENTS_PATH = "/registry/agents"
COLUMNS = ("name", "capabilities", "trust", "status", "presence", "seen", "id")
MIN_WIDTH_OF_ALL_COLUMNS = 100
"""Characters of a terminal on which the list of agents says when each was seen."""


class AgentPresence(msgspec.Struct, frozen=True):
    """The computed fields of an agent."""

    trust_score: float | None
    online: bool
    last_seen: str | None = None
    offline_reason: str | None = None


class ListedAgent(AgentPresence, frozen=True, kw_only=True):
    agent_id: str
    name: str
    capabilities: list[str]
    status: str
    archived_at: str | None = None
    notice: str | None = None


class AgentList(msgspec.Struct, frozen=True):
    path: ClassVar[str] = AGENTS_PATH
    noun: ClassVar[str] = "agent"

    agents: list[ListedAgent]
    total: int

    @property
    def labels(self) -> dict[str, str]:
        return {agent.agent_id: agent.name for agent in self.agents}


def _trust(score: float | None) -> str:
    return "unscored" if score is None else f"{score:.3f}"


def _presence(agent: AgentPresence) -> str:
    """Return `online` or `offline`, and when a worker was last seen."""
    word = "online" if agent.online else agent.offline_reason or "offline"
    return f"{word}, seen {output.format_age(agent.last_seen)}" if agent.last_seen else word


def _word(agent: ListedAgent) -> str:
    """Return `online` or `offline`; why an agent is offline, unless its notice below the list says it."""
    if agent.archived_at:
        return "-"
    return "online" if agent.online else (None if agent.notice else agent.offline_reason) or "offline"


def show_agents(page: AgentList) -> None:
    """Print a page of agents, and below it what hinders one of them."""
    rows = [
        {
            "name": a.name,
            "capabilities": ", ".join(a.capabilities),
            "trust": _trust(a.trust_score),
            "status": f"archived, {a.status}" if a.archived_at else a.status,
            "presence": _word(a),
            "seen": output.format_age(a.last_seen),
            "id": output.shorten_id(a.agent_id),
        }
        for a in page.agents
    ]
    # On a narrow terminal the names of capabilities would be cut into pieces.
    hidden = {"seen"} if console.width < MIN_WIDTH_OF_ALL_COLUMNS else set()
    if hidden and console.is_terminal:
        # One long name would make every agent a record of its own. The id names the agent as well.
        for row in rows:
            row["name"] = output.shorten_name(row["name"])
    columns = [name for name in COLUMNS if name not in hidden]
    console.print(output.render_table(columns, ([row[name] for name in columns] for row in rows)))
    for agent in page.agents:
        if agent.notice:
            output.print_notice(f"Notice: {agent.name}: {agent.notice}", "yellow")
    if page.total > len(rows):
        console.print(f"Showing {len(rows)} of {page.total}; use --limit for more.", style="dim")


def show_agent(record: JsonObject) -> None:
    """Print an agent without its empty fields; --json has all."""
    agent = read_fields(record, AgentPresence)
    runtime = {name: value for name, value in record["runtime"].items() if name != "kind"}
    fields = record | {"trust_score": _trust(agent.trust_score), "online": _presence(agent)}
    fields |= {"runtime": record["runtime"]["kind"], **{f"runtime {name}": value for name, value in runtime.items()}}
    console.print(output.render_record({name: value for name, value in fields.items() if not output.is_empty(value)}))
