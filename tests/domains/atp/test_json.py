"""The JSON form and the bodies: as strict as the wire form, and all flaws at once."""

from __future__ import annotations

import copy
import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stentor.domains.atp import bodies, json_format
from stentor.domains.atp import header as atp_header
from stentor.domains.atp.bodies import BODY_TYPES
from stentor.domains.atp.json_format import message_to_json, read_json_message
from stentor.domains.atp.model import ACTION_TYPES, ZONES, AtpHeader, AtpMessage, MessageInvalid
from stentor.domains.atp.text_format import format_message, parse_message
from tests.domains.atp.messages import messages
from tests.requirements import requirement

UUID = "01a1fb6f-0000-7000-8000-000000000001"
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


def flaws(form: dict[str, Any]) -> set[str]:
    with pytest.raises(MessageInvalid) as caught:
        bodies.parse_body(read_json_message(form))
    return {flaw.field for flaw in caught.value.field_errors}


def message(zone: str, action: str, body: Any, mode: str = "direct", noted: str | None = None) -> dict[str, Any]:
    form = json_format.example_message()
    form["header"] |= {"targetZone": zone, "actionType": action, "mode": mode, "specialNotes": noted}
    form["payload"]["content"] = body if isinstance(body, str) else json.dumps(body)
    return form


@given(messages)
def test_the_json_form_of_a_message_gives_that_message_again(found: AtpMessage) -> None:
    assert read_json_message(message_to_json(found)) == found
    assert read_json_message(json.loads(json.dumps(message_to_json(found, UUID)))) == found
    assert parse_message(format_message(read_json_message(message_to_json(found)))) == found


@requirement("atp.json-required-fields")
def test_each_required_field_is_missed_by_name_and_all_of_them_at_once() -> None:
    required = ["mode", "context", "priority", "actionType", "targetZone"]
    for name in required:
        form = json_format.example_message()
        del form["header"][name]
        assert flaws(form) == {f"header.{name}"}
    assert flaws({"header": {}, "payload": {}}) == {*(f"header.{name}" for name in required), "payload.content"}
    assert flaws({}) == {"header", "payload"}
    for name in ("specialNotes", "senderId"):
        form = json_format.example_message()
        form["header"][name] = None
        read_json_message(form)


@requirement("http.errors-limit")
def test_of_thousands_of_unknown_fields_the_first_hundred_are_flaws() -> None:
    many = {f"f{number}": 1 for number in range(2_000)}
    for form in (many, {"header": many}, {"payload": many}):
        unknown = {name for name in flaws(form) if name.rpartition(".")[2] in many}
        assert len(unknown) == 100


def test_unknown_fields_and_wrong_types_are_flaws() -> None:
    form = json_format.example_message() | {"messageId": "7", "extra": 1}
    form["header"] |= {"mode": 1, "colour": "mauve", "senderId": ""}
    form["payload"] |= {"more": True}
    expected = {"messageId", "extra", "header.mode", "header.colour", "header.senderId", "payload.more"}
    assert flaws(form) == expected
    wholes: tuple[Any, ...] = ([], "x", 1)
    for whole in wholes:
        assert flaws({"header": whole, "payload": whole}) == {"header", "payload"}


@given(st.dictionaries(st.sampled_from(["header", "payload", "messageId", "x"]), anything))
def test_any_json_is_a_message_or_is_refused(form: dict[str, Any]) -> None:
    try:
        read_json_message(form)
    except MessageInvalid:
        return


QUERY = {
    "query_type": "semantic",
    "text": "backups",
    "top_k": 5,
    "filters": {"hebbian_weight_min": 0.5, "created_after": "2026-01-01T00:00:00Z"},
}
TASK = {
    "id": UUID,
    "type": "summarize",
    "input": {"text": "x"},
    "required_capabilities": ["summarize"],
    "timeout_seconds": 60,
    "agent_preference": None,
}
OPERATIONS = {"operations": [{"agent_id": UUID, "field": "accuracy_score", "value": 0.9}]}
PROPOSAL = {
    "update_id": UUID,
    "agent_id": UUID,
    "update_type": "prompt",
    "description": "shorter",
    "changes": {"files_modified": ["a.md"], "lines_added": 1, "lines_deleted": 2},
    "checkpoint_id": UUID,
}


@requirement("atp.body-shapes")
def test_the_bodies_of_the_contract_are_valid_and_each_field_is_checked() -> None:
    cases: list[tuple[str, str, dict[str, Any], str]] = [
        ("memory", "query", QUERY, "direct"),
        ("kernel", "execute", {"task": TASK}, "direct"),
        ("kernel", "execute", {"task": {**TASK, "agent_preference": UUID}}, "stream"),
        ("registry", "update", OPERATIONS, "batch"),
        ("governance", "propose_update", PROPOSAL, "async"),
    ]
    for zone, action, body, mode in cases:
        assert bodies.parse_body(read_json_message(message(zone, action, body, mode))) is not None
        assert flaws(message(zone, action, {**body, "surprise": 1}, mode)) == {"payload.content.surprise"}
        for path in paths(body):
            for wrong in ({"a": 1}, 1.5, [None], "x\0"):
                broken = copy.deepcopy(body)
                inner: Any = broken
                for part in path[:-1]:
                    inner = inner[part]
                if {"input", "value"} & set(path) or type(inner[path[-1]]) is type(wrong):
                    continue
                inner[path[-1]] = wrong
                found = flaws(message(zone, action, broken, mode))
                prefix = ".".join(["payload.content", *map(str, path)])
                assert any(field.startswith(prefix) for field in found), (path, wrong, found)


def paths(value: Any, before: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a body."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place for key, inner in items for place in ((*before, key), *paths(inner, (*before, key)))]


def test_all_flaws_of_a_body_are_said_at_once() -> None:
    body = {"task": {"type": "", "timeout_seconds": 0, "agent_preference": "me", "more": 1}}
    assert flaws(message("kernel", "execute", body)) == {
        f"payload.content.task.{name}" for name in ("type", "input", "timeout_seconds", "agent_preference", "more")
    }


@pytest.mark.parametrize(
    ("action", "body", "field", "problem"),
    [
        ("cancel", {"task_id": "a\0b"}, ".task_id", "must consist of printable characters"),
        ("list", {"limit": -1}, ".limit", "must be at least 1"),
        ("cancel", {"task_id": UUID, "task": 1}, ".task", "unknown field; did you mean `task_id`?"),
        ("execute", " ", "", "must not be empty"),
    ],
)
def test_what_is_wrong_with_a_body_is_said_as_over_http(
    action: str, body: dict[str, Any] | str, field: str, problem: str
) -> None:
    with pytest.raises(MessageInvalid) as caught:
        bodies.parse_body(read_json_message(message("kernel", action, body)))
    assert [(flaw.field, flaw.message) for flaw in caught.value.field_errors] == [(f"payload.content{field}", problem)]


def test_a_body_that_is_no_object_is_refused_where_it_must_be_one() -> None:
    for content in ("[]", '"x"', "7", "words", "{", '{"a":1', '{"task": NaN}', "[" * 300):
        assert flaws(message("kernel", "cancel", content)) == {"payload.content"}
    assert flaws(message("kernel", "execute", "{" * 5000)) == {"payload.content"}


@requirement("atp.plain-text")
def test_plain_text_is_work_for_an_agent_or_a_search() -> None:
    for action in ("execute", "schedule", "query"):
        body: Any = bodies.parse_body(read_json_message(message("kernel", action, "Say hi.", noted="type=greet")))
        assert (body.task.type, body.task.input) == ("greet", "Say hi.")
    body: Any = bodies.parse_body(read_json_message(message("memory", "search", "backups")))
    assert body.text == "backups"


def test_a_search_needs_its_text_and_an_exact_read_its_path() -> None:
    assert flaws(message("memory", "query", {"query_type": "exact", "text": "x"})) == {"payload.content.path"}
    assert flaws(message("memory", "search", {"path": "a.md"})) == {"payload.content.text"}
    times = {"task": TASK, "run_at": "2027-01-01T00:00:00Z", "delay_seconds": 5}
    assert flaws(message("kernel", "schedule", times)) == {"payload.content.delay_seconds"}
    for run_at in ("9999-12-31T23:59:59-14:00", "2099-01-01T00:00:00Z"):
        times = {"task": TASK, "run_at": run_at}
        assert flaws(message("kernel", "schedule", times)) == {"payload.content.run_at"}


def test_every_shape_belongs_to_a_pair_of_the_contract() -> None:
    assert all(zone in ZONES and action in ACTION_TYPES for zone, action in BODY_TYPES)


@requirement("atp.supported-pairs")
def test_every_other_pair_is_named_as_one_that_there_is_not() -> None:
    for zone, action in itertools.product(ZONES, ACTION_TYPES):
        if (zone, action) not in BODY_TYPES:
            with pytest.raises(MessageInvalid, match=f"the zone {zone} has no action {action}"):
                bodies.parse_body(read_json_message(message(zone, action, "anything")))


@pytest.mark.parametrize(
    ("noted", "found"),
    [
        (None, ()),
        ("be quick", ()),
        ("capability=a", ("a",)),
        (" capability = a , agent=B,capability=b,capability=a,=,capability=", ("a", "b")),
        ("Capability=a", ()),
    ],
)
def test_the_envelope_alone_says_the_capability(noted: str | None, found: tuple[str, ...]) -> None:
    header = AtpHeader("direct", "c", "low", "execute", "kernel", noted)
    assert atp_header.required_capabilities(header) == found


def test_the_template_is_valid_and_names_every_field() -> None:
    made = json_format.message_template()
    bodies.parse_body(read_json_message(made["template"]))
    assert set(made["annotations"]) == {*made["requiredFields"], *made["optionalFields"]}
