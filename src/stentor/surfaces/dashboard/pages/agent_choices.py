"""Agents to choose from in a form or a filter: without archived ones, and with short ids where names are the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from stentor.domains.registry import queries as registry_queries
from stentor.surfaces.dashboard.presenters.filters import shorten_id
from stentor.surfaces.dashboard.site.page import PageRequest


async def read_agent_choices(page: PageRequest, chosen: str = "") -> dict[str, str]:
    """Return a label for each agent by its id, in the order of the labels; `chosen` also if it is archived."""
    return label_agents(await page.read(registry_queries.read_current_names, chosen))


def label_agents(names: Mapping[str, str]) -> dict[str, str]:
    """Return the names by id, in their order; those that several agents have with the short id."""
    counts = Counter(names.values())
    labels = {
        agent_id: f"{name} ({shorten_id(agent_id)})" if counts[name] > 1 else name for agent_id, name in names.items()
    }
    return dict(sorted(labels.items(), key=lambda item: (item[1].lower(), item[0])))
