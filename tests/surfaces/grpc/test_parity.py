"""The same request over HTTP and gRPC: the same code, the same words, the same fields."""

from __future__ import annotations

import json
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc import StatusCode
from grpc_status import rpc_status

from stentor.surfaces.grpc.codes import BY_CODE
from stentor.surfaces.grpc.generated import atp_pb2, llm_pb2
from stentor.surfaces.grpc.generated import tasks_pb2 as pb
from tests.domains.messaging.conftest import HEADER
from tests.requirements import requirement
from tests.surfaces.grpc.conftest import SECONDS, Client, code_of, keyed, refused

UUID = "00000000-0000-7000-8000-000000000000"
GOOD: dict[str, Any] = {"type": "summarize", "input": "One. Two.", "required_capabilities": ["summarize"]}
TASKS: dict[str, dict[str, Any]] = {
    "no type": {**GOOD, "type": ""},
    "a long type": {**GOOD, "type": "x" * 256},
    "a type with NUL": {**GOOD, "type": "a\0b"},
    "an empty id": {**GOOD, "id": ""},
    "an id that cannot be seen": {**GOOD, "id": "\u202e"},
    "many capabilities": {**GOOD, "required_capabilities": ["a"] * 65},
    "an empty capability": {**GOOD, "required_capabilities": [""]},
    "no time": {**GOOD, "timeout_seconds": 0},
    "no time in the queue": {**GOOD, "queue_timeout_seconds": 0},
    "more than a month in the queue": {**GOOD, "queue_timeout_seconds": 2_592_001},
    "after a task that there is not": {**GOOD, "after": ["nothing"]},
    "after many tasks": {**GOOD, "after": ["a"] * 101},
    "more than a day": {**GOOD, "timeout_seconds": 86_401},
    "a preference that is no id": {**GOOD, "agent_preference": "ann"},
    "a preference that nobody has": {**GOOD, "agent_preference": UUID},
    "a user that is no id": {**GOOD, "metadata": {"user_id": "ann"}},
    "a count below zero": {**GOOD, "metadata": {"retry_count": -1}},
    "many tags": {**GOOD, "metadata": {"tags": ["a"] * 65}},
    "the most urgent": {**GOOD, "metadata": {"priority": "critical"}},
    "authority that there is not": {**GOOD, "metadata": {"grant_id": UUID}},
    "a capability that nobody has": {**GOOD, "required_capabilities": ["fly"]},
    "several flaws": {**GOOD, "type": "", "timeout_seconds": -1, "metadata": {"tags": [""], "user_id": "x"}},
}
GRADES: dict[str, dict[str, Any]] = {
    "none": {},
    "below nothing": {"grade": -0.1},
    "more than all": {"grade": 1.5},
    "a long comment": {"grade": 1, "comment": "x" * 4097},
    "a comment with NUL": {"grade": 1, "comment": "a\0b"},
    "of a task that there is not": {"grade": 1},
}
MESSAGES: dict[str, dict[str, Any]] = {
    "nothing": {"header": {}, "payload": {"content": "x"}},
    "values that there are not": {"header": {**HEADER, "mode": "x", "priority": "y"}, "payload": {"content": "{}"}},
    "a long context": {"header": {**HEADER, "context": "x" * 65}, "payload": {"content": "{}"}},
    "content that is no JSON": {"header": HEADER, "payload": {"content": "{"}},
    "a task without a type": {"header": HEADER, "payload": {"content": json.dumps({"task": {"input": 1}})}},
    "another sender": {"header": {**HEADER, "senderId": "somebody"}, "payload": {"content": "{}"}},
}
ASKED = [{"role": "user", "content": "Why?"}]
CHATS: dict[str, dict[str, Any]] = {
    "nothing": {"messages": []},
    "no role": {"messages": [{"content": "Why?"}]},
    "no model": {"messages": ASKED},
    "a model that there is not": {"messages": ASKED, "model": "nobody/nothing"},
    "an agent without a capability": {"messages": ASKED, "model": "agent:"},
    "an agent that there is not": {"messages": ASKED, "model": "agent:fly"},
    "heat": {"messages": ASKED, "options": {"temperature": 2.5}},
    "no number": {"messages": ASKED, "options": {"top_p": float("nan")}},
    "no tokens": {"messages": ASKED, "options": {"max_tokens": 0}},
    "an empty stop": {"messages": ASKED, "options": {"stop": [""]}},
    "too many stops": {"messages": ASKED, "options": {"stop": ["a"] * 17}},
    "a large seed": {"messages": ASKED, "options": {"seed": 2**53 + 1}},
}


def task(body: dict[str, Any]) -> pb.SubmitTaskRequest:
    meta = dict(body.get("metadata", {}))
    if "priority" in meta:
        meta["priority"] = f"PRIORITY_{meta['priority'].upper()}"
    rest = {name: value for name, value in body.items() if name not in ("input", "metadata")}
    return pb.SubmitTaskRequest(**rest, input_json=json.dumps(body["input"]), metadata=pb.TaskMetadata(**meta))


def message(body: dict[str, Any]) -> atp_pb2.SendMessageRequest:
    fields = {field.json_name: field.name for field in atp_pb2.AtpHeader.DESCRIPTOR.fields}
    header = atp_pb2.AtpHeader(**{fields[name]: value for name, value in body["header"].items()})
    return atp_pb2.SendMessageRequest(header=header, payload=atp_pb2.AtpPayload(**body["payload"]))


def chat(body: dict[str, Any]) -> llm_pb2.StreamChatRequest:
    roles = [
        llm_pb2.ChatMessage(
            role=f"ROLE_{one['role'].upper()}" if "role" in one else "ROLE_UNSPECIFIED", content=one["content"]
        )
        for one in body["messages"]
    ]
    options = llm_pb2.ChatOptions(**body.get("options", {}))
    return llm_pb2.StreamChatRequest(messages=roles, model=body.get("model"), options=options)


def compare(client: Client, path: str, body: dict[str, Any], call: Any) -> None:
    """Refused over both, with the same code, message and fields."""
    with client.service.client() as http:
        content = json.dumps(body, allow_nan=True).encode()
        answer = http.post(path, content=content, headers={"Content-Type": "application/json"})
    error = answer.json()["error"]
    with pytest.raises(grpc.RpcError) as found:
        call()
    assert code_of(found.value) == error["code"]
    assert found.value.code().name == BY_CODE[error["code"]]
    if "NaN" in content.decode():
        return  # over HTTP it is no JSON at all
    words, fields, rest = details(found.value)
    assert words == error["message"]
    assert fields == error.get("details", {}).pop("fields", {})
    told = {name: json.loads(value) if value[:1] in "[{" else value for name, value in rest.items()}
    assert told.keys() == error.get("details", {}).keys()
    own = {"task_id": "", "provenance_id": ""}  # each of the two made a task
    assert {**told, **own} == {**error.get("details", {}), **own}


def details(error: grpc.RpcError) -> tuple[str, dict[str, str], dict[str, str]]:
    """The message, the fields that are wrong, and what else there is, as the official client reads them."""
    status = rpc_status.from_call(error)
    info, bad = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
    for detail in status.details:
        for one in (info, bad):
            if detail.Is(one.DESCRIPTOR):
                detail.Unpack(one)
    return status.message, {one.field: one.description for one in bad.field_violations}, dict(info.metadata)


@requirement("scale.grpc-errors")
@pytest.mark.parametrize("body", TASKS.values(), ids=TASKS)
def test_a_task_is_refused_alike(client: Client, body: dict[str, Any]) -> None:
    compare(
        client,
        "/api/v1/tasks",
        body,
        lambda: client.tasks.SubmitTask(task(body), metadata=keyed(), timeout=SECONDS),
    )


@requirement("scale.grpc-errors")
@pytest.mark.parametrize("body", GRADES.values(), ids=GRADES)
def test_a_grade_is_refused_alike(client: Client, body: dict[str, Any]) -> None:
    compare(
        client,
        "/api/v1/tasks/none/grade",
        body,
        lambda: client.tasks.GradeTask(pb.GradeTaskRequest(task_id="none", **body), metadata=keyed(), timeout=SECONDS),
    )


@requirement("scale.grpc-errors")
@pytest.mark.parametrize("body", MESSAGES.values(), ids=MESSAGES)
def test_a_message_is_refused_alike(client: Client, body: dict[str, Any]) -> None:
    compare(
        client,
        "/api/v1/atp/send",
        body,
        lambda: client.atp.SendMessage(message(body), metadata=keyed(), timeout=SECONDS),
    )


@requirement("scale.grpc-errors")
@pytest.mark.parametrize("body", CHATS.values(), ids=CHATS)
def test_a_conversation_is_refused_alike(client: Client, body: dict[str, Any]) -> None:
    compare(
        client,
        "/api/v1/llm/stream",
        body,
        lambda: list(client.llm.StreamChat(chat(body), metadata=keyed(), timeout=SECONDS)),
    )


NOT_JSON = ["", "{", "{} {}", "NaN", "1e999", "9" * 5000, "[" * 200 + "]" * 200, '"\\ud800"', "\x01"]


@requirement("scale.grpc-errors")
@pytest.mark.parametrize("text", NOT_JSON)
def test_an_input_that_is_no_json_names_its_field(client: Client, text: str) -> None:
    with refused(StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST") as found:
        client.submit(input_json=text)
    words, fields, _ = details(found.value)
    assert words.startswith("input_json: ")
    assert list(fields) == ["input_json"]


@requirement("scale.grpc-errors")
def test_an_input_that_is_not_there_names_its_field(client: Client) -> None:
    with refused(StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST") as found:
        client.tasks.SubmitTask(pb.SubmitTaskRequest(type="x"), metadata=keyed(), timeout=SECONDS)
    assert details(found.value)[1] == {"input_json": "is required"}


@requirement("scale.grpc-errors")
def test_a_value_that_an_enum_does_not_have_names_its_field(client: Client) -> None:
    with refused(StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST") as found:
        client.submit(metadata=pb.TaskMetadata.FromString(b"\x10\x63"))
    assert list(details(found.value)[1]) == ["metadata.priority"]
    with refused(StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST") as found:
        client.submit(metadata=pb.TaskMetadata.FromString(b"\x38\x63"))
    assert list(details(found.value)[1]) == ["metadata.prefer"]
    strange = llm_pb2.StreamChatRequest(messages=[llm_pb2.ChatMessage.FromString(b"\x08\x63")])
    with refused(StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST") as found:
        list(client.llm.StreamChat(strange, metadata=keyed(), timeout=SECONDS))
    assert list(details(found.value)[1]) == ["messages.0.role"]
