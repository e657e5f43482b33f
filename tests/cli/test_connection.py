"""How a command finds the service and its key, and what it makes of a service that misbehaves."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from stentor.cli.client import connection
from stentor.cli.client.client import ServiceClient
from stentor.cli.output import EXIT_UNREACHABLE, CommandFailed
from stentor.core.settings import Settings
from tests.cli.program import Program
from tests.stub import Answer, Asked, serving

Served = tuple[Program, Any]
PAGE = {"tasks": [], "total": 0, "limit": 50, "offset": 0, "next_cursor": None}


def test_a_command_finds_the_service_that_holds_the_data_folder(served: Served) -> None:
    program, service = served
    assert program("agent", "register", "ann", "--capability", "echo").code == 0
    with service.client() as http:
        names = [a["name"] for a in http.get("/api/v1/registry/agents").json()["agents"]]
    assert "ann" in names


def test_an_address_that_is_given_comes_before_the_data_folder(served: Served) -> None:
    program, service = served
    elsewhere = Program(program.data_dir.parent / "elsewhere", {"SERVICE_CLIENT_KEY": service.key})
    assert elsewhere("task", "list", "--url", service.address, "--json").json["total"] == 0
    elsewhere.environ["SERVICE_URL"] = service.address + "/api/v1/"
    assert elsewhere("task", "list", "--json").json["total"] == 0
    assert not elsewhere.data_dir.exists()


def test_no_service_at_the_address_ends_with_4(program: Program) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{taken.getsockname()[1]}"
        done = program("task", "list", "--url", address, "--json")
    assert done.code == 4
    assert done.json["error"] == f"Cannot connect to a service at {address}. Is it running?"
    assert not program.data_dir.exists()


async def test_a_service_that_is_late_with_the_tls_handshake_is_not_told_as_one_that_is_not_running(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection, "TIMEOUT_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:  # it accepts connections, and says nothing
        url = httpx.URL(f"https://127.0.0.1:{server.getsockname()[1]}")
        async with connection.create_http_client(Settings(), url, "key") as http:
            with pytest.raises(CommandFailed, match=r"has not accepted a connection for 0\.2 s") as failed:
                await ServiceClient(http, str(url), "").get("/tasks", dict)
    assert failed.value.code == EXIT_UNREACHABLE


def test_a_connection_that_breaks_is_not_told_as_a_service_that_is_not_running(program: Program) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        # Closed with the request unread, which resets it.
        threading.Thread(target=lambda: server.accept()[0].close()).start()
        done = program("task", "list", "--url", address)
    assert (done.code, f"The connection to {address} broke during the request." in done.err) == (4, True), done.err


def test_https_in_the_address_of_a_service_without_tls_is_told_as_such(program: Program) -> None:
    with serving(lambda request, before: Answer(body=PAGE)) as (address, _):
        secure = address.replace("http://", "https://")
        done = program("task", "list", "--url", secure)
    assert (done.code, f"The server at {secure} speaks HTTP without TLS. Use {address}" in done.err) == (4, True), (
        done.err
    )


def test_a_name_that_cannot_be_resolved_is_told_as_such(program: Program) -> None:
    done = program("task", "list", "--url", "http://stentor.invalid:8080")
    assert (done.code, "The name in http://stentor.invalid:8080 cannot be resolved." in done.err) == (4, True)


@pytest.mark.parametrize(
    "address", ["127.0.0.1:8080", "ftp://host", "http://", "http://[", "nonsense", "http://127.0.0.1:99999"]
)
def test_an_address_that_is_none_is_wrong_usage(program: Program, address: str) -> None:
    done = program("task", "list", "--url", address)
    assert done.code == 2
    assert "(--url or SERVICE_URL) must be a URL such as http://127.0.0.1:8080" in done.err


def test_a_missing_or_wrong_key_is_told_with_where_it_came_from(serve: Callable[..., Any]) -> None:
    service = serve()
    program = Program(service.data_dir, service.state)
    missing = program("task", "list")
    assert missing.code == 3
    assert "none was found: set SERVICE_CLIENT_KEY" in missing.err
    program.environ["MCP_API_KEY"] = "wrong-key-from-the-environment"
    wrong = program("task", "list", "--json")
    assert wrong.json["details"] == {"code": "UNAUTHORIZED", "status": 401}
    assert "The key came from MCP_API_KEY" in wrong.json["error"]
    assert "wrong-key" not in wrong.out + wrong.err
    (file := service.data_dir / "keys" / "admin.key").parent.mkdir(exist_ok=True)
    file.write_text("no-key-of-this-service")
    unused = program("task", "list").err
    assert "admin.key; set another one in SERVICE_CLIENT_KEY. A service with keys in SERVICE_API_KEY_* or" in unused
    assert program("task", "list", "--key", service.key).code == 0, "an option wins"


def test_the_key_of_the_data_folder_is_used_here_and_never_sent_elsewhere(program: Program) -> None:
    path = program.data_dir / "keys" / "admin.key"
    path.parent.mkdir(parents=True)
    path.write_text("key-of-the-folder\n")

    def respond(request: Asked, before: int) -> Answer:
        return Answer(body=PAGE)

    with serving(respond) as (address, asked):
        assert program("task", "list", "--url", address).code == 0
        # A name of this machine that is no loopback address.
        program.environ["NO_PROXY"], program.environ["http_proxy"] = "", address
        assert program("task", "list", "--url", "http://stentor.invalid").code == 0
    assert asked[0].headers["x-api-key"] == "key-of-the-folder"
    assert "x-api-key" not in asked[1].headers


def test_a_key_that_no_header_can_carry_is_wrong_usage(program: Program) -> None:
    done = program("task", "list", "--url", "http://127.0.0.1:9", "--key", "sécret")
    assert done.code == 2
    assert "--key contains characters" in done.err
    assert "cret contains" not in done.err


def test_a_key_with_spaces_around_it_is_sent_without_them(program: Program) -> None:
    with serving(lambda request, before: Answer(body=PAGE)) as (address, asked):
        assert program("task", "list", "--url", address, "--key", "copied ").code == 0
    assert asked[0].headers["x-api-key"] == "copied"


def test_a_data_folder_that_cannot_be_read_is_not_needed_for_a_given_address(tmp_path: Path) -> None:
    # Its name is too long: so that root cannot read it either.
    program = Program(tmp_path / ("x" * 300), {"MCP_API_KEY": "shared"})
    with serving(lambda request, before: Answer(body=PAGE)) as (address, asked):
        assert program("task", "list", "--url", address).code == 0
    assert asked[0].headers["x-api-key"] == "shared"
    program.environ["SSL_CERT_FILE"] = str(tmp_path / "none")
    done = program("task", "list", "--url", "https://127.0.0.1:9")
    assert (done.code, "none of SSL_CERT_FILE cannot be used: No such file" in done.err) == (2, True)
    del program.environ["SSL_CERT_FILE"]
    done = program("task", "list", "--url", "https://127.0.0.1:9")
    assert (done.code, "Cannot connect to a service at https://127.0.0.1:9." in done.err) == (4, True)


@pytest.mark.parametrize(
    ("proxy", "reason"),
    [("socks5://127.0.0.1:1", "SOCKS"), ("sock://127.0.0.1:1", "Unknown scheme"), ("http://h:x", "Invalid port")],
)
def test_a_proxy_that_cannot_be_used_is_told_as_such(program: Program, proxy: str, reason: str) -> None:
    program.environ |= {"NO_PROXY": "", "ALL_PROXY": proxy}
    done = program("task", "list", "--url", "http://stentor.invalid", "--json")
    assert done.code == 2
    assert done.json["error"].startswith("The proxy of HTTP_PROXY, HTTPS_PROXY or ALL_PROXY cannot be used: ")
    assert reason in done.json["error"]


def test_a_rate_limit_is_waited_out_with_a_notice(program: Program) -> None:
    throttled = {"success": False, "code": "RATE_LIMITED", "error": "Rate limit exceeded", "message": "Try again."}

    def respond(request: Asked, before: int) -> Answer:
        return Answer(429, throttled, {"Retry-After": "0"}) if before < 2 else Answer(body=PAGE)

    with serving(respond) as (address, asked):
        done = program("task", "list", "--url", address, "--json")
    assert done.code == 0
    assert done.json == PAGE
    assert done.err.count("Rate limit of this key reached; retrying in 0 s.") == 2
    assert len(asked) == 3


@pytest.mark.parametrize(
    "answer",
    [
        Answer(200, raw=b"<html>hello"),
        Answer(404, raw=b"not found"),
        Answer(400, body=["x"]),
        Answer(308, raw=b"", headers={"Location": "https://stentor.example/"}),
    ],
)
def test_what_is_not_stentor_is_told_so(program: Program, answer: Answer) -> None:
    with serving(lambda request, before: answer) as (address, _):
        done = program("task", "list", "--url", address)
    assert done.code == 4
    assert f"The server at {address} is not Stentor." in done.err
    assert ("It redirects to https://stentor.example/. Check the address." in done.err) == (answer.status == 308)


def test_a_proxy_that_does_not_reach_the_service_is_no_wrong_address(program: Program) -> None:
    with serving(lambda request, before: Answer(502, raw=b"<html>")) as (address, _):
        done = program("task", "list", "--url", address, "--json")
    assert (done.code, done.json["details"]) == (4, {"code": "HTTP_502", "status": 502})
    assert done.json["error"] == f"HTTP_502: A proxy at {address} does not reach the service. Is it running?"


def test_a_proxy_that_accepts_no_large_requests_is_no_wrong_address(program: Program) -> None:
    with serving(lambda request, before: Answer(413, raw=b"<html>")) as (address, _):
        done = program("task", "list", "--url", address, "--json")
    assert done.json["details"] == {"code": "HTTP_413", "status": 413}
    assert f"A proxy at {address} accepts no request of this size" in done.json["error"]


def test_an_outage_of_the_service_ends_with_1(program: Program) -> None:
    body = {"error": {"code": "SERVICE_UNAVAILABLE", "message": "The database cannot be used.", "request_id": "r"}}
    with serving(lambda request, before: Answer(503, body)) as (address, _):
        done = program("task", "list", "--url", address, "--json")
    assert done.code == 1
    assert done.json["error"] == "SERVICE_UNAVAILABLE: The database cannot be used."


def _frame(kind: str, data: dict[str, Any], id_: str | None = None) -> bytes:
    head = f"id: {id_}\n" if id_ else ""
    return f"{head}event: {kind}\ndata: {json.dumps(data, ensure_ascii=False)}\n\n".encode()


def test_a_broken_stream_is_resumed_where_it_broke(program: Program) -> None:
    """Also after a generic error of the service, and in the middle of a frame."""
    parts = [
        b": heartbeat\n\n" + _frame("token", {"text": "one "}, "e1:a:1") + _frame("token", {"text": "lost"}, "x")[:9],
        _frame("token", {"text": "two\u2028"}, "e1:a:2") + _frame("error", {"error": "The service failed."}),
        _frame("complete", {"status": "completed"}),
    ]
    record = {"task_id": "t", "status": "completed", "result": "one two", "error": None, "assigned_agent": "a"}
    streams: list[str | None] = []

    def respond(request: Asked, before: int) -> Answer:
        if not request.path.endswith("/stream"):
            return Answer(body=record)
        streams.append(request.headers.get("last-event-id"))
        return Answer(raw=parts[len(streams) - 1], headers={"Content-Type": "text/event-stream"})

    with serving(respond) as (address, _):
        done = program("task", "watch", "t", "--url", address)
    assert (done.code, done.out) == (0, "one two\u2028\n")
    assert streams == [None, "e1:a:1", "e1:a:2"]
    assert done.err.count("Connection lost") == 2


def test_a_restart_behind_a_proxy_does_not_end_a_watch(program: Program) -> None:
    """Nor do the commands that a wait is told with, which cannot be asked for meanwhile."""
    record = {"task_id": "t", "status": "completed", "result": "done", "error": None, "assigned_agent": "a"}
    waiting = {"event_type": "task_waiting", "message": "waits", "metadata": {"keys": ["k"]}}
    approval = {"event_type": "approval_requested", "message": "asks", "metadata": {}}
    gone = Answer(502, raw=b"")
    streams = [
        Answer(raw=_frame("activity", waiting, "e1:a:1") + _frame("activity", approval, "e1:a:2")),
        gone,
        Answer(raw=_frame("complete", {"status": "completed"})),
    ]
    records = [Answer(body=record), gone, Answer(body=record)]

    def respond(request: Asked, before: int) -> Answer:
        if request.path.endswith("/stream"):
            return streams.pop(0)
        return gone if "/steps/" in request.path else records.pop(0)

    with serving(respond) as (address, _):
        done = program("task", "watch", "t", "--url", address)
    assert (done.code, done.out) == (0, "done\n"), done.err
    assert (streams, records) == ([], [])


def test_a_text_that_the_encoding_of_the_terminal_lacks_is_no_error(program: Program) -> None:
    record = {"task_id": "t", "status": "completed", "result": "→ü", "error": None, "assigned_agent": "a"}
    stream = _frame("token", {"text": "→ü"}, "e1:a:1") + _frame("complete", {"status": "completed"})

    def respond(request: Asked, before: int) -> Answer:
        return Answer(raw=stream) if request.path.endswith("/stream") else Answer(body=record)

    program.environ["PYTHONIOENCODING"] = "ascii"
    with serving(respond) as (address, _):
        done = program("task", "watch", "t", "--url", address)
        as_json = program("task", "watch", "t", "--url", address, "--json")
    assert (done.code, done.out) == (0, "??\n")
    assert (as_json.code, as_json.json["result"]) == (0, "→ü")
