"""The audit page: who signed in, what was changed and what was refused; who did it, and which record it was about."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec
from starlette.responses import Response

from stentor.core.db import Tx
from stentor.core.jsontext import JsonObject
from stentor.domains.audit.store import CATEGORIES
from stentor.domains.memory.vaults import DEFAULT_VAULT
from stentor.domains.registry import queries as registry_queries
from stentor.domains.schedules import store as schedule_store
from stentor.domains.tasks.reading import list_queries
from stentor.domains.tasks.reading.list_model import TaskFilter
from stentor.domains.webhooks import store as webhook_store
from stentor.surfaces.dashboard.gateway import quote_segment
from stentor.surfaces.dashboard.presenters.filters import SERVICE, name_actor, shorten_id, shorten_ids
from stentor.surfaces.dashboard.presenters.notes.note_rendering import note_url
from stentor.surfaces.dashboard.site.forms import times_of_days
from stentor.surfaces.dashboard.site.page import PageRequest, encode_query

PAGE_SIZE = 50
FILTERS = ("category", "q", "from", "to")
_UNKNOWN = "not signed in"
_RECORDS = (("update_id", "update", "/governance/updates/"), ("rollback_id", "rollback", "/governance/rollbacks/"))
_SUBJECTS = {
    "key_changed": ("name", "/keys/"),
    "schedule_changed": ("name", "/schedules/"),
    "person_changed": ("name", None),
    "provider_changed": ("provider", None),
    "budget_changed": ("subject", None),
    "model_route_changed": ("name", None),
    "sign_in_refused": ("account", None),
}
"""The member of the metadata that names what an event is about, and the path of its page, by the event's type."""
_PAGES = {
    "person_changed": "/people",
    "provider_changed": "/models/providers",
    "budget_changed": "/models/budgets",
    "model_route_changed": "/models/providers",
}


async def show_audit(page: PageRequest) -> Response:
    filters = {name: page.query_param(name) for name in FILTERS}
    if filters["category"] not in CATEGORIES:
        filters["category"] = ""
    entries = await page.call(
        "audit.list",
        category=filters["category"],
        text=filters["q"],
        limit=PAGE_SIZE,
        cursor=page.query_param("cursor"),
        **times_of_days(filters),
    )
    return page.render(
        "audit.html",
        block="rows" if page.query_param("cursor") else "results",
        rows=await page.read(_present_events, entries["events"]),
        categories=tuple(CATEGORIES),
        filters=filters,
        is_filtered=any(filters.values()),
        address=lambda **changed: f"/audit?{encode_query(filters | changed)}",
        more=encode_query(filters | {"cursor": entries["next_cursor"]}) if entries["next_cursor"] else "",
    )


def _present_events(tx: Tx, tenant: str, events: list[JsonObject]) -> list[AuditRow]:
    """Return the rows, with the names of the agents, tasks, webhooks and schedules that still exist."""
    task_ids = sorted({event["task_id"] for event in events if event["task_id"]})
    tasks = list_queries.list_matching(tx, tenant, TaskFilter(), task_ids) if task_ids else []
    titles = {task.task_id: task.title for task in tasks}
    webhooks = {row.subscription_id: row.url for row in webhook_store.list_subscriptions(tx, tenant)}
    schedules = schedule_store.list_names(tx, tenant)
    names = registry_queries.read_names(tx, tenant)
    return [present(event, names, titles, webhooks, schedules) for event in events]


class AuditLink(msgspec.Struct, frozen=True):
    """A name; `url` is None for what has no page."""

    text: str
    url: str | None = None


class AuditRow(msgspec.Struct, frozen=True):
    """An event for the list. `about` is the subject, None if that is the actor (`by`)."""

    event: JsonObject
    by: AuditLink
    about: AuditLink | None

    @property
    def adds_subject(self) -> bool:
        """Whether the message does not name the subject."""
        return self.about is not None and self.about.text not in self.event["message"]


def present(
    event: JsonObject,
    names: Mapping[str, str],
    titles: Mapping[str, str],
    webhooks: Mapping[str, str],
    schedules: Collection[str],
) -> AuditRow:
    """Return a row. `names` of agents, `titles` of tasks and addresses of `webhooks` are by id.

    `schedules` are the names of the existing schedules.
    """
    by, agent = _find_actor(event, names), _agent_link(event, names)
    if agent:
        event = event | {"message": event["message"].replace(event["agent_id"], agent.text)}
    # Full ids are too long for a narrow column on a phone; the event's page shows them.
    event = event | {"message": shorten_ids(event["message"])}
    subject = _find_subject(event, webhooks, schedules) or _find_record(event, titles, agent)
    return AuditRow(event, by, subject or (agent if agent != by else None))


def _find_actor(event: JsonObject, names: Mapping[str, str]) -> AuditLink:
    if event["by"] and (name := name_actor(event["by"])) != SERVICE:
        return AuditLink(name)
    if event["event_type"] == "tool_denied":
        # If a key asked on the agent's behalf, `by` names it, see above.
        return _agent_link(event, names) or AuditLink(SERVICE)
    return AuditLink(_UNKNOWN if event["event_type"] == "sign_in_refused" else SERVICE)


def _agent_link(event: JsonObject, names: Mapping[str, str]) -> AuditLink | None:
    if not (agent_id := event["agent_id"]):
        return None
    return AuditLink(names.get(agent_id) or shorten_id(agent_id), f"/agents/{quote_segment(agent_id)}")


def _find_subject(event: JsonObject, webhooks: Mapping[str, str], schedules: Collection[str]) -> AuditLink | None:
    metadata, type_ = event["metadata"], event["event_type"]
    if type_ in ("webhook_changed", "webhook_disabled"):
        webhook_id = str(metadata.get("webhook_id"))
        if webhook_id in webhooks:
            return AuditLink(webhooks[webhook_id], f"/webhooks/{quote_segment(webhook_id)}")
        return AuditLink(str(metadata["host"])) if metadata.get("host") else None
    if type_ in ("memory_invalidated", "memory_restored"):
        return _mark_link(metadata)
    if type_ == "alert_thresholds_changed":
        return AuditLink("Thresholds of alerts", "/alerts")
    if type_ == "tool_denied" and not event["by"]:
        target = metadata.get("path") or metadata.get("host") or metadata.get("namespace")
        return AuditLink(str(target)) if target else None
    member, path = _SUBJECTS.get(type_, ("", None))
    # An agent's own page says more than the name in the metadata.
    if event["agent_id"] or not metadata.get(member):
        return None
    name = str(metadata[member])
    if name == "*":  # of a budget, or of fallbacks
        name = f"each {metadata['kind']}" if type_ == "budget_changed" else "every model"
    if type_ == "schedule_changed" and name not in schedules:
        return AuditLink(name)
    return AuditLink(name, path + quote_segment(name) if path else _PAGES.get(type_))


def _mark_link(metadata: JsonObject) -> AuditLink:
    """Return the note that was marked, or the note of the passage; a source has no page."""
    target = str(metadata["target"])
    if metadata["kind"] == "source":
        return AuditLink(target)
    path = target if metadata["kind"] == "note" else target.partition(".md#")[0] + ".md"
    return AuditLink(target, note_url(path, metadata.get("vault") or DEFAULT_VAULT))


def _find_record(event: JsonObject, titles: Mapping[str, str], agent: AuditLink | None) -> AuditLink | None:
    if task_id := event["task_id"]:
        return AuditLink(titles.get(task_id, "a task"), f"/tasks/{quote_segment(task_id)}")
    for member, kind, path in _RECORDS:
        if record_id := event["metadata"].get(member):
            text = f"{kind} of {agent.text}" if agent else kind
            return AuditLink(text, path + quote_segment(str(record_id)))
    return None


ROUTES = [("GET", "/audit", show_audit)]
