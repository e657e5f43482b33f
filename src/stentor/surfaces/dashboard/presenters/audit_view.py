"""What the audit page says of an event besides its sentence: who did it, and which record it was about. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from stentor.core.jsontext import JsonObject
from stentor.domains.memory.vaults import DEFAULT_VAULT
from stentor.surfaces.dashboard.gateway import quote_segment
from stentor.surfaces.dashboard.presenters.filters import SERVICE, name_actor, shorten_id, shorten_ids
from stentor.surfaces.dashboard.presenters.note_rendering import note_url

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


class AuditLink(msgspec.Struct, frozen=True):
    """A name; `url` is None for what has no page."""

    text: str
    url: str | None = None


class AuditRow(msgspec.Struct, frozen=True):
    """An event for the list. `about` is what it was about, None if that is who did it."""

    event: JsonObject
    by: AuditLink
    about: AuditLink | None

    @property
    def adds_subject(self) -> bool:
        """Whether the sentence does not name what it was about."""
        return self.about is not None and self.about.text not in self.event["message"]


def present(
    event: JsonObject,
    names: Mapping[str, str],
    titles: Mapping[str, str],
    webhooks: Mapping[str, str],
    schedules: Collection[str],
) -> AuditRow:
    """Return a row. `names` are those of agents, `titles` of tasks, `webhooks` the addresses, each by id.

    `schedules` are the names of those that exist.
    """
    by, agent = _find_actor(event, names), _agent_link(event, names)
    if agent:
        event = event | {"message": event["message"].replace(event["agent_id"], agent.text)}
    # Long in the narrow column of a phone; the event's page has the whole ids.
    event = event | {"message": shorten_ids(event["message"])}
    subject = _find_subject(event, webhooks, schedules) or _find_record(event, titles, agent)
    return AuditRow(event, by, subject or (agent if agent != by else None))


def _find_actor(event: JsonObject, names: Mapping[str, str]) -> AuditLink:
    if event["by"] and (name := name_actor(event["by"])) != SERVICE:
        return AuditLink(name)
    if event["event_type"] == "tool_denied":
        # Who else asked is named.
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
    if type_ == "tool_denied" and not event["by"]:
        target = metadata.get("path") or metadata.get("host") or metadata.get("namespace")
        return AuditLink(str(target)) if target else None
    member, path = _SUBJECTS.get(type_, ("", None))
    # An agent's own page says more than the name in the metadata.
    if event["agent_id"] or not metadata.get(member):
        return None
    name = str(metadata[member])
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
