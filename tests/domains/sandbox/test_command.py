"""Command agents: a task in, an answer out, from a real cage."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stentor.core import settings
from stentor.core.db import Sql
from stentor.core.errors import StartRefused
from stentor.domains.execution.runtimes.command import OutputParser
from tests.conftest import MakeWorld
from tests.domains.sandbox.conftest import FILES, Caged, MakeCaged
from tests.patience import soon
from tests.requirements import requirement

pytestmark = pytest.mark.parametrize("driver", ["sqlite"], indirect=True)


@requirement("execution.command-runtime")
async def test_a_task_is_answered_by_a_program(caged: Caged) -> None:
    task_id_agent = await caged.python("answer({'saw': task['input'], 'type': task['type']}, performance=0.5)")
    task = await caged.do(input={"a": [1, "é"]})
    assert (task["status"], task["result"]) == ("completed", {"saw": {"a": [1, "é"]}, "type": "echo"})
    assert task["assigned_agent"] == task_id_agent


@requirement("execution.command-runtime")
async def test_a_shell_script_is_an_agent_too(caged: Caged) -> None:
    await caged.register("sh", "-c", 'read -r task; echo "{\\"result\\": \\"$(id -u) in $PWD\\"}"')
    assert (await caged.do())["result"] == "65534 in /work"


@requirement("execution.command-tokens")
async def test_lines_with_a_token_reach_the_tasks_stream_and_not_its_result(caged: Caged) -> None:
    await caged.python(
        "for word in ('one ', 'two '):\n    print(json.dumps({'token': word}), flush=True)\n"
        "print(json.dumps({'result': {'token': 'no'}}, indent=2))\ntime.sleep(0.3)"
    )
    hub, task_id = caged.world.kernel.infra.hub, "00000000-0000-4000-8000-000000000001"
    seen: list[str] = []
    with hub.watch("default", task_id) as watcher:
        await caged.world.submit(id=task_id)
        while len(seen) < 2:
            message = await watcher.get()
            if hasattr(message, "text"):
                seen.append(message.text)
    assert seen == ["one ", "two "]
    assert (await caged.world.ended(task_id))["result"] == {"token": "no"}


@requirement("execution.command-errors")
@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("sys.exit(3)", "COMMAND_FAILED"),
        ("pass", "ANSWER_INVALID"),
        ("print('hello')", "ANSWER_INVALID"),
        ("print('[' * 100000)", "ANSWER_INVALID"),
        ("sys.stdout.buffer.write(b'\\xff\\x00')", "ANSWER_INVALID"),
        ("print('{\"no\": 1}')", "ANSWER_INVALID"),
        ("answer(1, performance=7)", "ANSWER_INVALID"),
        ("os.kill(os.getpid(), 9)", "COMMAND_FAILED"),
    ],
)
async def test_what_is_no_answer_fails_the_task(caged: Caged, code: str, error: str) -> None:
    await caged.python(code)
    task = await caged.do()
    assert (task["status"], task["outcome_class"], task["error"]["code"]) == ("failed", "agent_failure", error)


@requirement("execution.command-errors")
async def test_a_program_that_does_not_exist_fails_the_task(caged: Caged) -> None:
    await caged.register("/usr/bin/no-such-program")
    task = await caged.do()
    assert (task["status"], task["error"]["code"]) == ("failed", "COMMAND_FAILED")


@requirement("execution.command-log")
async def test_the_error_output_is_kept_in_the_run_log_without_secrets(caged: Caged) -> None:
    await caged.python("print('x' * 50000 + 'end', file=sys.stderr)\nanswer(1)")
    task = await caged.do()
    (logged,) = [e for e in await caged.world.events(task["task_id"]) if e["event_type"] == "agent_logged"]
    lines = logged["metadata"]["stderr"]
    assert sum(map(len, lines)) <= 16_384
    assert lines[-1].endswith("end")
    await caged.register(
        "sh",
        "-c",
        "echo 'Authorization: Bearer abcdef123456' >&2; echo '{\"result\":1}'",
        name="bob",
        capabilities=["other"],
    )
    task = await caged.do(required_capabilities=["other"])
    (logged,) = [e for e in await caged.world.events(task["task_id"]) if e["event_type"] == "agent_logged"]
    assert logged["metadata"]["stderr"] == ["Authorization: Bearer [redacted]"]


@requirement("sandbox.work-folder")
async def test_a_work_folder_is_fresh_unless_the_agent_keeps_one(caged: Caged) -> None:
    code = "n = len(os.listdir('.'))\nopen(f'file{n}', 'w').close()\nanswer(n)"
    await caged.python(code)
    await caged.python(code, name="bob", capabilities=["keep"], options={"folder": "kept"})
    assert [(await caged.do())["result"] for _ in range(3)] == [0, 0, 0]
    assert [(await caged.do(required_capabilities=["keep"]))["result"] for _ in range(3)] == [0, 1, 2]
    assert list((caged.folder / "runs").iterdir()) == []


@requirement("sandbox.work-folder")
async def test_whatever_a_run_leaves_in_its_folder_is_removed(caged: Caged) -> None:
    await caged.python(
        "os.mkdir('shut'); open('shut/x', 'w').close(); os.chmod('shut', 0)\n"
        "os.symlink('/etc', 'link'); os.mkfifo('pipe')\n"
        "for _ in range(3000):\n    os.mkdir('d'); os.chdir('d')\n"
        "answer(1)"
    )
    task = await caged.do()
    assert task["status"] == "completed", task["error"]
    assert list((caged.folder / "runs").iterdir()) == []


@requirement("sandbox.program-folder")
async def test_a_program_folder_of_the_operator_is_shown_read_only(make_caged: MakeCaged, cage_dir: Path) -> None:
    program = cage_dir / "programs" / "ann"
    program.mkdir(parents=True)
    for folder in (program, program.parent):
        folder.chmod(0o755)
    (program / "main.py").write_text(
        "import json\ntry:\n  open('/agent/x','w')\nexcept OSError as e:\n  print(json.dumps({'result': e.strerror}))\n"
    )
    caged = await make_caged(SERVICE_CAGE_ROOTS=f"programs={program.parent}")
    await caged.register("python3", "/agent/main.py", options={"program": "programs/ann"})
    assert (await caged.do())["result"] == "Read-only file system"
    for wrong in ("other", "programs/..", "programs/../..", "programs//ann", "programs/none", "/etc"):
        runtime = {"kind": "command", "command": ["true"], "options": {"program": wrong}}
        answer = await caged.world.admin.post("/api/v1/registry/agents", json={"name": "x", "runtime": runtime})
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "INVALID_REQUEST"), wrong


@requirement("execution.command-registration")
@pytest.mark.parametrize(
    "runtime",
    [
        {"kind": "command"},
        {"kind": "command", "command": []},
        {"kind": "command", "command": [""]},
        {"kind": "command", "command": ["a\0b"]},
        {"kind": "command", "command": "ls"},
        {"kind": "worker", "command": ["ls"]},
        {"kind": "command", "command": ["ls"], "options": {"memory_mb": "lots"}},
        {"kind": "command", "command": ["ls"], "options": {"processes": 0}},
        {"kind": "command", "command": ["ls"], "options": {"unknown": 1}},
    ],
    ids=str,
)
async def test_a_command_that_cannot_be_is_refused_when_registered(caged: Caged, runtime: dict[str, Any]) -> None:
    answer = await caged.world.admin.post("/api/v1/registry/agents", json={"name": "x", "runtime": runtime})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "INVALID_REQUEST")


@requirement("execution.command-registration")
async def test_a_command_agent_is_read_back_as_it_was_registered(caged: Caged) -> None:
    agent = await caged.register("sh", "-c", "x", options={"processes": 3})
    shown = (await caged.world.admin.get(f"/api/v1/registry/agents/{agent}")).json()["runtime"]
    assert (shown["kind"], shown["command"], shown["options"]) == ("command", ["sh", "-c", "x"], {"processes": 3})


@requirement("execution.command-off-by-default")
async def test_command_agents_are_refused_unless_the_operator_allows_them(make_world: MakeWorld) -> None:
    world = await make_world()
    body = {"name": "x", "runtime": {"kind": "command", "command": ["true"]}}
    answer = await world.admin.post("/api/v1/registry/agents", json=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "CAGE_UNAVAILABLE")
    assert "SERVICE_COMMAND_AGENTS" in answer.json()["error"]["message"]


@requirement("sandbox.no-cage-no-run", "execution.command-off-by-default")
async def test_switched_off_again_a_task_of_a_command_agent_fails_and_costs_it_no_trust(
    make_caged: MakeCaged, make_world: MakeWorld
) -> None:
    agent = await (await make_caged()).python("answer(1)")
    world = await make_world()
    await world.admin.put(f"/api/v1/trust/{agent}", json={"score": 0.8})
    task = await Caged(world, Path()).do()
    assert (task["status"], task["outcome_class"], task["error"]["code"]) == (
        "failed",
        "provider_failure",
        "CAGE_UNAVAILABLE",
    )
    assert (await world.admin.get(f"/api/v1/trust/{agent}")).json()["data"]["score"] == 0.8


@requirement("execution.command-tokens")
async def test_a_program_that_floods_its_stream_is_read_to_its_end(caged: Caged) -> None:
    await caged.python("for n in range(30_000): print(json.dumps({'token': f'{n} '}))\nanswer('done')")
    body = {"model": "agent:echo", "messages": [{"role": "user", "content": "hi"}], "stream": True}
    answer = await caged.world.admin.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    lines = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
    said = "".join(one["choices"][0]["delta"].get("content") or "" for one in lines if one["choices"])
    assert said == "".join(f"{n} " for n in range(30_000))


@requirement("sandbox.no-cage-no-run")
async def test_without_bubblewrap_command_agents_are_refused_at_registration_and_at_dispatch(
    make_caged: MakeCaged, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = await make_caged()
    await before.python("answer(1)")
    monkeypatch.setenv("PATH", "/nowhere")
    caged = await make_caged()
    assert caged.world.kernel.command_agents.sandbox.problem is not None
    body = {"name": "x", "runtime": {"kind": "command", "command": ["true"]}}
    answer = await caged.world.admin.post("/api/v1/registry/agents", json=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "CAGE_UNAVAILABLE")
    assert "bubblewrap" in answer.json()["error"]["message"]
    task = await caged.do()
    assert (task["status"], task["error"]["code"]) == ("failed", "CAGE_UNAVAILABLE")
    assert task["outcome_class"] == "provider_failure"
    health = (await caged.world.admin.get("/api/v1/health/detailed")).json()["components"]["cage"]
    assert health["status"] == "disabled"
    assert "refused" in health["detail"]


@requirement("sandbox.cage-off")
async def test_an_operator_may_do_without_a_cage(make_caged: MakeCaged, caplog: pytest.LogCaptureFixture) -> None:
    caged = await make_caged(SERVICE_CAGE="off")
    assert "NO SANDBOX" in caplog.text
    await caged.python("answer([os.getuid(), call('write_file', path='a', content='x')['ok']])", tools=FILES)
    task = await caged.do()
    assert task["result"][1] is True
    health = (await caged.world.admin.get("/api/v1/health/detailed")).json()["components"]["cage"]
    assert "NO SANDBOX" in health["detail"]


@requirement("execution.cancel-reaches-runtime")
async def test_cancelling_a_task_ends_its_program(caged: Caged) -> None:
    await caged.python("open('/work/begun', 'w').close()\ntime.sleep(600)", options={"folder": "kept"})
    task_id = await caged.world.submit()
    begun = caged.folder / "kept" / caged.agents["ann"] / "begun"
    await soon(begun.exists)
    answer = await caged.world.admin.post(f"/api/v1/tasks/{task_id}/cancel")
    assert answer.status_code == 200
    await soon(lambda: not caged.world.kernel.tasks.dispatcher.count_running())
    assert list((caged.folder / "runs").iterdir()) == []


async def test_events_of_a_run_stand_in_the_run_log_as_json(caged: Caged) -> None:
    await caged.python("answer(call('list_files')['result'])", tools=FILES)
    task = await caged.do()
    assert task["result"] == {"path": ".", "entries": [], "more": False}
    rows = await caged.world.kernel.infra.db.read(
        lambda tx: tx.rows(
            Sql("select metadata from events where task_id = :id and event_type = 'tool_called'"), id=task["task_id"]
        )
    )
    assert [json.loads(row[0])["tool"] for row in rows] == ["list_files"]


@requirement("sandbox.cage-off")
def test_a_service_without_a_cage_listens_on_loopback_alone(driver: Any) -> None:
    environ = {"SERVICE_COMMAND_AGENTS": "1", "SERVICE_CAGE": "off", "SERVICE_HOST": "0.0.0.0"}
    with pytest.raises(StartRefused, match="SERVICE_CAGE=off is for loopback only"):
        settings.load(environ)
    assert settings.load({**environ, "SERVICE_HOST": "127.0.0.1"}).sandbox.enabled is False


@requirement("sandbox.settings")
@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("SERVICE_CAGE_ROOTS", "shared", "name=/folder"),
        ("SERVICE_CAGE_ROOTS", "shared=relative", "name=/folder"),
        ("SERVICE_CAGE_ROOTS", "Sha/red=/x", "name=/folder"),
        ("SERVICE_CAGE_TOOLS", "/no/such/file", "cannot be read"),
        ("SERVICE_CAGE_TOOLS", "[x", "is invalid"),
        ("SERVICE_CAGE_TOOLS", "[x]\ncommand = []", "is invalid"),
        ("SERVICE_CAGE_TOOLS", '[x]\ncommand = ["a"]\nshell = true', "is invalid"),
        ("SERVICE_CAGE_TOOLS", '["a b"]\ncommand = ["a"]', "not a valid tool name"),
        ("SERVICE_CAGE_TOOLS", '[read_file]\ncommand = ["a"]', "already"),
        ("SERVICE_CAGE_TOOLS", '[tools]\ncommand = ["a"]', "already"),
    ],
)
async def test_a_setting_that_cannot_be_read_stops_the_start(
    make_caged: MakeCaged, tmp_path: Path, name: str, value: str, said: str
) -> None:
    if value.startswith("["):
        path = tmp_path / "tools.toml"
        path.write_text(value)
        value = str(path)
    with pytest.raises(StartRefused, match=said) as refused:
        await make_caged(**{name: value})
    assert name in refused.value.message


@requirement("execution.command-tokens")
@pytest.mark.parametrize("size", [1, 2, 7, 64, 10_000])
def test_output_is_taken_apart_the_same_however_it_comes(driver: Any, size: int) -> None:
    output = b'{"token": "a"}\n{"result":\n{"token": "x", "more": 1}\n,"performance": 0.5}\n{"token": "\xc3\xa9"}\n'
    tokens: list[str] = []
    answer = OutputParser(tokens.append)
    for start in range(0, len(output), size):
        answer.feed(output[start : start + size])
    found = answer.outcome()
    assert tokens == ["a", "é"]
    assert (found.result, found.performance) == ({"token": "x", "more": 1}, 0.5)
