"""How errors look: the envelope, problem+json, the request id, and nothing of the inside."""

from __future__ import annotations

import gc
import json
import sys
import uuid
from typing import Any

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from stentor.core.db import Sql
from stentor.core.errors import StoreUnavailable
from stentor.domains.llm.routes.streaming import stream_error_message
from stentor.surfaces.grpc.calls import error_metadata, status_message
from stentor.web.errors import render_stentor_error
from stentor.web.request_context import RequestContextMiddleware
from tests.conftest import World
from tests.requirements import requirement
from tests.surfaces.gateway.operations import PROTECTED, UNKNOWN
from tests.surfaces.gateway.small import LEAK, RAISED, build, client

PROBLEM = {"Accept": "application/problem+json, application/json;q=0.5"}


async def raised(what: str, **headers: str) -> httpx.Response:
    async with client(build()) as http:
        return await http.get(f"/api/v1/raise/{what}", headers=headers)


@requirement("http.error-envelope")
async def test_an_error_is_an_envelope_with_code_message_details_and_request_id() -> None:
    answer = await raised("conflict")
    assert (answer.status_code, answer.headers["content-type"]) == (409, "application/json")
    assert answer.json() == {
        "error": {
            "code": "CONFLICT",
            "message": "It has ended.",
            "details": {"status": "completed"},
            "request_id": answer.headers["X-Request-Id"],
        }
    }


@requirement("http.error-problem-json")
async def test_a_caller_that_accepts_problems_gets_one_with_the_same_code() -> None:
    answer = await raised("conflict", **PROBLEM)
    assert (answer.status_code, answer.headers["content-type"]) == (409, "application/problem+json")
    assert answer.json() == {
        "type": "about:blank",
        "title": "Conflict",
        "status": 409,
        "detail": "It has ended.",
        "code": "CONFLICT",
        "details": {"status": "completed"},
        "request_id": answer.headers["X-Request-Id"],
    }


@requirement("http.error-problem-json")
async def test_every_kind_of_error_can_be_a_problem(world: World) -> None:
    asked: list[tuple[str, str, dict[str, Any], str]] = [
        ("POST", "/api/v1/tasks", {"content": b"{"}, "INVALID_REQUEST"),
        ("POST", "/api/v1/tasks", {"json": {}}, "INVALID_REQUEST"),
        ("POST", "/api/v1/tasks", {"content": b" " * 10_000_001}, "PAYLOAD_TOO_LARGE"),
        ("GET", "/api/v1/tasks/none", {}, "NOT_FOUND"),
        ("GET", "/api/v1/nothing", {}, "NOT_FOUND"),
        ("PUT", "/api/v1/tasks", {}, "METHOD_NOT_ALLOWED"),
        ("GET", "/api/v1/llm/demo", {}, "NOT_IMPLEMENTED"),
    ]
    for method, path, options, code in asked:
        plain = await world.admin.request(method, path, **options)
        problem = await world.admin.request(method, path, headers=PROBLEM, **options)
        assert problem.headers["content-type"] == "application/problem+json"
        body, error = problem.json(), plain.json()["error"]
        assert (body["status"], body["code"]) == (problem.status_code, code)
        assert (error["code"], error["message"]) == (code, body["detail"])
        assert body["request_id"] == problem.headers["X-Request-Id"]


@requirement("http.error-codes")
@pytest.mark.parametrize(
    ("what", "status", "code"),
    [("conflict", 409, "CONFLICT"), ("unavailable", 503, "SERVICE_UNAVAILABLE"), ("timeout", 504, "TIMEOUT")],
)
async def test_the_common_codes_have_the_status_of_the_contract(what: str, status: int, code: str) -> None:
    answer = await raised(what)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    assert ("Retry-After" in answer.headers) is (status == 503)


@requirement("http.error-codes")
async def test_requests_that_are_wrong_have_the_codes_of_the_contract(world: World) -> None:
    asked = {
        (400, "INVALID_REQUEST"): await world.admin.post("/api/v1/tasks", json={}),
        (403, "FORBIDDEN"): await world.clients["READER"].post("/api/v1/tasks", json={}),
        (404, "NOT_FOUND"): await world.admin.get("/api/v1/tasks/none"),
    }
    for (status, code), answer in asked.items():
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (status, code)
        assert error["request_id"] == answer.headers["X-Request-Id"]
    fields = asked[400, "INVALID_REQUEST"].json()["error"]["details"]["fields"]
    assert set(fields.values()) == {"is required"}, fields


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("required_capabilities", "x", "must be a list"),
        ("type", 1, "must be a string"),
        ("timeout_seconds", [], "must be an integer"),
    ],
)
async def test_a_value_of_the_wrong_type_is_told_the_right_one(
    world: World, field: str, value: object, reason: str
) -> None:
    answer = await world.admin.post("/api/v1/tasks", json={"type": "x", "input": "x", field: value})
    assert answer.json()["error"]["details"]["fields"][field] == reason


@requirement("http.no-raw-exceptions")
@pytest.mark.parametrize("what", [name for name, error in RAISED.items() if LEAK in str(error)])
@pytest.mark.parametrize("accept", ["application/json", "application/problem+json"])
async def test_an_unexpected_failure_shows_nothing_of_the_exception(what: str, accept: str) -> None:
    answer = await raised(what, Accept=accept)
    body = answer.json()
    assert (answer.status_code, answer.headers["content-type"]) == (500, accept)
    assert body.get("error", body)["code"] == "INTERNAL_ERROR"
    for part in ("hunter2", "secret.py", "Traceback", "Error(", "stentor/"):
        assert part not in answer.text
    assert body.get("error", body)["request_id"] == answer.headers["X-Request-Id"]


async def test_the_reason_of_an_unexpected_failure_is_in_the_log_under_the_request_id(
    caplog: pytest.LogCaptureFixture,
) -> None:
    answer = await raised("exception")
    (record,) = [r for r in caplog.records if r.exc_info]
    assert answer.headers["X-Request-Id"] in record.getMessage()
    assert LEAK in str(record.exc_info)


async def test_an_answer_that_fails_halfway_is_cut_and_not_ended(caplog: pytest.LogCaptureFixture) -> None:
    async with client(build()) as http:
        with pytest.raises(RuntimeError, match="hunter2"):
            await http.get("/api/v1/half")
    assert "http: request failed" in caplog.text


async def test_an_encoded_line_break_in_a_path_does_not_forge_a_line_of_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def fail(scope: Scope, receive: Receive, send: Send) -> None:
        raise RuntimeError

    async with client(RequestContextMiddleware(fail)) as http:
        await http.get("/x%0A2026-11-23 INFO forged%0D%E2%80%A8y")
    (record,) = [r for r in caplog.records if r.exc_info]
    assert "forged" in record.getMessage()
    assert len(record.getMessage().splitlines()) == 1


@requirement("http.cookies")
async def test_cookies_in_quotes_are_not_unquoted_which_takes_quadratic_time() -> None:
    read: dict[str, str] = {}

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        read.update(Request(scope).cookies)
        await Response()(scope, receive, send)

    quoted = '"' + '\\"\\101' * 10 + '"'
    async with client(RequestContextMiddleware(app)) as http:
        await http.get("/", headers={"Cookie": f"a=1; b={quoted}; c=3", "X-Other": "\\"})
    assert read == {"a": "1", "b": '"101' * 10, "c": "3"}


@requirement("http.not-cached")
async def test_no_answer_may_be_stored_by_a_cache(world: World) -> None:
    await world.register()
    task = await world.submit()
    stranger = httpx.AsyncClient(transport=world.admin._transport, base_url="http://t")
    await world.admin.post(f"/api/v1/tasks/{task}/cancel")
    answers = [
        await world.admin.get(f"/api/v1/tasks/{task}"),
        await world.admin.get("/api/v1/trust/photo.css"),
        await world.admin.delete("/api/v1/tasks"),
        await world.admin.post("/api/v1/tasks", json={"type": "note", "input": 1}),
        await world.admin.post("/api/v1/tasks", content=b"{"),
        await stranger.get("/api/v1/tasks"),
        await stranger.get("/health"),
        await raised("exception"),
    ]
    assert [answer.headers.get_list("cache-control") for answer in answers] == [["no-store"]] * len(answers)
    stream = await world.admin.get(f"/api/v1/tasks/{task}/stream")
    assert stream.headers.get_list("cache-control") == ["no-cache"]


@requirement("http.request-id-always")
async def test_every_answer_has_a_request_id_of_its_own(world: World) -> None:
    seen = set()
    for key, path in [("ADMIN", "/health"), ("ADMIN", "/api/v1/tasks"), ("READER", "/api/v1/registry/agents")]:
        for client_ in (world.clients[key], httpx.AsyncClient(transport=world.admin._transport, base_url="http://t")):
            answer = await client_.get(path)
            seen.add(uuid.UUID(answer.headers["X-Request-Id"]))
    assert len(seen) == 6


@requirement("http.request-id-always")
async def test_the_callers_own_request_id_is_kept(world: World) -> None:
    for given in ("a", "req-1_2.3:4", "x" * 128):
        for path in ("/health", "/api/v1/tasks", "/api/v1/tasks/none", "/api/v1/nothing"):
            answer = await world.admin.get(path, headers={"X-Request-Id": given})
            assert answer.headers["X-Request-Id"] == given
            if answer.status_code >= 400:
                assert answer.json()["error"]["request_id"] == given


@requirement("http.request-id-always")
async def test_a_request_id_that_could_do_harm_is_replaced(world: World) -> None:
    for given in (b"", b"x" * 129, b"a b", b"<script>", b"a\r\nSet-Cookie: x", b"\xff", b"a\n", b'"'):
        answer = await world.admin.get("/api/v1/tasks/none", headers=[(b"X-Request-Id", given)])
        made = answer.headers["X-Request-Id"]
        assert made.encode() != given
        assert uuid.UUID(made)
        assert answer.json()["error"]["request_id"] == made
        assert "set-cookie" not in answer.headers


@requirement("http.error-envelope")
async def test_an_unknown_path_is_404_and_says_which(world: World) -> None:
    for path in ("/", "/api/v1/nothing", "/api/v2/tasks", "/api/v1/tasks/", "/api/v1/tasks/a/b/c", "/docs", "/redoc"):
        answer = await world.admin.get(path)
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (404, "NOT_FOUND")
        assert f"GET {path}" in error["message"]
        assert "/openapi.json" in error["message"]


@pytest.mark.parametrize(
    ("path", "base"),
    [
        ("/chat/completions", "/v1, right after the port"),
        ("/api/v1/models", "/v1, right after the port"),
        ("/api/v1/api/v1/tasks", "ends before /api/v1"),
    ],
)
@requirement("http.error-envelope")
async def test_a_client_with_a_wrong_base_address_is_told_the_right_one(world: World, path: str, base: str) -> None:
    assert base in (await world.admin.get(path)).json()["error"]["message"]


@requirement("http.error-envelope")
async def test_a_method_that_a_path_does_not_have_is_405_and_names_those_it_has(world: World) -> None:
    paths: dict[str, set[str]] = {}
    for operation in PROTECTED:
        paths.setdefault(operation.url(), set()).add(operation.method)
    for path, has in paths.items():
        for method in {"GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"} - has:
            answer = await world.admin.request(method, path)
            if answer.status_code == 405:  # another path of the same form may have it
                assert answer.json()["error"]["code"] == "METHOD_NOT_ALLOWED"
                allowed = set(answer.headers["Allow"].split(", "))
                assert (allowed >= has) if "trust" in path else (allowed == has)  # levels is an entity's id too
            else:
                assert path.startswith("/api/v1/trust/"), f"{method} {path}"


@requirement("http.no-driver-text")
@pytest.mark.parametrize("table", ["tasks", "events"])
async def test_an_unreadable_table_shows_nothing_of_the_databases_own_words(world: World, table: str) -> None:
    await world.register()
    await world.kernel.infra.db.write(lambda tx: tx.run(Sql(f"alter table {table} rename to hidden")))
    body = {"type": "echo", "input": 1, "required_capabilities": ["echo"]}
    answer = await world.admin.post("/api/v1/tasks", json=body)
    await world.kernel.infra.db.write(lambda tx: tx.run(Sql(f"alter table hidden rename to {table}")))
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "SERVICE_UNAVAILABLE")
    assert "no such table" not in answer.text
    assert "relation" not in answer.text
    assert "Retry-After" in answer.headers


@requirement("http.no-driver-text")
def test_neither_a_response_nor_a_stream_nor_grpc_shows_the_databases_own_words() -> None:
    error = StoreUnavailable.of_driver(LEAK)
    response = bytes(render_stentor_error({"path": "/api/v1/tasks", "headers": []}, error).body)
    shown = (response, stream_error_message(error), status_message(error), error_metadata(error, "id"))
    assert "hunter2" not in str(shown)
    assert str(shown).count("The database is not available.") == len(shown)


REFUSED: list[tuple[int, str, str, dict[str, Any]]] = [
    (400, "PUT", "/api/v1/sessions/s/values", {"values": ["x"]}),
    (400, "POST", "/api/v1/llm/chat", {"messages": "x"}),
    (400, "POST", "/api/v1/tasks", {"type": 7}),
    (404, "POST", f"/api/v1/tasks/{UNKNOWN}/steps", {"epoch": 1, "key": "k", "name": "n", "value": "x"}),
    (404, "POST", f"/api/v1/tasks/{UNKNOWN}/complete", {"epoch": 1, "result": "x"}),
]


async def test_the_body_of_a_refused_request_is_freed_without_the_garbage_collector(world: World) -> None:
    async def ask(method: str, path: str, body: bytes) -> int:
        """Without a client, which would hold the request with its response."""
        sent: list[Message] = []

        async def receive() -> Message:
            return {"type": "http.request", "body": body}

        async def send(message: Message) -> None:
            sent.append(message)

        headers = [(b"x-api-key", b"admin-key-7c1e"), (b"content-type", b"application/json")]
        asked = {"type": "http", "http_version": "1.1", "method": method, "path": path, "raw_path": path.encode()}
        await world.app({**asked, "query_string": b"", "headers": headers, "server": ("host", 1)}, receive, send)
        return int(sent[0]["status"])

    gc.disable()
    try:
        for status, method, path, fields in REFUSED:
            body = json.dumps(fields).encode()
            await ask(method, path, body)  # the first request builds the route
            before = sys.getrefcount(body)
            assert await ask(method, path, body) == status
            assert sys.getrefcount(body) == before, path
    finally:
        gc.enable()
