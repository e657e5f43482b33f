"""Instructions that are carried out while the caller reads: the frames, and what stays when things go wrong."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

import httpx
import pytest
from starlette.types import Message, Receive, Scope, Send

from stentor.core.errors import StoreUnavailable
from stentor.domains.tasks.model import TaskStreamStep
from stentor.surfaces.dashboard import streaming
from stentor.web import sse
from tests.domains.streams import parse
from tests.patience import PATIENCE_SECONDS, soon
from tests.requirements import requirement
from tests.surfaces.dashboard.board import LOCAL, Board, frames

PATH = "/api/cli/execute/stream"
TEXT = "Agents do tasks. Stentor routes each task to the best agent. It records why."
COMPLETE = {
    "atp", "task_id", "agent_name", "status", "summary", "note_path", "error", "provenance_id", "provider", "model",
    "outcome_class", "learning_eligible",
}  # fmt: skip
ROUTING = {"decision", "agent_name", "task_id", "atp", "provenance_id"}
ENVELOPE = ("atp", "provenance_id")
STRICT = """#Mode: stream
#Context: trace-1
#Priority: high
#ActionType: execute
#TargetZone: kernel
#SpecialNotes: capability=echo

say hello"""


async def work(board: Board, agent_id: str, **ended: Any) -> dict[str, Any]:
    """Claim the next task as a worker, stream what `tokens` has, and end it."""
    claim = await board.world.claim(agent_id, wait_seconds=60)
    path, tokens = f"/api/v1/tasks/{claim['task_id']}", ended.pop("tokens", None)
    admin = board.world.admin
    if tokens:
        assert (await admin.post(f"{path}/tokens", json={"epoch": claim["epoch"], "tokens": tokens})).status_code == 200
    verb = "fail" if "error" in ended else "complete"
    answer = await admin.post(f"{path}/{verb}", json={"epoch": claim["epoch"], **ended})
    assert answer.status_code == 200, answer.text
    return claim


async def both(board: Board, agent_id: str, body: dict[str, Any], **ended: Any) -> Any:
    """The frames of an instruction, while a worker carries it out; and its claim."""
    return await asyncio.gather(board.execute(**body), work(board, agent_id, **ended))


@pytest.fixture
async def summarizer(board: Board) -> Board:
    await board.world.register("sum", capabilities=["summarize"], runtime={"kind": "builtin", "name": "summarizer"})
    return board


@requirement("dashboard.execute-stream", "dashboard.execute-frames", "dashboard.execute-one-terminal-frame")
async def test_the_frames_are_routing_tokens_and_one_end(summarizer: Board) -> None:
    found = await summarizer.execute(instruction=TEXT, capability="summarize", title="My text")
    kinds = [kind for kind, _ in found]
    assert kinds == ["routing", *["token"] * (len(found) - 2), "complete"]
    routing, end = found[0][1], found[-1][1]
    assert set(routing) == ROUTING
    assert set(end) == COMPLETE
    assert all(set(data) == {"text", *ENVELOPE} for kind, data in found if kind == "token")
    assert routing["agent_name"] == end["agent_name"] == "sum"
    assert routing["decision"]["capability"] == ["summarize"]
    assert routing["atp"]["header"] == {
        "mode": "stream",
        "context": "My text",
        "priority": "normal",
        "actionType": "execute",
        "targetZone": "kernel",
        "specialNotes": "capability=summarize,type=summarize",
    }
    assert (end["status"], end["outcome_class"], end["learning_eligible"], end["error"]) == (
        "completed",
        "success",
        True,
        None,
    )
    assert "".join(data["text"] for kind, data in found if kind == "token").strip() == end["summary"]
    record = await summarizer.get(f"/api/tasks/{end['task_id']}")
    assert (record["status"], record["submitted_by"], record["task_tags"]) == ("completed", "dashboard", ["My text"])
    assert record["provenance_id"] == end["provenance_id"]


@requirement("atp.responses-carry-atp-block")
async def test_every_frame_carries_the_envelope_and_a_provenance_id(board: Board) -> None:
    ann = await board.world.register()
    body = {"instruction": STRICT, "atp_strict": True}
    done, _ = await both(board, ann, body, tokens=["a", "b"], result="ab")
    failed, _ = await both(board, ann, body, error={"message": "no"})
    denied = await board.execute(instruction="x", capability="nobody-has-it")
    for found in (done, failed, denied):
        assert len({str(data["atp"]["header"]) for _, data in found}) == 1
        task_id = found[-1][1]["task_id"]
        own = {event["event_id"] for event in await board.world.events(task_id)}
        assert {data["provenance_id"] for _, data in found} <= own
        assert found[-1][1]["provenance_id"] == (await board.world.task(task_id))["provenance_id"]
    header = done[-1][1]["atp"]["header"]
    stream = await board.world.admin.get(f"/api/v1/tasks/{done[-1][1]['task_id']}/stream")
    assert {str(frame.data["atp"]["header"]) for frame in parse(stream.text)} == {str(header)}


@requirement("dashboard.execute-one-terminal-frame")
async def test_an_agent_that_does_not_stream_gives_one_token(board: Board) -> None:
    ann = await board.world.register()
    found, _ = await both(board, ann, {"instruction": "hello", "capability": "echo"}, result={"answer": "hi there"})
    assert [kind for kind, _ in found] == ["routing", "token", "complete"]
    assert found[1][1]["text"] == "hi there"
    assert found[2][1]["summary"] == "hi there"


async def test_tokens_of_a_worker_come_as_they_are_written(board: Board) -> None:
    ann = await board.world.register()
    body = {"instruction": "hello", "capability": "echo"}
    found, claim = await both(board, ann, body, tokens=["one ", "", "two"], result="one two")
    assert [data["text"] for kind, data in found if kind == "token"] == ["one ", "two"]
    assert (claim["input"], claim["type"], claim["required_capabilities"]) == ("hello", "echo", ["echo"])


@requirement("dashboard.execute-routing-failure", "dashboard.execute-generic-error")
async def test_a_failed_routing_is_one_error_that_names_the_task(board: Board) -> None:
    found = await board.execute(instruction="x", capability="nobody-has-it")
    assert [kind for kind, _ in found] == ["error"]
    assert set(found[0][1]) == {"error", "task_id", *ENVELOPE}
    assert "ROUTING_CAPABILITY_UNAVAILABLE" in found[0][1]["error"]
    assert (await board.get(f"/api/tasks/{found[0][1]['task_id']}"))["status"] == "routing_failed"


@requirement("dashboard.execute-learning-error", "dashboard.execute-generic-error")
async def test_a_lesson_that_failed_is_told_with_the_end(board: Board, monkeypatch: pytest.MonkeyPatch) -> None:
    ann = await board.world.register()

    def broken(*arguments: Any, **options: Any) -> str:
        raise RuntimeError("secret detail 7c1e")

    monkeypatch.setattr(board.world.kernel.agents.learning, "learn", broken)
    found, _ = await both(board, ann, {"instruction": "hello", "capability": "echo"}, result="hi")
    kind, end = found[-1]
    assert (kind, end["status"]) == ("complete", "completed")
    assert "Learning" in end["error"]
    assert "7c1e" not in str(found)


@requirement("dashboard.execute-generic-error", "dashboard.execute-one-terminal-frame")
async def test_a_task_that_fails_ends_with_a_generic_error(board: Board) -> None:
    ann = await board.world.register()
    error = {"code": "password_7c1e", "message": "Traceback: secret detail 7c1e"}
    found, claim = await both(board, ann, {"instruction": "hello", "capability": "echo"}, error=error)
    kind, end = found[-1]
    assert (kind, end["error"], end["task_id"]) == ("error", "The task is failed.", claim["task_id"])
    assert [kind for kind, _ in found].count("error") == 1
    assert "7c1e" not in str(found)


@requirement("dashboard.execute-one-terminal-frame")
async def test_a_silent_stream_has_heartbeats(board: Board, monkeypatch: pytest.MonkeyPatch) -> None:
    assert sse.HEARTBEAT_SECONDS == 15
    monkeypatch.setattr(sse, "HEARTBEAT_SECONDS", 0.02)
    ann = await board.world.register()
    beaten, dashboard = asyncio.Event(), cast("httpx.ASGITransport", board.http._transport).app

    async def heard(scope: Scope, receive: Receive, send: Send) -> None:
        async def passed_on(message: Message) -> None:
            if message.get("body") == sse.HEARTBEAT_COMMENT:
                beaten.set()
            await send(message)

        await dashboard(scope, receive, passed_on)

    http = httpx.AsyncClient(transport=httpx.ASGITransport(heard), base_url=LOCAL, headers=board.http.headers)
    stream = asyncio.ensure_future(http.post(PATH, json={"instruction": "hello", "capability": "echo"}))
    claim = await board.world.claim(ann, wait_seconds=60)
    await asyncio.wait_for(beaten.wait(), PATIENCE_SECONDS)
    body = {"epoch": claim["epoch"], "result": "hi"}
    await board.world.admin.post(f"/api/v1/tasks/{claim['task_id']}/complete", json=body)
    text = (await stream).text
    assert ": heartbeat\n\n" in text
    assert [kind for kind, _ in frames(text)] == ["routing", "token", "complete"]


@requirement("dashboard.execute-generic-error", "dashboard.execute-one-terminal-frame")
async def test_whatever_breaks_the_stream_ends_with_an_error_that_names_the_task(
    board: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    await board.world.register()

    async def broken(tenant: str, task_id: str, after: str | None) -> AsyncIterator[TaskStreamStep]:
        yield TaskStreamStep("routing", {"agent_name": "ann"}, "1")
        raise RuntimeError("secret detail 7c1e")

    monkeypatch.setattr(board.world.kernel.tasks.activity, "stream", broken)
    found = await board.execute(instruction="hello", capability="echo")
    assert [kind for kind, _ in found] == ["routing", "error"]
    assert found[1][1]["error"] == streaming.STREAM_FAILED_MESSAGE
    assert (await board.get(f"/api/tasks/{found[1][1]['task_id']}"))["status"] == "queued"


@requirement("dashboard.stream-goes-on")
async def test_a_stream_that_breaks_off_is_taken_up_where_it_was(board: Board, monkeypatch: pytest.MonkeyPatch) -> None:
    await board.world.register()
    seen: list[str | None] = []

    async def lame(tenant: str, task_id: str, after: str | None) -> AsyncIterator[TaskStreamStep]:
        seen.append(after)
        if after is None:
            yield TaskStreamStep("token", {"text": "one"}, "a:b:1")
            yield TaskStreamStep("error", {"error": "The reader was too slow.", "task_id": task_id})
        elif len(seen) == 2:
            raise StoreUnavailable("not now")
        else:
            yield TaskStreamStep("error", {"error": "The task is cancelled.", "status": "cancelled", "code": None})

    monkeypatch.setattr(board.world.kernel.tasks.activity, "stream", lame)
    monkeypatch.setattr(streaming, "RECONNECT_PAUSE_SECONDS", 0.01)
    found = await board.execute(instruction="hello", capability="echo")
    assert seen == [None, "a:b:1", "a:b:1"]
    assert [(kind, data.get("error")) for kind, data in found] == [("token", None), ("error", "The task is cancelled.")]


@requirement("dashboard.stream-goes-on")
async def test_a_stream_that_cannot_be_taken_up_again_ends(board: Board, monkeypatch: pytest.MonkeyPatch) -> None:
    await board.world.register()

    async def nothing(tenant: str, task_id: str, after: str | None) -> AsyncIterator[TaskStreamStep]:
        return
        yield

    monkeypatch.setattr(board.world.kernel.tasks.activity, "stream", nothing)
    monkeypatch.setattr(streaming, "RECONNECT_PAUSE_SECONDS", 0.01)
    found = await board.execute(instruction="hello", capability="echo")
    assert [(kind, data["error"]) for kind, data in found] == [("error", streaming.STREAM_LOST_MESSAGE)]


@requirement("dashboard.stream-goes-on")
async def test_a_service_that_leaves_ends_its_streams_and_the_work_stays(board: Board) -> None:
    await board.world.register()
    stream = asyncio.ensure_future(board.execute(instruction="hello", capability="echo"))

    async def submitted() -> bool:
        return bool((await board.world.admin.get("/api/v1/tasks")).json()["total"])

    await soon(submitted)
    board.world.kernel.infra.hub.closing.set()
    found = await stream
    assert found[-1][1]["error"] == streaming.SHUTDOWN_MESSAGE
    assert (await board.get(f"/api/tasks/{found[-1][1]['task_id']}"))["status"] == "queued"


@requirement("dashboard.strict-envelope")
async def test_in_the_strict_form_the_envelope_alone_says_who_is_reached(board: Board) -> None:
    ann = await board.world.register()
    found, claim = await both(board, ann, {"instruction": STRICT, "atp_strict": True}, result="hello")
    assert found[0][1]["atp"]["header"]["specialNotes"] == "capability=echo"
    assert found[0][1]["decision"]["capability"] == ["echo"]
    assert claim["input"] == "say hello"
    assert claim["metadata"]["priority"] == "high"


@requirement("dashboard.strict-envelope", "atp.contract-bodies")
async def test_a_strict_body_chooses_among_all_agents_where_its_envelope_names_none(board: Board) -> None:
    await board.world.register("ann", alignment_score=1)
    ben = await board.world.register("ben", capabilities=["shell"], alignment_score=0)
    head = STRICT.partition("\n\n")[0].replace("#SpecialNotes: capability=echo", "").strip()
    body = '{"task": {"type": "echo", "input": "say hello", "required_capabilities": ["shell"]}}'
    _, claim = await both(board, ben, {"instruction": f"{head}\n\n{body}", "atp_strict": True}, result="hello")
    assert claim["required_capabilities"] == ["shell"]
    beside = {"instruction": f"{head}\n\n{body}", "atp_strict": True, "capability": "echo"}
    assert (await board.http.post(PATH, json=beside)).status_code == 400


@requirement("dashboard.strict-envelope")
async def test_an_envelope_never_reaches_an_agent(board: Board) -> None:
    ann = await board.world.register()
    body = {"instruction": STRICT, "capability": "echo"}
    _, claim = await both(board, ann, body, result="hello")
    assert claim["input"] == "say hello"


async def test_an_agent_is_named_by_its_name_or_its_id(board: Board) -> None:
    ann, _ = await board.world.register("ann"), await board.world.register("bob")
    for named in ("ann", ann, ann.upper()):
        found, claim = await both(board, ann, {"instruction": "hello", "agent": named}, result="hi")
        assert found[0][1]["agent_name"] == "ann"
        assert found[0][1]["atp"]["header"]["specialNotes"] == f"agent={ann}"
        assert claim["type"] == "message"


WRONG: dict[str, dict[str, Any]] = {
    "nothing": {},
    "empty": {"instruction": ""},
    "no text": {"instruction": 7},
    "NUL": {"instruction": "a\0b"},
    "too long": {"instruction": "x" * 200_001},
    "unknown field": {"instruction": "x", "note_path": "Tasks/x.md"},
    "unknown agent": {"instruction": "x", "agent": "nobody"},
    "ambiguous agent": {"instruction": "x", "agent": "twin"},
    "comma": {"instruction": "x", "capability": "echo,agent=other"},
    "spaces": {"instruction": "x", "capability": " echo "},
    "long capability": {"instruction": "x", "capability": "e" * 200},
    "control characters": {"instruction": "x", "title": "a\nb"},
    "no message": {"instruction": "say hello", "atp_strict": True},
    "forged head": {"instruction": f"#Mode: direct\n{STRICT}", "atp_strict": True},
    "no execute": {"instruction": STRICT.replace("kernel", "memory"), "atp_strict": True},
    "cancel": {"instruction": STRICT.replace("execute", "cancel"), "atp_strict": True},
    "another capability": {"instruction": STRICT, "atp_strict": True, "capability": "summarize"},
    "another agent": {"instruction": STRICT, "atp_strict": True, "agent": "ann"},
    "a flag that is none": {"instruction": "x", "atp_strict": "yes"},
}


@requirement("dashboard.instruction-refused", "dashboard.strict-envelope")
async def test_what_is_wrong_with_a_request_is_400_and_no_task(board: Board) -> None:
    await board.world.register("ann")
    for _ in range(2):
        await board.world.register("twin")
    for name, body in WRONG.items():
        answer = await board.http.post(PATH, json=body)
        assert (name, answer.status_code) == (name, 400), answer.text
        assert answer.json()["error"]["message"]
    for content in (b"", b"[", b"[]", b"\xff", b'"x"'):
        headers = {"Content-Type": "application/json"}
        assert (await board.http.post(PATH, content=content, headers=headers)).status_code == 400
    assert (await board.world.admin.get("/api/v1/tasks")).json()["total"] == 0
    large = await board.http.post(PATH, content=b"x" * 2_000_001)
    assert large.status_code == 413


async def test_the_same_strict_task_id_with_another_body_is_refused(board: Board) -> None:
    await board.world.register()
    body = '{"task": {"id": "one", "type": "echo", "input": "%s", "required_capabilities": ["echo"]}}'
    await board.world.submit(id="one", input="else")
    answer = await board.http.post(
        PATH, json={"instruction": STRICT.replace("say hello", body % "hello"), "atp_strict": True}
    )
    assert answer.status_code == 409


@requirement("dashboard.instruction-refused")
async def test_a_key_has_no_more_streams_than_it_may(make_board: Any) -> None:
    board: Board = await make_board(SERVICE_MAX_STREAMS_PER_KEY="1")
    ann = await board.world.register()
    first = asyncio.ensure_future(board.execute(instruction="hello", capability="echo"))
    claim = await board.world.claim(ann, wait_seconds=60)
    second = await board.http.post(PATH, json={"instruction": "hello", "capability": "echo"})
    assert second.status_code == 429
    assert (await board.world.admin.get("/api/v1/tasks")).json()["total"] == 1
    body = {"epoch": claim["epoch"], "result": "hi"}
    await board.world.admin.post(f"/api/v1/tasks/{claim['task_id']}/complete", json=body)
    assert (await first)[-1][0] == "complete"


async def test_a_run_log_that_cannot_be_written_takes_no_work(board: Board) -> None:
    await board.world.register()
    board.world.runlog.broken = True
    answer = await board.http.post(PATH, json={"instruction": "hello", "capability": "echo"})
    board.world.runlog.broken = False
    assert answer.status_code == 503
    assert (await board.world.admin.get("/api/v1/tasks")).json()["total"] == 0
