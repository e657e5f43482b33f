"""Command agents: input, output, errors, work folders and settings, in real sandboxes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stentor.core import settings
from stentor.core.db import Sql
from stentor.core.errors import StartRefused
from stentor.domains.execution import runtimes
from stentor.domains.execution.runtimes.command import OutputParser
from tests.conftest import MakeWorld
from tests.domains.sandbox.conftest import FILES, MakeSandbox, SandboxedService
from tests.patience import soon
from tests.requirements import requirement


@requirement("execution.command-runtime")
async def test_program_completes_a_task(sandbox: SandboxedService) -> None:
    agent_id = await sandbox.python("answer({'saw': task['input'], 'type': task['type']}, performance=0.5)")
    task = await sandbox.do(input={"a": [1, "é"]})
    assert (task["status"], task["result"]) == ("completed", {"saw": {"a": [1, "é"]}, "type": "echo"})
    assert task["assigned_agent"] == agent_id


@requirement("execution.command-runtime")
async def test_shell_script_completes_a_task(sandbox: SandboxedService) -> None:
    await sandbox.register("sh", "-c", 'read -r task; echo "{\\"result\\": \\"$(id -u) in $PWD\\"}"')
    assert (await sandbox.do())["result"] == "65534 in /work"


@requirement("execution.command-tokens")
async def test_token_lines_are_streamed_and_not_part_of_the_result(sandbox: SandboxedService) -> None:
    await sandbox.python(
        "for word in ('one ', 'two '):\n    print(json.dumps({'token': word}), flush=True)\n"
        "print(json.dumps({'result': {'token': 'no'}}, indent=2))\ntime.sleep(0.3)"
    )
    hub, task_id = sandbox.world.kernel.infra.hub, "00000000-0000-4000-8000-000000000001"
    tokens: list[str] = []
    with hub.watch("default", task_id) as watcher:
        await sandbox.world.submit(id=task_id)
        while len(tokens) < 2:
            message = await watcher.get()
            if hasattr(message, "text"):
                tokens.append(message.text)
    assert tokens == ["one ", "two "]
    assert (await sandbox.world.ended(task_id))["result"] == {"token": "no"}


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
async def test_invalid_output_or_exit_fails_the_task(sandbox: SandboxedService, code: str, error: str) -> None:
    await sandbox.python(code)
    task = await sandbox.do()
    assert (task["status"], task["outcome_class"], task["error"]["code"]) == ("failed", "agent_failure", error)


@requirement("execution.command-errors")
async def test_missing_program_fails_the_task(sandbox: SandboxedService) -> None:
    await sandbox.register("/usr/bin/no-such-program")
    task = await sandbox.do()
    assert (task["status"], task["error"]["code"]) == ("failed", "COMMAND_FAILED")


@requirement("execution.command-log")
async def test_stderr_is_recorded_truncated_and_redacted(sandbox: SandboxedService) -> None:
    await sandbox.python("print('x' * 50000 + 'end', file=sys.stderr)\nanswer(1)")
    task = await sandbox.do()
    (logged,) = [e for e in await sandbox.world.events(task["task_id"]) if e["event_type"] == "agent_logged"]
    lines = logged["metadata"]["stderr"]
    assert sum(map(len, lines)) <= 16_384
    assert lines[-1].endswith("end")
    await sandbox.register(
        "sh",
        "-c",
        "echo 'Authorization: Bearer abcdef123456' >&2; echo '{\"result\":1}'",
        name="bob",
        capabilities=["other"],
    )
    task = await sandbox.do(required_capabilities=["other"])
    (logged,) = [e for e in await sandbox.world.events(task["task_id"]) if e["event_type"] == "agent_logged"]
    assert logged["metadata"]["stderr"] == ["Authorization: Bearer [redacted]"]


@requirement("sandbox.work-folder")
async def test_work_folder_is_empty_unless_the_agent_keeps_one(sandbox: SandboxedService) -> None:
    code = "n = len(os.listdir('.'))\nopen(f'file{n}', 'w').close()\nanswer(n)"
    await sandbox.python(code)
    await sandbox.python(code, name="bob", capabilities=["keep"], options={"folder": "kept"})
    assert [(await sandbox.do())["result"] for _ in range(3)] == [0, 0, 0]
    assert [(await sandbox.do(required_capabilities=["keep"]))["result"] for _ in range(3)] == [0, 1, 2]
    assert list((sandbox.folder / "runs").iterdir()) == []


@requirement("sandbox.work-folder")
async def test_work_folder_is_removed_whatever_it_contains(sandbox: SandboxedService) -> None:
    await sandbox.python(
        "os.mkdir('shut'); open('shut/x', 'w').close(); os.chmod('shut', 0)\n"
        "os.symlink('/etc', 'link'); os.mkfifo('pipe')\n"
        "for _ in range(3000):\n    os.mkdir('d'); os.chdir('d')\n"
        "answer(1)"
    )
    task = await sandbox.do()
    assert task["status"] == "completed", task["error"]
    assert list((sandbox.folder / "runs").iterdir()) == []


@requirement("sandbox.program-folder")
async def test_program_folder_is_mounted_read_only(make_sandbox: MakeSandbox, sandbox_dir: Path) -> None:
    program = sandbox_dir / "programs" / "ann"
    program.mkdir(parents=True)
    for folder in (program, program.parent):
        folder.chmod(0o755)
    (program / "main.py").write_text(
        "import json\ntry:\n  open('/agent/x','w')\nexcept OSError as e:\n  print(json.dumps({'result': e.strerror}))\n"
    )
    sandbox = await make_sandbox(SERVICE_CAGE_ROOTS=f"programs={program.parent}")
    await sandbox.register("python3", "/agent/main.py", options={"program": "programs/ann"})
    assert (await sandbox.do())["result"] == "Read-only file system"
    for invalid in ("other", "programs/..", "programs/../..", "programs//ann", "programs/none", "/etc"):
        runtime = {"kind": "command", "command": ["true"], "options": {"program": invalid}}
        response = await sandbox.world.admin.post("/api/v1/registry/agents", json={"name": "x", "runtime": runtime})
        assert (response.status_code, response.json()["error"]["code"]) == (400, "INVALID_REQUEST"), invalid


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
async def test_invalid_command_is_rejected_at_registration(sandbox: SandboxedService, runtime: dict[str, Any]) -> None:
    response = await sandbox.world.admin.post("/api/v1/registry/agents", json={"name": "x", "runtime": runtime})
    assert (response.status_code, response.json()["error"]["code"]) == (400, "INVALID_REQUEST")


@requirement("execution.command-registration")
async def test_command_agent_reads_back_as_registered(sandbox: SandboxedService) -> None:
    agent = await sandbox.register("sh", "-c", "x", options={"processes": 3})
    runtime = (await sandbox.world.admin.get(f"/api/v1/registry/agents/{agent}")).json()["runtime"]
    assert (runtime["kind"], runtime["command"], runtime["options"]) == ("command", ["sh", "-c", "x"], {"processes": 3})


@requirement("execution.command-off-by-default")
async def test_command_agents_are_refused_by_default(make_world: MakeWorld) -> None:
    world = await make_world()
    body = {"name": "x", "runtime": {"kind": "command", "command": ["true"]}}
    response = await world.admin.post("/api/v1/registry/agents", json=body)
    assert (response.status_code, response.json()["error"]["code"]) == (409, "CAGE_UNAVAILABLE")
    assert "SERVICE_COMMAND_AGENTS" in response.json()["error"]["message"]


@requirement("sandbox.no-cage-no-run", "execution.command-off-by-default")
async def test_task_fails_without_trust_loss_when_command_agents_are_disabled(
    make_sandbox: MakeSandbox, make_world: MakeWorld
) -> None:
    agent = await (await make_sandbox()).python("answer(1)")
    world = await make_world()
    await world.admin.put(f"/api/v1/trust/{agent}", json={"score": 0.8})
    task = await SandboxedService(world, Path()).do()
    assert (task["status"], task["outcome_class"], task["error"]["code"]) == (
        "failed",
        "provider_failure",
        "CAGE_UNAVAILABLE",
    )
    assert (await world.admin.get(f"/api/v1/trust/{agent}")).json()["data"]["score"] == 0.8


@requirement("execution.command-tokens")
async def test_flood_of_tokens_is_streamed_completely(sandbox: SandboxedService) -> None:
    await sandbox.python("for n in range(30_000): print(json.dumps({'token': f'{n} '}))\nanswer('done')")
    body = {"model": "agent:echo", "messages": [{"role": "user", "content": "hi"}], "stream": True}
    response = await sandbox.world.admin.post("/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text
    chunks = [json.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: {")]
    content = "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks if chunk["choices"])
    assert content == "".join(f"{n} " for n in range(30_000))


@requirement("sandbox.no-cage-no-run")
async def test_command_agents_are_refused_without_bubblewrap(
    make_sandbox: MakeSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = await make_sandbox()
    await before.python("answer(1)")
    monkeypatch.setenv("PATH", "/nowhere")
    sandbox = await make_sandbox()
    assert sandbox.world.kernel.command_agents.sandbox.problem is not None
    body = {"name": "x", "runtime": {"kind": "command", "command": ["true"]}}
    response = await sandbox.world.admin.post("/api/v1/registry/agents", json=body)
    assert (response.status_code, response.json()["error"]["code"]) == (409, "CAGE_UNAVAILABLE")
    assert "bubblewrap" in response.json()["error"]["message"]
    task = await sandbox.do()
    assert (task["status"], task["error"]["code"]) == ("failed", "CAGE_UNAVAILABLE")
    assert task["outcome_class"] == "provider_failure"
    health = (await sandbox.world.admin.get("/api/v1/health/detailed")).json()["components"]["cage"]
    assert health["status"] == "disabled"
    assert "refused" in health["detail"]


@requirement("sandbox.cage-off")
async def test_sandbox_can_be_disabled_with_a_warning(
    make_sandbox: MakeSandbox, caplog: pytest.LogCaptureFixture
) -> None:
    sandbox = await make_sandbox(SERVICE_CAGE="off")
    assert "NO SANDBOX" in caplog.text
    await sandbox.python("answer([os.getuid(), call('write_file', path='a', content='x')['ok']])", tools=FILES)
    task = await sandbox.do()
    assert task["result"][1] is True
    health = (await sandbox.world.admin.get("/api/v1/health/detailed")).json()["components"]["cage"]
    assert "NO SANDBOX" in health["detail"]


@requirement("execution.cancel-reaches-runtime")
async def test_cancelling_a_task_ends_its_program(sandbox: SandboxedService) -> None:
    await sandbox.python("open('/work/begun', 'w').close()\ntime.sleep(600)", options={"folder": "kept"})
    task_id = await sandbox.world.submit()
    begun = sandbox.folder / "kept" / sandbox.agents["ann"] / "begun"
    await soon(begun.exists)
    response = await sandbox.world.admin.post(f"/api/v1/tasks/{task_id}/cancel")
    assert response.status_code == 200
    await soon(lambda: not sandbox.world.kernel.tasks.dispatcher.count_running())
    assert list((sandbox.folder / "runs").iterdir()) == []


async def test_tool_call_metadata_is_stored_as_json(sandbox: SandboxedService) -> None:
    await sandbox.python("answer(call('list_files')['result'])", tools=FILES)
    task = await sandbox.do()
    assert task["result"] == {"path": ".", "entries": [], "more": False}
    rows = await sandbox.world.kernel.infra.db.read(
        lambda tx: tx.rows(
            Sql("select metadata from events where task_id = :id and event_type = 'tool_called'"), id=task["task_id"]
        )
    )
    assert [json.loads(row[0])["tool"] for row in rows] == ["list_files"]


@requirement("sandbox.cage-off")
def test_service_without_a_sandbox_must_listen_on_loopback(driver: Any) -> None:
    environ = {"SERVICE_COMMAND_AGENTS": "1", "SERVICE_CAGE": "off", "SERVICE_HOST": "0.0.0.0"}
    with pytest.raises(StartRefused, match="SERVICE_CAGE=off is for loopback only"):
        settings.load(environ)
    assert settings.load({**environ, "SERVICE_HOST": "127.0.0.1"}).sandbox.enabled is False


@requirement("sandbox.settings")
@pytest.mark.parametrize(
    ("name", "value", "message"),
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
async def test_invalid_setting_stops_the_start(
    make_sandbox: MakeSandbox, tmp_path: Path, name: str, value: str, message: str
) -> None:
    if value.startswith("["):
        path = tmp_path / "tools.toml"
        path.write_text(value)
        value = str(path)
    with pytest.raises(StartRefused, match=message) as refused:
        await make_sandbox(**{name: value})
    assert name in refused.value.message


@requirement("execution.command-tokens")
@pytest.mark.parametrize("size", [1, 2, 7, 64, 10_000])
def test_output_parser_is_independent_of_chunk_size(driver: Any, size: int) -> None:
    output = b'{"token": "a"}\n{"result":\n{"token": "x", "more": 1}\n,"performance": 0.5}\n{"token": "\xc3\xa9"}\n'
    tokens: list[str] = []
    parser = OutputParser(tokens.append)
    for start in range(0, len(output), size):
        parser.feed(output[start : start + size])
    outcome = parser.outcome()
    assert tokens == ["a", "é"]
    assert (outcome.result, outcome.performance) == ({"token": "x", "more": 1}, 0.5)


@requirement("execution.cost-of-failure")
@pytest.mark.parametrize(
    ("output", "cost"),
    [
        (b'{"cost": 0.25}', 0.25),
        (b'{"token": "a"}\n{"result": 1, "cost": 0.25}', 0.25),
        (b'{"cost": "much"}', None),
        (b"Traceback: cost", None),
        (b"", None),
    ],
)
def test_the_output_of_a_program_that_failed_may_say_what_it_cost(
    driver: Any, output: bytes, cost: float | None
) -> None:
    parser = OutputParser(lambda token: None)
    parser.feed(output)
    assert parser.cost() == cost


@requirement("execution.command-tokens")
def test_of_a_million_lines_only_those_that_may_be_tokens_are_parsed(
    driver: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed: list[bytes] = []
    monkeypatch.setattr(runtimes, "parse_token_line", parsed.append)
    OutputParser(print).feed(b"y\n" * 500_000 + b'{"token": "a"}\n' + b"y\n" * 500_000)
    assert parsed == [b'{"token": "a"}\n']
