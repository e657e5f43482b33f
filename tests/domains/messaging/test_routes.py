"""The eleven routes, black-box, on both databases."""

from __future__ import annotations

import itertools
import json
import re
from typing import Any

import pytest

from stentor.domains.atp import json_format
from stentor.domains.atp.bodies import BODY_TYPES
from stentor.domains.atp.model import ACTION_TYPES, MODES, PRIORITIES, ZONES
from tests.domains.messaging.conftest import HEADER, Post, form, task
from tests.requirements import requirement

UNKNOWN = "00000000-0000-7000-8000-000000000000"
UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")


@requirement("atp.send-answers-202")
async def test_send_answers_202_with_the_id_alone(post: Post) -> None:
    await post.world.register()
    answer = await post.ask("send", json=form(task()))
    assert answer.status_code == 202
    assert set(answer.json()) == {"success", "messageId"}
    assert answer.json()["success"] is True
    assert UUID.fullmatch(answer.json()["messageId"])


@requirement("atp.send-answers-202", "http.unknown-fields-400")
async def test_an_invalid_message_is_400_names_all_its_fields_and_queues_nothing(post: Post) -> None:
    broken = form(task(), mode="loud", context="x" * 65, colour="mauve")
    answer = await post.ask("send", json=broken)
    assert answer.status_code == 400
    assert set(answer.json()["error"]["details"]["fields"]) == {"header.mode", "header.context", "header.colour"}
    for wrong in (form({"task": {}}), form(task()) | {"messageId": "7"}, form(task()) | {"x": 1}, {}):
        assert (await post.ask("send", json=wrong)).status_code == 400
    assert (await rows(post)) == 0


async def rows(post: Post) -> int:
    from stentor.core.db import Sql

    found = await post.world.kernel.infra.db.read(lambda tx: tx.rows(Sql("select count(*) from atp_messages")))
    return int(found[0][0])


@requirement("atp.sender-is-caller")
async def test_the_sender_is_the_caller_and_nobody_else(post: Post) -> None:
    agent = await post.world.register("bob", key_name="bob")
    other = await post.world.register("ann")
    for given, shown in ((None, agent), ("bob", "bob"), (agent, agent)):
        message_id = await post.send(task(), client="BOB", senderId=given)
        assert (await post.message(message_id))["message"]["header"]["senderId"] == shown
    for foreign in ("admin", other, UNKNOWN):
        answer = await post.ask("send", "BOB", json=form(task(), senderId=foreign))
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "FORBIDDEN")
        answer = await post.ask("validate", "BOB", json=form(task(), senderId=foreign))
        assert [flaw["field"] for flaw in answer.json()["data"]["errors"]] == ["header.senderId"]
    message_id = await post.send(task())
    assert (await post.message(message_id))["message"]["header"]["senderId"] == "admin"


@requirement("atp.route-does-not-dispatch")
async def test_route_says_who_would_do_it_and_dispatches_nothing(post: Post) -> None:
    ann = await post.world.register("ann", accuracy_score=0.9)
    await post.world.register("ben")
    answer = await post.ask("route", "READER", json=form(task()))
    assert answer.json()["success"] is True
    data = answer.json()["data"]
    assert set(data) == {"targetAgents", "rationale"}
    assert data["targetAgents"] == [ann]
    assert "ann, chosen among 2 candidates" in data["rationale"]
    assert (await post.world.admin.get("/api/v1/tasks")).json()["total"] == 0
    assert await rows(post) == 0
    listed = await post.ask("route", json=form({}, "registry", "list"))
    assert listed.json()["data"]["targetAgents"] == []


@requirement("atp.route-does-not-dispatch")
async def test_route_takes_the_message_under_its_name_and_names_what_is_wrong_there(post: Post) -> None:
    ann = await post.world.register("ann")
    answer = await post.ask("route", "READER", json={"message": form(task())})
    assert answer.json()["data"]["targetAgents"] == [ann]
    wrong = await post.ask("route", json={"message": form(task(), mode="loud")})
    assert (wrong.status_code, set(wrong.json()["error"]["details"]["fields"])) == (400, {"message.header.mode"})
    for body in ({}, {"message": form(task()), **form(task())}, {"message": None}, {"message": 5}):
        assert (await post.ask("route", json=body)).status_code == 400


async def test_route_tells_a_denial_with_its_code(post: Post) -> None:
    answer = await post.ask("route", json=form(task()))
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "ROUTING_CAPABILITY_UNAVAILABLE")


@requirement("atp.validate-sends-nothing")
async def test_validate_takes_both_forms_and_says_all_that_is_wrong(post: Post) -> None:
    formatted = (await post.ask("format", json=form(task()))).json()["data"]["formatted"]
    for good in (form(task()), {"text": formatted}, form(task()) | {"messageId": UNKNOWN}):
        answer = await post.ask("validate", "READER", json=good)
        assert answer.json() == {"success": True, "data": {"valid": True, "errors": []}}
    cases: list[tuple[dict[str, Any], set[str]]] = [
        ({}, {"header", "payload"}),
        ({"header": {}, "payload": {}}, {*(f"header.{name}" for name in HEADER), "payload.content"}),
        ({"text": formatted.replace("direct", "loud")}, {"#Mode"}),
        ({"text": "hello"}, {"text"}),
        ({"header": "x", "payload": [1], "messageId": 5}, {"header", "payload", "messageId"}),
        (form({"task": {"type": "x"}}), {"payload.content.task.input"}),
    ]
    for wrong, fields in cases:
        data = (await post.ask("validate", json=wrong)).json()["data"]
        assert data["valid"] is False
        assert {flaw["field"] for flaw in data["errors"]} == fields
        assert all(flaw["message"] for flaw in data["errors"])
    assert (await post.ask("validate", json=form(task()) | {"text": formatted})).status_code == 400
    assert await rows(post) == 0


@requirement("atp.supported-pairs")
async def test_validate_agrees_with_what_send_comes_to(post: Post) -> None:
    for zone, action in itertools.product(ZONES, ACTION_TYPES):
        wanted = form("{}", zone, action)
        data = (await post.ask("validate", json=wanted)).json()["data"]
        sent = await post.ask("send", json=wanted)
        named = [flaw for flaw in data["errors"] if f"zone {zone} has no action {action}" in flaw["message"]]
        assert bool(named) == ((zone, action) not in BODY_TYPES)
        if zone == "memory":  # switched off in this service
            assert data["valid"] is False
        elif not data["valid"]:
            assert (sent.status_code, sent.json()["error"]["code"]) == (400, "INVALID_REQUEST")
        else:
            assert sent.status_code == 202
            ended = await post.over(sent.json()["messageId"])
            assert ended["response"].get("error", {}).get("code") not in ("INVALID_REQUEST", "NOT_IMPLEMENTED")


@requirement("atp.format", "atp.wire-form")
async def test_format_shows_the_wire_form_and_what_a_reader_finds_in_it(post: Post) -> None:
    wanted = form(task(), specialNotes="capability=echo", senderId="admin")
    answer = await post.ask("format", "ADMIN", json=wanted)
    assert answer.json()["success"] is True
    data = answer.json()["data"]
    assert set(data) == {"formatted", "message", "parsed"}
    assert data["formatted"] == (
        "#Mode: direct\n#Context: trace-1\n#Priority: normal\n#ActionType: execute\n#TargetZone: kernel\n"
        f"#SpecialNotes: capability=echo\n\n{wanted['payload']['content']}"
    )
    assert data["message"] == wanted
    assert data["parsed"]["body"] == task()
    assert data["parsed"]["header"] == {k: v for k, v in wanted["header"].items() if k != "senderId"}
    forged = form(task(), context="x\n#Priority: critical")
    assert (await post.ask("format", json=forged)).status_code == 400


@requirement("atp.enumerations")
async def test_the_lists_hold_exactly_the_values_of_the_header(post: Post) -> None:
    for path, name, values in (
        ("modes", "modes", MODES),
        ("priorities", "priorities", PRIORITIES),
        ("action-types", "actionTypes", ACTION_TYPES),
    ):
        assert (await post.ask(path, "READER")).json() == {"success": True, "data": {name: list(values)}}


@requirement("atp.template")
async def test_the_template_can_be_sent_as_it_is(post: Post) -> None:
    answer = await post.ask("template", "READER")
    data = answer.json()["data"]
    assert set(data) >= {"template", "requiredFields", "optionalFields"}
    assert set(data["template"]) == {"header", "payload"}
    valid = await post.ask("validate", json=data["template"])
    assert valid.json()["data"]["valid"] is True
    assert (await post.ask("send", json=data["template"])).status_code == 202
    assert data["template"] == json_format.example_message()


@requirement("atp.message-read")
async def test_a_message_is_read_as_it_was_sent_with_its_state(post: Post) -> None:
    await post.world.register("ann")
    message_id = await post.send(task(), specialNotes="capability=echo")
    while (data := await post.message(message_id))["status"] != "executing" or data["route"] is None:
        pass
    assert set(data) == {
        "message_id", "message", "formatted", "status", "route", "provenance_id", "created_at", "updated_at",
    }  # fmt: skip
    assert data["message_id"] == message_id == data["message"]["messageId"]
    assert json.loads(data["message"]["payload"]["content"]) == task()
    assert data["formatted"].startswith("#Mode: direct\n")
    assert data["route"]["targetAgents"]


@requirement("atp.response-read")
async def test_a_response_is_404_until_it_is_known(post: Post) -> None:
    ann = await post.world.register("ann")
    message_id = await post.send(task())
    assert (await post.ask(f"response/{message_id}")).status_code == 404
    await post.complete(await post.claimed(ann))
    data = await post.over(message_id)
    assert set(data) == {"message_id", "status", "response", "route", "provenance_id", "atp"}
    assert (await post.message(message_id))["status"] == "completed"


@requirement("atp.message-read", "atp.response-read", "http.foreign-tenant-looks-unknown")
async def test_unknown_and_foreign_ids_are_the_same_404(post: Post) -> None:
    message_id = await post.send({}, "registry", "list")
    await post.over(message_id)
    for path in ("message", "response"):
        answers = []
        for client, wanted in (("OTHER", message_id), ("ADMIN", UNKNOWN), ("ADMIN", "x" * 300), ("ADMIN", "%00")):
            answer = await post.ask(f"{path}/{wanted}", client)
            answers.append((answer.status_code, answer.json()["error"]["code"]))
        assert set(answers) == {(404, "NOT_FOUND")}
    assert (await post.ask("queue", "OTHER")).json()["data"]["depth"] == 0


@requirement("atp.answers-are-as-guarded-as-their-apis")
@pytest.mark.parametrize(
    ("zone", "body"),
    [("registry", {"agent_id": UNKNOWN}), ("governance", {"update_id": UNKNOWN}), ("memory", {"text": "sea"})],
)
async def test_what_went_to_a_system_api_is_for_its_sender_and_for_admins(
    post: Post, zone: str, body: dict[str, Any]
) -> None:
    action = "approve" if zone == "governance" else "query"
    message_id = await post.send(body, zone, action)
    await post.over(message_id)
    for path in (f"message/{message_id}", f"response/{message_id}"):
        statuses = [(await post.ask(path, client)).status_code for client in ("ADMIN", "SECOND", "READER", "BOB")]
        assert statuses == [200, 200, 403, 404]
    stream = {"headers": {"Accept": "text/event-stream"}}
    assert (await post.ask(f"response/{message_id}", "READER", **stream)).status_code == 403
    assert (await post.ask(f"response/{message_id}", "BOB", **stream)).status_code == 404


@requirement("atp.answers-are-as-guarded-as-their-apis", "atp.message-read")
async def test_what_went_to_the_kernel_is_read_as_its_tasks_are(post: Post) -> None:
    message_id = await post.send({}, "kernel", "list")
    await post.over(message_id)
    assert (await post.ask(f"response/{message_id}", "READER")).status_code == 200


@requirement("atp.send-answers-202", "atp.message-read")
async def test_a_message_that_was_read_can_be_sent_again_and_has_an_id_of_its_own(post: Post) -> None:
    first = await post.send({}, "registry", "list")
    message = (await post.message(first))["message"]
    assert message["messageId"] == first
    for path in ("validate", "format", "route"):
        assert (await post.ask(path, json=message)).status_code == 200, path
    again = await post.ask("send", json=message)
    assert again.status_code == 202
    assert again.json()["messageId"] != first


@requirement("atp.queue-snapshot")
async def test_the_queue_shows_what_waits_and_which_waits_longest(post: Post) -> None:
    empty = {"depth": 0, "oldest": None, "counts": {"critical": 0, "high": 0, "normal": 0, "low": 0}}
    assert (await post.ask("queue")).json() == {"success": True, "data": empty}
    later = {**task(), "delay_seconds": 60}
    first = await post.send(later, "kernel", "schedule", priority="low")
    post.world.clock.advance(seconds=1)
    for priority in ("critical", "low"):
        await post.send(later, "kernel", "schedule", priority=priority)
    data = (await post.ask("queue", "READER")).json()["data"]
    assert (data["depth"], data["counts"]) == (3, {"critical": 1, "high": 0, "normal": 0, "low": 2})
    assert (data["oldest"]["message_id"], data["oldest"]["priority"]) == (first, "low")
    assert (await post.ask("queue", "OTHER")).json()["data"] == empty


@requirement("http.idempotency-atp-send")
async def test_the_same_key_with_the_same_message_is_one_message(post: Post) -> None:
    headers = {"Idempotency-Key": "k1"}
    first = await post.ask("send", json=form({}, "registry", "list"), headers=headers)
    again = await post.ask("send", json=form({}, "registry", "list"), headers=headers)
    assert (again.status_code, again.json()) == (202, first.json())
    for absent in (None, ""):
        again = await post.ask("send", json=form({}, "registry", "list", specialNotes=absent), headers=headers)
        assert (again.status_code, again.json()) == (202, first.json())
    other = await post.ask("send", json=form({}, "registry", "list", context="other"), headers=headers)
    assert (other.status_code, other.json()["error"]["code"]) == (422, "IDEMPOTENCY_KEY_REUSED")
    elsewhere = await post.ask("send", "OTHER", json=form({}, "registry", "list"), headers=headers)
    assert elsewhere.json()["messageId"] != first.json()["messageId"]
    assert await rows(post) == 2


@requirement("activity.log-is-fail-closed")
async def test_without_a_run_log_no_message_is_taken(post: Post) -> None:
    post.world.runlog.broken = True
    assert (await post.ask("send", json=form({}, "registry", "list"))).status_code == 503
    assert await rows(post) == 0


@pytest.mark.parametrize("size", [1_000_000])
async def test_a_megabyte_in_a_header_is_refused_and_not_repeated(post: Post, size: int) -> None:
    for name in ("context", "specialNotes", "mode", "senderId"):
        answer = await post.ask("send", json=form(task(), **{name: "x" * size}))
        assert answer.status_code == 400
        assert len(answer.content) < 1000
