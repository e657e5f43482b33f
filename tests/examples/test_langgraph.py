"""The checkpointer of LangGraph: LangGraph's own conformance tests, the example, and what a refusal says."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from stentor_worker.http.client import Client
from stentor_worker.integrations.langgraph_values import CheckpointError, Threads, _batches, make_key
from tests.conftest import Service
from tests.examples.test_frameworks import EXAMPLES, FRAMEWORKS, SDK
from tests.requirements import requirement
from tests.service import KEYS
from tests.stub import Answer, Asked, serving

NAMES = ["a/b/../c", "..", "ü 語 🎉", "%2F", "x" * 255, "y" * 5_000, "#" + "f" * 64, "q?a=1&b#z", "a\nb", " \\'\"<>"]
EXAMPLE = EXAMPLES / "langgraph_memory.py"


@pytest.fixture(scope="module")
def service(serve_module: Callable[..., Service]) -> Service:
    return serve_module()


def threads(service: Service, who: str = "ADMIN", prefix: str = "test/") -> Threads:
    key = KEYS[who].split(":")[0] if who in KEYS else who
    return Threads(Client(service.address, key, threading.Event()), prefix, 1)


@requirement("sessions.threads")
def test_a_thread_of_any_name_has_values_of_its_own(service: Service) -> None:
    of_all = threads(service, prefix="names/")
    for name in NAMES:
        of_all.set(name, {make_key("c", other, ""): f"{name}{other}".encode() for other in ("", *NAMES)})
    assert sorted(of_all) == sorted(NAMES)
    for name in NAMES:
        keys = {make_key("c", other, ""): f"{name}{other}".encode() for other in ("", *NAMES)}
        assert len(keys) == len(NAMES) + 1
        assert of_all.read(name, keys) == dict(of_all.scan(name, "c/", page=3)) == keys
    of_all.delete(NAMES[0])
    of_all.delete(NAMES[0])
    assert list(of_all.scan(NAMES[0], "")) == []
    assert sorted(of_all) == sorted(NAMES[1:])


@requirement("sessions.threads")
def test_values_are_as_many_and_as_long_as_a_graph_has_them(service: Service) -> None:
    of_all = threads(service, "WRITER", prefix="many/")
    long = {f"b/{number}": bytes([number]) * 3_500_000 for number in range(4)}
    short = {f"c/{number:04}": b"%d" % number for number in range(2_100)}
    of_all.set("t", {**long, **short})
    assert of_all.read("t", [*long, *short]) == {**long, **short}
    assert list(of_all.scan("t", "", before="c/1500")) == sorted({**long, **short}.items())[:1_504][::-1]
    of_all.set("t", {"c/0001": b"x", "c/new": b"y"}, if_absent=True)
    assert of_all.read("t", ["c/0001", "c/new", "none"]) == {"c/0001": b"1", "c/new": b"y"}
    of_all.remove("t", list(short)[1:], ["b/"])
    assert dict(of_all.scan("t", "")) == {"c/0000": b"0", "c/new": b"y"}
    of_all.delete("t")  # without the permission
    assert (list(of_all.scan("t", "")), list(of_all)) == ([], ["t"])


@requirement("sessions.threads")
def test_what_is_set_last_is_stored_together_whatever_goes_before() -> None:
    values = {"long": b"x" * 5_000_000, "b": b"x" * 3_000_000, **{f"c/{number}": b"x" * 2_000 for number in range(999)}}
    batches = _batches(values)
    assert [next(iter(batch)) for batch in batches] == ["long", "b", "c/0"]
    assert [pair for batch in batches for pair in batch.items()] == list(values.items())


@requirement("sessions.threads")
def test_a_refusal_says_what_to_do(service: Service) -> None:
    threads(service).set("t", {"a": b"1"})
    gone = Service(service.process, "http://127.0.0.1:1", service.data_dir, service.database, {}, {})
    for of_all, size, status, text in (
        (threads(service, "wrong"), 1, 401, "does not know the key of the checkpointer"),
        (threads(service, "READER"), 1, 403, "needs the permissions read and write for the thread 't'"),
        (threads(service, "BOB"), 1, 409, "The session of the thread 't' was made with another key"),
        (threads(service), 9_000_000, 413, "keep it elsewhere and its address in the state, or raise SERVICE_MAX_BODY"),
        (threads(gone), 1, 0, "for the thread 't': No connection"),
    ):
        with pytest.raises(CheckpointError) as raised:
            of_all.set("t", {"a": b"2" * size})
        assert (raised.value.status, text in str(raised.value)) == (status, True), raised.value
    assert threads(service, "READER").read("t", ["a"]) == {"a": b"1"}


@requirement("sessions.threads")
def test_only_the_service_says_that_a_thread_is_empty(service: Service) -> None:
    page = Answer(raw=b"404 page not found", status=404)
    with serving(lambda _request, _count: page) as (proxy, _):
        for address in (f"{service.address}/v1", f"{service.address}/stentor", service.ready["dashboard"], proxy):
            elsewhere = Threads(Client(address, service.key, threading.Event()), "test/", 1)
            for ask in (lambda t: t.read("t", ["a"]), lambda t: list(t.scan("t", "")), lambda t: t.delete("t")):
                with pytest.raises(CheckpointError) as raised:
                    ask(elsewhere)
                assert raised.value.status == 404, address


@pytest.mark.slow
@pytest.mark.skipif(not FRAMEWORKS.exists(), reason="make test-all sets the frameworks up")
@requirement("sessions.langgraph")
def test_the_checkpointer_passes_the_conformance_tests_of_langgraph(service: Service, tmp_path: Path) -> None:
    script = Path(__file__).with_name("checkpointer.py")
    run_framework(tmp_path, script, service.address, service.key)


@pytest.mark.slow
@pytest.mark.skipif(not FRAMEWORKS.exists(), reason="make test-all sets the frameworks up")
@requirement("sessions.langgraph")
def test_a_conversation_survives_the_program_and_the_service(serve: Callable[..., Service], tmp_path: Path) -> None:
    with serving(answer_with_the_count, keep_alive=True) as (address, _):
        provider = {"OPENAI_API_KEY": "sk-scripted", "OPENAI_BASE_URL": f"{address}/v1"}
        service = serve(**provider)
        first = run_framework(tmp_path, EXAMPLE, service.address, service.key, "trip/1", "To Lisbon?")
        assert first.splitlines() == ["human: To Lisbon?", "ai: 1 messages"]
        service.kill()
        service = serve(service.data_dir, **service.environ)
        second = run_framework(tmp_path, EXAMPLE, service.address, service.key, "trip/1", "And back?")
        assert second.splitlines() == [*first.splitlines(), "human: And back?", "ai: 3 messages"]
        other = run_framework(tmp_path, EXAMPLE, service.address, service.key, "trip/2", "Hello")
        assert other.splitlines() == ["human: Hello", "ai: 1 messages"]


def answer_with_the_count(request: Asked, _count: int) -> Answer:
    """Say how many messages the model got."""
    body = json.loads(request.body or b"{}")
    message = {"role": "assistant", "content": f"{len(body.get('messages', []))} messages"}
    head = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": body.get("model")}
    usage = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}
    return Answer(body={**head, "choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "usage": usage})


def run_framework(folder: Path, script: Path, *arguments: str) -> str:
    """Run a program among the frameworks; return what it printed."""
    environ = {"PATH": "", "HOME": str(folder), "PYTHONPATH": str(SDK)}
    command = [str(FRAMEWORKS), str(script), *arguments]
    ended = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout
