"""Exports: PROV-JSON with resolvable references, and valid OpenTelemetry spans."""

from __future__ import annotations

import json
import re
from datetime import datetime
from typing import Any

import jsonschema_rs
import pytest

from stentor.core.db import Tx
from stentor.domains.provenance import export
from stentor.domains.provenance.export import EventSelection, RunRoots, read_events
from tests.conftest import World
from tests.requirements import requirement

NAME = {"type": "string", "pattern": r"^(st|_):[^\s]+$"}
VALUE = {"anyOf": [{"type": "string"}, {"type": "object", "required": ["$", "type"]}]}


def relation(**roles: str) -> dict[str, Any]:
    """Return the schema of a PROV-JSON section whose entries have these roles."""
    fields = {f"prov:{name}": NAME if kind == "id" else {"type": "string"} for name, kind in roles.items()}
    required = [name for name, schema in fields.items() if schema is NAME]
    entry = {"type": "object", "properties": fields, "required": required, "additionalProperties": False}
    return {"type": "object", "additionalProperties": entry, "propertyNames": NAME}


ELEMENT = {"type": "object", "propertyNames": NAME, "additionalProperties": {"additionalProperties": VALUE}}
SCHEMA = {
    "type": "object",
    "additionalProperties": False,
    "required": ["prefix", "entity", "activity", "agent"],
    "properties": {
        "prefix": {"type": "object", "additionalProperties": {"type": "string", "format": "uri"}},
        "entity": ELEMENT,
        "activity": ELEMENT,
        "agent": ELEMENT,
        "wasGeneratedBy": relation(entity="id", activity="id", time="time"),
        "used": relation(activity="id", entity="id"),
        "wasDerivedFrom": relation(generatedEntity="id", usedEntity="id"),
        "wasInformedBy": relation(informed="id", informant="id"),
        "wasAssociatedWith": relation(activity="id", agent="id"),
        "wasAttributedTo": relation(entity="id", agent="id"),
    },
}
SECTION_OF_ROLE = {
    "prov:entity": "entity",
    "prov:generatedEntity": "entity",
    "prov:usedEntity": "entity",
    "prov:activity": "activity",
    "prov:informed": "activity",
    "prov:informant": "activity",
    "prov:agent": "agent",
}
ALL_EVENTS = EventSelection("default")


async def export_prov(world: World, selection: EventSelection) -> dict[str, Any]:
    def read(tx: Tx) -> bytes:
        return b"".join(export.write_prov_json(lambda: read_events(tx, selection)))

    document: dict[str, Any] = json.loads(await world.kernel.infra.db.read(read))
    return document


async def export_spans(world: World, selection: EventSelection) -> list[dict[str, Any]]:
    def read(tx: Tx) -> list[bytes]:
        return list(export.write_otlp_json(read_events(tx, selection), RunRoots(tx, selection.tenant).root_of))

    lines = await world.kernel.infra.db.read(read)
    assert all(line.endswith(b"\n") and line.count(b"\n") == 1 for line in lines)
    requests = [json.loads(line) for line in lines]
    return [span for r in requests for rs in r["resourceSpans"] for ss in rs["scopeSpans"] for span in ss["spans"]]


@requirement("provenance.export")
async def test_prov_json_is_valid_and_its_references_resolve(world: World) -> None:
    agent_id = await world.register()
    task_id = await world.do(agent_id)
    await world.do(agent_id, ok=False)
    for selection in (EventSelection("default", task_id), ALL_EVENTS):
        document = await export_prov(world, selection)
        jsonschema_rs.validate(SCHEMA, document)
        for section, entries in document.items():
            if section in ("prefix", "entity", "activity", "agent"):
                continue
            for key, entry in entries.items():
                for role, kind in SECTION_OF_ROLE.items():
                    assert entry.get(role) is None or entry[role] in document[kind], (section, key, role)
    trail = await world.events(task_id)
    of_task = await export_prov(world, EventSelection("default", task_id))
    assert len(of_task["activity"]) == len(trail)
    assert f"st:agent/{agent_id}" in of_task["agent"]
    assert of_task["entity"][f"st:task/{task_id}"] == {"prov:type": {"$": "st:task", "type": "prov:QUALIFIED_NAME"}}
    (result,) = (key for key in of_task["entity"] if key.startswith("st:result/"))
    derived = [
        entry["prov:usedEntity"]
        for entry in of_task["wasDerivedFrom"].values()
        if entry["prov:generatedEntity"] == result
    ]
    assert derived == [f"st:task/{task_id}"]
    for activity in of_task["activity"].values():
        times = [datetime.fromisoformat(activity[f"prov:{name}Time"]) for name in ("start", "end")]
        assert times == sorted(times)


@requirement("provenance.export")
async def test_otlp_export_has_one_trace_per_run(world: World) -> None:
    agent_id = await world.register()
    first, second = [await world.do(agent_id) for _ in range(2)]
    spans = await export_spans(world, ALL_EVENTS)
    assert len({span["spanId"] for span in spans}) == len(spans)
    for span in spans:
        assert re.fullmatch("[0-9a-f]{32}", span["traceId"])
        assert re.fullmatch("[0-9a-f]{16}", span["spanId"])
        assert set(span["traceId"]) != {"0"} != set(span["spanId"])
        assert 0 < int(span["startTimeUnixNano"]) <= int(span["endTimeUnixNano"]) < 2**64
        assert (span["kind"], span["status"]["code"] in (1, 2)) == (1, True)
        for attribute in span["attributes"]:
            assert list(attribute) == ["key", "value"]
            assert [*attribute["value"]] == ["stringValue"]
    for task_id in (first, second):
        task_spans = await export_spans(world, EventSelection("default", task_id))
        (trace,) = {span["traceId"] for span in task_spans}
        ids = [span["spanId"] for span in task_spans]
        assert [span.get("parentSpanId") for span in task_spans] == [None, *ids[:-1]]
        assert trace == (await world.events(task_id))[0]["event_id"].replace("-", "")


@requirement("provenance.export")
async def test_failed_task_has_an_error_span(world: World) -> None:
    task_id = await world.do(await world.register(), ok=False)
    spans = {span["name"]: span for span in await export_spans(world, EventSelection("default", task_id))}
    assert spans["task_failed"]["status"]["code"] == export.STATUS_ERROR
    assert spans["task_queued"]["status"] == {"code": export.STATUS_OK}


@requirement("provenance.export", "provenance.tenants")
@pytest.mark.parametrize("form", ["prov", "otlp"])
async def test_export_selects_by_time_range_task_and_tenant(world: World, form: str) -> None:
    agent_id = await world.register()
    await world.do(agent_id)
    world.clock.advance(seconds=100)
    start = world.clock.now()
    later = await world.do(agent_id)
    world.clock.advance(seconds=100)
    end = world.clock.now()
    await world.do(agent_id)

    async def count(selection: EventSelection) -> int:
        return len(
            (await export_prov(world, selection))["activity"]
            if form == "prov"
            else await export_spans(world, selection)
        )

    expected = len(await world.events(later))
    assert await count(EventSelection("default", since=start, before=end)) == expected
    assert await count(EventSelection("default", later)) == expected
    assert await count(EventSelection("other")) == 0
    assert await count(EventSelection("other", later)) == 0
    assert await count(ALL_EVENTS) > 3 * expected - 1
