"""ATP send: the message is queued, carried out and answered like one that came over HTTP."""

from __future__ import annotations

import json
from typing import Any

from grpc import StatusCode

from stentor.surfaces.grpc.generated import atp_pb2 as pb
from tests.patience import until
from tests.requirements import requirement
from tests.surfaces.grpc.conftest import SECONDS, Client, keyed, refused

TASK = {"type": "summarize", "input": "One thing. Another."}


def message(content: Any, **header: Any) -> pb.SendMessageRequest:
    usual = {"mode": "direct", "context": "c-1", "priority": "high", "action_type": "execute", "target_zone": "kernel"}
    usual["special_notes"] = "capability=summarize"
    payload = pb.AtpPayload(content=json.dumps(content))
    return pb.SendMessageRequest(header=pb.AtpHeader(**{**usual, **header}), payload=payload)


def send(client: Client, asked: pb.SendMessageRequest, key: str = "ADMIN", **metadata: str) -> str:
    return str(client.atp.SendMessage(asked, metadata=keyed(key, **metadata), timeout=SECONDS).message_id)


@requirement("scale.grpc-other-services")
def test_a_message_is_carried_out_and_answered(client: Client) -> None:
    message_id = send(client, message({"task": TASK}, special_notes="type=summarize"))
    with client.service.client() as http:
        until(lambda: http.get(f"/api/v1/atp/response/{message_id}").status_code == 200)
        answer = http.get(f"/api/v1/atp/response/{message_id}").json()["data"]
        shown = http.get(f"/api/v1/atp/message/{message_id}").json()["data"]["message"]
    assert answer["status"] == "completed"
    assert shown["header"]["specialNotes"] == "type=summarize"
    assert shown["header"]["senderId"] == "admin"


@requirement("scale.grpc-other-services")
def test_an_idempotency_key_is_one_key_over_both(client: Client) -> None:
    content = {"task": TASK}
    first = send(client, message(content), idempotency_key="m-1")
    header = {"mode": "direct", "context": "c-1", "priority": "high", "actionType": "execute", "targetZone": "kernel"}
    header["specialNotes"] = "capability=summarize"
    body = {"header": header, "payload": {"content": json.dumps(content)}}
    with client.service.client() as http:
        again = http.post("/api/v1/atp/send", json=body, headers={"Idempotency-Key": "m-1"})
    assert again.json()["messageId"] == first == send(client, message(content), idempotency_key="m-1")
    with refused(StatusCode.FAILED_PRECONDITION, "IDEMPOTENCY_KEY_REUSED"):
        send(client, message(content, context="c-2"), idempotency_key="m-1")


@requirement("scale.grpc-other-services")
def test_a_message_does_nothing_that_the_key_might_not_do_over_http(client: Client) -> None:
    registration = {"name": "ann", "capabilities": ["fly"]}
    asked = message(registration, action_type="register", target_zone="registry")
    with refused(StatusCode.PERMISSION_DENIED, "FORBIDDEN"):
        send(client, asked, "WRITER")
    with refused(StatusCode.PERMISSION_DENIED, "FORBIDDEN"):
        send(client, message({"task": TASK}, sender_id="somebody"))
