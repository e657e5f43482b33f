"""One agent: its record, its trust, what it learned, what it did wrong, and what a person may do to it."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.responses import Response

from stentor.core.clock import iso, iso_or_none
from stentor.core.db import Tx
from stentor.domains.learning import model as learning
from stentor.domains.learning.model import Alert, Weight
from stentor.domains.trust import model as trust_model
from stentor.domains.trust.model import Change
from stentor.surfaces.dashboard.card import card as text_card
from stentor.surfaces.dashboard.pages import agents_rows, lines, masking
from stentor.surfaces.dashboard.pages.agents import TIERS
from stentor.surfaces.dashboard.pages.calls import Refused, part
from stentor.surfaces.dashboard.pages.site import Page
from stentor.surfaces.dashboard.stores import standing

TASKS, ENTRIES, CONNECTIONS, UPDATES = 10, 100, 100, 5
Found = tuple[list[Change], list[Weight], list[Alert]]


async def agent(page: Page) -> Response:
    agent_id = page.param("agent_id")
    record = await _record(page, agent_id)
    violations, history, links, tasks, updates, computed, names, found = await asyncio.gather(
        page.get(f"/registry/agents/{part(agent_id)}/violations", include_cleared="true"),
        page.get(f"/hebbian/history/{part(agent_id)}", limit=ENTRIES),
        page.get("/hebbian/connections", agent_id=agent_id),
        page.get("/tasks", agent_id=agent_id, limit=TASKS),
        page.get("/governance/updates", agent_id=agent_id, limit=UPDATES),
        _computed(page, agent_id),
        page.rows.names(page.tenant),
        page.rows.read(lambda tx: _read(tx, page.tenant, agent_id)),
    )
    changes, weights, alerts = found
    return page.render(
        "agent.html",
        block="live",
        agent=record,
        violations=violations["violations"][::-1],
        history=history,
        connections=_connections(links["connections"], agent_id),
        tasks=tasks["tasks"],
        updates=updates["updates"],
        computed=computed,
        names=names,
        runtime=masking.runtime(record["runtime"]),
        composite=_composite(record),
        trust=_trust(record, changes, page.site.now()),
        weights=_weights(weights, history["history"], page.site.now()),
        alerts=[_alert(alert) for alert in alerts],
        tiers=TIERS,
    )


async def _record(page: Page, agent_id: str) -> dict[str, Any]:
    return dict(await page.get(f"/registry/agents/{part(agent_id)}"))


def _read(tx: Tx, tenant: str, agent_id: str) -> Found:
    return (
        agents_rows.trust(tx, tenant, agent_id),
        agents_rows.weights(tx, tenant, agent_id),
        agents_rows.alerts(tx, tenant, agent_id),
    )


async def _computed(page: Page, agent_id: str) -> dict[str, Any] | None:
    """What governance would compute from the service's own records, without storing it; None of nothing."""
    try:
        return dict(await page.post(f"/governance/agents/{part(agent_id)}/trust", {"persist": False}))
    except Refused as refused:
        if refused.status == 422:
            return None
        raise


def _composite(record: dict[str, Any]) -> float:
    shares = {"alignment_score": 0.4, "accuracy_score": 0.4, "efficiency_score": 0.2}
    return sum(share * float(record[name]) for name, share in shares.items())


def _trust(record: dict[str, Any], changes: list[Change], now: int) -> dict[str, Any]:
    """The line goes up to now, with what decayed since the last change."""
    score = record["trust_score"]
    points = [(change.happened_at, change.score) for change in reversed(changes)]
    if points and score is not None and now > points[-1][0]:
        points.append((now, score))
    rows = [
        {"time": iso(one.happened_at), "kind": one.kind, "delta": one.delta, "score": one.score, "cause": one.cause}
        for one in changes
    ]
    level = None if score is None else trust_model.level_of(score)
    return {"line": lines.line(points, 0.0, 1.0), "changes": rows, "level": level, "since": rows and rows[-1]["time"]}


def _weights(weights: list[Weight], entries: list[dict[str, Any]], now: int) -> list[dict[str, Any]]:
    """Each task type with its last outcomes and how its weight moved."""
    top = max((weight.at(now) for weight in weights), default=0.0)
    return [
        {
            "type": weight.task_type,
            "weight": weight.at(now),
            "most": max(top, 1.0),
            "mean_ms": weight.mean_ms,
            "samples": weight.samples,
            "recent": weight.recent,
            "successes": weight.recent.count("S"),
            "rate": learning.oscillation(weight.recent),
            "alarming": learning.alarming(weight.recent),
            "line": _moves(weight.task_type, entries),
        }
        for weight in weights
    ]


def _moves(task_type: str, entries: list[dict[str, Any]]) -> lines.Line | None:
    """By number of the outcome, not by its time: bursts would be one stroke."""
    values = [float(one["weight_after"]) for one in reversed(entries) if one["task_type"] == task_type]
    if len(values) < 2:
        return None
    return lines.line(list(enumerate(values)), min(values), max(values))


def _connections(found: list[dict[str, Any]], agent_id: str) -> list[dict[str, Any]]:
    """The strongest first, each by the other end."""
    strongest = sorted(found, key=lambda one: -one["weight"])[:CONNECTIONS]
    return [{**one, "other": one["agent2"] if one["agent1"] == agent_id else one["agent1"]} for one in strongest]


def _alert(alert: Alert) -> dict[str, Any]:
    times = {"opened_at": iso(alert.opened_at), "resolved_at": iso_or_none(alert.resolved_at)}
    return {name: getattr(alert, name) for name in ("task_type", "rate", "threshold", "samples")} | times


async def card(page: Page) -> Response:
    """The agent on one page of plain text, as `stentor agent` and `GET /api/agents/{id}/card` show it."""
    agent_id = page.param("agent_id")
    record = await _record(page, agent_id)
    now = page.site.now()
    found, weights = await page.rows.read(lambda tx: standing(tx, page.tenant, agent_id, now))
    return page.render("agent-card.html", agent=record, card=text_card(found, weights, now))


async def suspend(page: Page) -> Response:
    return await _act(page, "suspend", "suspended", {"reason": (await page.form()).get("reason", "")})


async def activate(page: Page) -> Response:
    return await _act(page, "activate", "activated")


async def clear(page: Page) -> Response:
    form = await page.form()
    body = {"override_tier": form.get("tier", ""), "rationale": form.get("rationale", "")}
    return await _act(page, "clear-violations", "cleared", body)


async def _act(page: Page, verb: str, notice: str, body: Any = None) -> Response:
    agent_id = part(page.param("agent_id"))
    await page.post(f"/registry/agents/{agent_id}/{verb}", body)
    return page.back(f"/agents/{agent_id}", notice)


async def checkpoint(page: Page) -> Response:
    taken = await page.post("/governance/checkpoints", {"agent_id": page.param("agent_id")})
    return page.back(f"/governance/checkpoints/{part(taken['checkpoint_id'])}", "taken")


ROUTES = [
    ("GET", "/agents/{agent_id}", agent),
    ("GET", "/agents/{agent_id}/card", card),
    ("POST", "/agents/{agent_id}/suspend", suspend),
    ("POST", "/agents/{agent_id}/activate", activate),
    ("POST", "/agents/{agent_id}/clear-violations", clear),
    ("POST", "/agents/{agent_id}/checkpoints", checkpoint),
]
