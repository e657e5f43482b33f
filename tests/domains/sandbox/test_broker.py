"""The tool broker, called from real sandboxes: granted calls are executed, others are violations."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from stentor.core.db import Sql
from stentor.domains.sandbox.broker import service
from stentor.domains.sandbox.broker.model import SandboxRun
from tests.domains.endpoint import answering, serving
from tests.domains.sandbox.conftest import FILES, MakeSandbox, SandboxedService
from tests.patience import soon
from tests.requirements import requirement

LOOPBACK_NETWORK = {"allowlist": ["127.0.0.1"], "ports": list(range(1024, 1280))}
HTTP_TOOL = [{"name": "http_request", "operations": ["get", "post"]}]


def error_code(response: dict[str, Any]) -> str:
    return str(response["error"]["code"])


@requirement("sandbox.broker-files")
async def test_granted_file_tools_write_read_and_list(sandbox: SandboxedService) -> None:
    result = await sandbox.result(
        "answer([call('write_file', path='a/b/c.txt', content='héllo'), call('read_file', path='a/b/c.txt'),"
        " open('a/b/c.txt').read(), call('read_file', path='./a//b/c.txt', offset=1, limit=2),"
        " call('list_files', path='a/'), os.access('a/b/c.txt', os.W_OK), call('tools')])",
        tools=FILES,
    )
    written, read, direct, part, listed, writable, tools = result
    assert written["result"] == {"path": "a/b/c.txt", "size": 6}
    assert (read["result"]["content"], read["result"]["size"], read["result"]["more"]) == ("héllo", 6, False)
    assert (direct, writable) == ("héllo", True)
    assert (part["result"]["content"], part["result"]["more"]) == ("é", True)
    assert listed["result"]["entries"] == [{"name": "b", "kind": "folder", "size": None}]
    assert [tool["name"] for tool in tools["result"]["tools"]] == ["list_files", "read_file", "write_file"]
    assert tools["result"]["tools"][1]["parameters"]["required"] == ["path"]


@requirement("sandbox.broker-events")
async def test_each_tool_call_is_recorded_under_its_task(sandbox: SandboxedService) -> None:
    await sandbox.python("call('list_files')\ncall('read_file', path='secret')\nanswer(1)", tools=FILES[2:])
    task = await sandbox.do()
    events = await sandbox.world.events(task["task_id"])
    started = next(e for e in events if e["event_type"] == "task_started")
    calls = [e for e in events if e["event_type"] in ("tool_called", "tool_denied")]
    assert [e["event_type"] for e in calls] == ["tool_called", "tool_denied"]
    assert [e["parent_provenance_id"] for e in calls] == [started["provenance_id"]] * 2
    assert [e["metadata"]["tool"] for e in calls] == ["list_files", "read_file"]


VIOLATIONS: dict[str, tuple[str, list[dict[str, Any]]]] = {
    "unauthorized_tool": ("call('read_file', path='a')", []),
    "unauthorized_path": (
        "call('read_file', path='notes/../../../stentor.db')",
        [{"name": "read_file", "paths": ["notes/**"], "operations": ["read"]}],
    ),
    "rate_limit": (
        "[call('list_files') for _ in range(3)][-1]",
        [{"name": "list_files", "paths": ["**"], "operations": ["list"], "rate_limit": 2}],
    ),
    "missing_capability": ("call('render', format='html')", [{"name": "render", "operations": ["run"]}]),
    "unsafe_network": ("call('http_request', url='http://169.254.169.254/latest/meta-data')", HTTP_TOOL),
}


@pytest.fixture
def tools_file(tmp_path: Path) -> Path:
    path = tmp_path / "tools.toml"
    path.write_text(
        '[render]\ncommand = ["sh", "-c", "cat; echo format: $1; id -u", "sh", "{format}"]\n'
        'capability = "render"\nstdin = true\n'
        '[slow]\ncommand = ["sleep", "60"]\ntimeout_seconds = 1\n'
        '[loud]\ncommand = ["head", "-c", "9000000", "/dev/zero"]\n'
    )
    return path


@requirement("sandbox.violation-types", "governance.broker-checks-every-tool")
@pytest.mark.parametrize("kind", VIOLATIONS)
async def test_each_kind_of_violation_is_denied_and_recorded(
    make_sandbox: MakeSandbox, tools_file: Path, kind: str
) -> None:
    code, tools = VIOLATIONS[kind]
    sandbox = await make_sandbox(SERVICE_CAGE_TOOLS=str(tools_file))
    denied = await sandbox.result(f"answer({code})", tools=tools, network={"allowlist": ["example.com"], "ports": [80]})
    assert (denied["ok"], error_code(denied)) == (False, "TOOL_DENIED")
    assert kind in denied["error"]["message"]
    assert await sandbox.violations() == [kind]
    assert await sandbox.status() == "active"


@requirement("sandbox.third-violation-ends-run", "registry.third-violation-quarantines", "governance.broker-denial")
async def test_third_violation_quarantines_the_agent_and_ends_its_run(sandbox: SandboxedService) -> None:
    await sandbox.python(
        "import threading\n"
        "def work():\n"
        "    s = socket.socket(socket.AF_UNIX); s.connect(os.environ['STENTOR_TOOLS'])\n"
        "    w = s.makefile('rwb')\n"
        "    for _ in range(10):\n"
        '        w.write(b\'{"tool": "shell", "id": 1}\\n\'); w.flush(); w.readline()\n'
        "for t in [threading.Thread(target=work) for _ in range(4)]: t.start()\n"
        "time.sleep(600)"
    )
    task = await sandbox.do()
    assert (task["status"], task["error"]["code"]) == ("failed", "AGENT_QUARANTINED")
    assert await sandbox.violations() == ["unauthorized_tool"] * 3
    assert await sandbox.status() == "quarantined"
    response = await sandbox.world.admin.post(
        "/api/v1/tasks", json={"type": "echo", "input": 1, "required_capabilities": ["echo"]}
    )
    assert response.json()["error"]["code"] == "ROUTING_AGENT_UNAVAILABLE"
    denied = [e for e in await sandbox.world.events(task["task_id"]) if e["event_type"] == "violation_recorded"]
    assert len(denied) == 3


@requirement("sandbox.quarantined-refused")
async def test_quarantine_ends_all_running_tasks_of_the_agent(sandbox: SandboxedService) -> None:
    await sandbox.python("open(task['task_id'], 'w').close()\ntime.sleep(600)", tools=FILES, options={"folder": "kept"})
    agent = sandbox.agents["ann"]
    tasks = [await sandbox.world.submit() for _ in range(2)]
    for task_id in tasks:
        await soon((sandbox.folder / "kept" / agent / task_id).exists)
    authorize = f"/api/v1/registry/agents/{agent}/authorize"
    for _ in range(3):
        await sandbox.world.admin.post(authorize, json={"tool": "shell", "operation": "run"})
    for task_id in tasks:
        task = await sandbox.world.ended(task_id)
        assert (task["status"], task["error"]["code"]) == ("failed", "AGENT_QUARANTINED")
    assert len(await sandbox.violations()) == 3


@requirement("sandbox.quarantined-refused")
async def test_suspension_ends_a_running_task(sandbox: SandboxedService) -> None:
    await sandbox.python("open('begun', 'w').close()\ntime.sleep(600)", tools=FILES, options={"folder": "kept"})
    agent = sandbox.agents["ann"]
    task_id = await sandbox.world.submit()
    await soon((sandbox.folder / "kept" / agent / "begun").exists)
    response = await sandbox.world.admin.post(
        f"/api/v1/registry/agents/{agent}/suspend", json={"reason": "It is late."}
    )
    assert response.status_code == 200
    task = await sandbox.world.ended(task_id)
    assert (task["status"], task["error"]["code"]) == ("failed", "AGENT_QUARANTINED")


@requirement("sandbox.no-event-no-call")
async def test_tool_call_that_cannot_be_recorded_is_not_executed(sandbox: SandboxedService) -> None:
    await sandbox.python(
        "open('begun', 'w').close()\n"
        "while not os.path.exists('go'): time.sleep(0.02)\n"
        "found = call('write_file', path='made', content='x')\n"
        "open('partial', 'w').write(json.dumps(found)); os.rename('partial', 'found')\n"
        "while not os.path.exists('over'): time.sleep(0.02)\nanswer(1)",
        tools=FILES,
        options={"folder": "kept"},
    )
    task_id = await sandbox.world.submit()
    folder = sandbox.folder / "kept" / sandbox.agents["ann"]
    await soon((folder / "begun").exists)
    sandbox.world.runlog.broken = True
    (folder / "go").touch()
    await soon((folder / "found").exists)
    sandbox.world.runlog.broken = False
    (folder / "over").touch()
    assert json.loads((folder / "found").read_text())["ok"] is False
    assert not (folder / "made").exists()
    await sandbox.world.ended(task_id)


@requirement("sandbox.broker-files")
async def test_links_pipes_and_foreign_folders_are_refused(make_sandbox: MakeSandbox, sandbox_dir: Path) -> None:
    shared, secret = sandbox_dir / "shared", sandbox_dir / "secret.txt"
    shared.mkdir()
    secret.write_text("secret")
    (shared / "open.txt").write_text("open")
    os.link(secret, shared / "hard.txt")
    (shared / "soft.txt").symlink_to(secret)
    sandbox = await make_sandbox(SERVICE_CAGE_ROOTS=f"shared={shared},mine={shared}:rw")
    both = [{**tool, "paths": ["**", "/shared/**", "/mine/**", "/other/**"]} for tool in FILES]
    result = await sandbox.result(
        f"secret = {str(secret)!r}\n"
        "os.symlink(secret, 'soft'); os.symlink('/etc', 'folder'); os.mkfifo('pipe'); os.mkdir('dir')\n"
        "os.symlink('/work/dir', 'inner')\nopen('a','w').write('1'); os.link('a', 'b')\n"
        "paths = ['/shared/open.txt', '/shared/hard.txt', '/shared/soft.txt', 'soft', 'folder/passwd', 'pipe', 'dir',"
        " 'inner/x', 'b', '/other/x', 'none', 'none/none', '.', 'x' * 300]\n"
        "reads = [call('read_file', path=p) for p in paths]\n"
        "writes = [call('write_file', path=p, content='new') for p in"
        " ('/shared/open.txt', '/mine/new.txt', 'soft', 'pipe', 'dir', 'folder/x', 'inner/y', 'a')]\n"
        "answer([reads, writes, os.path.islink('soft'), open('b').read()])",
        tools=both,
    )
    reads, writes, still_link, other_name = result
    assert [call["result"]["content"] if call["ok"] else error_code(call) for call in reads] == [
        "open", "FORBIDDEN", "FORBIDDEN", "FORBIDDEN", "FORBIDDEN", "FORBIDDEN", "FORBIDDEN",
        "FORBIDDEN", "FORBIDDEN", "NOT_FOUND", "NOT_FOUND", "NOT_FOUND", "FORBIDDEN", "TOOL_FAILED",
    ]  # fmt: skip
    assert [call["ok"] or error_code(call) for call in writes] == [
        "FORBIDDEN", True, True, True, "CONFLICT", "FORBIDDEN", "FORBIDDEN", True,
    ]  # fmt: skip
    assert (still_link, other_name) == (False, "1")
    assert secret.read_text() == "secret"
    assert ((shared / "open.txt").read_text(), (shared / "new.txt").read_text()) == ("open", "new")
    assert await sandbox.violations() == []


@requirement("sandbox.broker-network")
async def test_allowed_host_is_called_and_redirects_are_not_followed(make_sandbox: MakeSandbox) -> None:
    async with serving(answering({"n": 1}, status=302, Location="http://169.254.169.254/")) as endpoint:
        sandbox = await make_sandbox(SERVICE_OUTBOUND_ALLOW=f"127.0.0.1:{endpoint.port}")
        result = await sandbox.result(
            f"answer(call('http_request', 'post', method='POST', url={endpoint.url!r}, body='[1]',"
            " headers={'X-A': 'b'}))",
            tools=HTTP_TOOL,
            network={"allowlist": ["127.0.0.1"], "ports": [endpoint.port]},
        )
        assert result["result"]["status"] == 302
        assert json.loads(result["result"]["body"]) == {"n": 1}
        assert result["result"]["headers"]["location"] == "http://169.254.169.254/"
        assert len(endpoint.calls) == 1


@requirement("sandbox.broker-network")
async def test_a_header_that_is_not_utf_8_is_read_all_the_same(make_sandbox: MakeSandbox) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        head = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Disposition: filename=\xfc.pdf\r\n"
        writer.write(head + b"Connection: close\r\n\r\nhi")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        sandbox = await make_sandbox(SERVICE_OUTBOUND_ALLOW=f"127.0.0.1:{port}")
        result = await sandbox.result(
            f"answer(call('http_request', url='http://127.0.0.1:{port}/'))",
            tools=HTTP_TOOL,
            network={"allowlist": ["127.0.0.1"], "ports": [port]},
        )
        assert result["result"]["headers"]["content-disposition"] == "filename=\ufffd.pdf"


@requirement("sandbox.broker-network")
async def test_allow_list_does_not_open_private_addresses(sandbox: SandboxedService) -> None:
    async with serving(answering({"inside": 1})) as endpoint:
        result = await sandbox.result(
            f"port = {endpoint.port}\n"
            "answer([call('http_request', url=f'http://{host}:{port}/') for host in ('127.0.0.1', 'localhost')]"
            " + [call('http_request', url=u) for u in ('file:///etc/passwd', 'http://u:p@localhost/', 'http://', 'x')]"
            " + [call('http_request', url=f'http://localhost:{port}', headers={'Host': 'x'})])",
            tools=HTTP_TOOL,
            network={"allowlist": ["127.0.0.1", "localhost"], "ports": [endpoint.port]},
        )
        assert [error_code(call) for call in result[:2]] == ["INVALID_REQUEST", "INVALID_REQUEST"]
        assert [error_code(call) for call in result[2:]] == ["INVALID_REQUEST"] * 5
        assert endpoint.calls == []


@requirement("sandbox.operator-commands")
async def test_operator_command_runs_in_its_own_sandbox(make_sandbox: MakeSandbox, tools_file: Path) -> None:
    sandbox = await make_sandbox(SERVICE_CAGE_TOOLS=str(tools_file))
    result = await sandbox.result(
        "values = ({'format': 'a; id $(id)', 'stdin': 'in '}, {'format': '-x'}, {}, {'format': 'a', 'more': 'b'},"
        " {'format': 1}, {'format': 'a\\0b'})\n"
        "answer([call('render', **v) for v in values] + [call('slow'), call('loud')])",
        tools=[{"name": name, "operations": ["run"]} for name in ("render", "slow", "loud")],
        capabilities=["echo", "render"],
    )
    assert result[0]["result"] == {"exit_code": 0, "stdout": "in format: a; id $(id)\n65534\n", "stderr": ""}
    assert [error_code(call) for call in result[1:6]] == ["INVALID_REQUEST"] * 5
    assert error_code(result[6]) == "TIMEOUT"
    assert error_code(result[7]) == "TOOL_FAILED"


@requirement("sandbox.broker-bounds")
async def test_malformed_calls_return_errors_without_violations(sandbox: SandboxedService) -> None:
    lines = [
        b"", b"{", b"[]", b"null", b"1", b'"x"', b"\xff\xfe", b"[" * 5000, b'{"tool": 1}', b'{"tool": "a", "x": 1}',
        b'{"tool": "read_file", "arguments": []}', b'{"tool": "read_file", "arguments": {"path": 1}}',
        b'{"tool": "read_file", "arguments": {"path": "a", "more": 1}}', b'{"tool": ""}', b'{"id": [], "tool": "a"}',
        b'{"tool": "read_file", "operation": "write", "arguments": {"path": "a"}}', b'{"tool":"a","id":1e999}',
        b'{"tool": "read_file", "arguments": {"path": "a", "offset": 9223372036854775808}}',
    ]  # fmt: skip
    result = await sandbox.result(
        f"lines = {lines!r}\ncall('tools')\nout = []\n"
        "for line in lines:\n    wire.write(line + b'\\n'); wire.flush(); out.append(json.loads(wire.readline()))\n"
        "answer([out, call('list_files')])",
        tools=FILES,
    )
    assert [error_code(call) for call in result[0]] == ["INVALID_REQUEST"] * len(lines)
    assert result[1]["ok"] is True
    assert await sandbox.violations() == []


@requirement("sandbox.broker-bounds")
async def test_a_run_that_used_up_its_calls_loses_its_connections(
    sandbox: SandboxedService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "MAX_CALLS", 20)
    monkeypatch.setattr(service, "MAX_REFUSED_CALLS", 4)
    result = await sandbox.result(
        "def link():\n    s = socket.socket(socket.AF_UNIX); s.connect(os.environ['STENTOR_TOOLS'])\n"
        "    return s.makefile('rwb')\n"
        "w, other = link(), link()\n"
        "w.write(b'\\n' * 500); w.flush()\n"
        "codes = [json.loads(line)['error']['code'] for line in w]\n"
        "last = [json.loads(line)['error']['code'] for line in link()]\n"
        "other.write(b'\\n'); other.flush()\n"
        "answer([codes, last, len(list(other))])",
    )
    assert result == [["INVALID_REQUEST"] * 20 + ["RATE_LIMITED"] * 5, ["RATE_LIMITED"], 1]


@requirement("sandbox.broker-bounds")
async def test_other_work_goes_on_while_a_program_sends_many_lines(sandbox: SandboxedService) -> None:
    loop, turns, most = asyncio.get_running_loop(), [0], [0]
    respond = service.ToolDispatcher.respond

    async def count(self: service.ToolDispatcher, run: Any, line: bytes) -> bytes:
        turns[0] += 1
        most[0] = max(most[0], turns[0])
        loop.call_soon(turns.__setitem__, 0, 0)
        return await respond(self, run, line)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(service.ToolDispatcher, "respond", count)
        await sandbox.result(
            "s = socket.socket(socket.AF_UNIX); s.connect(os.environ['STENTOR_TOOLS']); w = s.makefile('rwb')\n"
            "w.write(b'\\n' * 500); w.flush()\n"
            "answer(len([w.readline() for _ in range(500)]))",
        )
    assert most[0] < 10, f"{most[0]} lines were answered before anything else ran"


@requirement("sandbox.broker-bounds")
async def test_the_long_lines_of_a_run_are_decoded_one_at_a_time_outside_the_event_loop(
    sandbox: SandboxedService, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools = sandbox.world.kernel.command_agents.tools
    run = SandboxRun("default", "", "ann", "", "admin", "", None, lambda tx: None)
    seen, decode = list[tuple[bool, bool]](), service.jsontext.decode

    def note(line: bytes) -> Any:
        seen.append((threading.current_thread() is threading.main_thread(), run.decoding.locked()))
        return decode(line)

    monkeypatch.setattr(service.jsontext, "decode", note)
    long = json.dumps({"tool": "tools", "arguments": {"text": "x" * service.INLINE_LINE_BYTES}}).encode()
    await asyncio.gather(*(tools.respond(run, line) for line in [long, long[:-1], long, long]))
    await tools.respond(run, b"{}")
    assert seen == [*[(False, True)] * 4, (True, False)]


@requirement("sandbox.broker-bounds")
async def test_a_response_to_a_connection_that_was_closed_meanwhile_ends_the_connection_quietly() -> None:
    class ClosedTransport(asyncio.Transport):
        def is_closing(self) -> bool:
            return True

        def write(self, data: bytes | bytearray | memoryview) -> None:
            raise RuntimeError("the handler is closed")  # as uvloop does

        def close(self) -> None:
            pass

        abort = close

    reader, loop = asyncio.StreamReader(), asyncio.get_running_loop()
    writer = asyncio.StreamWriter(ClosedTransport(), asyncio.StreamReaderProtocol(reader), reader, loop)
    reader.feed_data(b"no JSON\n")
    tools = service.ToolDispatcher(cast("Any", SimpleNamespace()), {}, lambda tenant, agent_id: None)
    run = SandboxRun("default", "", "ann", "", "admin", "", None, lambda tx: None)
    await service.RunServer(tools, run).handle_connection(reader, writer)
    assert run.call_count == 1


@requirement("sandbox.broker-bounds")
async def test_oversized_line_and_excess_connections_are_refused(sandbox: SandboxedService) -> None:
    result = await sandbox.result(
        "def link():\n    s = socket.socket(socket.AF_UNIX); s.settimeout(20); s.connect(os.environ['STENTOR_TOOLS'])\n"
        "    return s, s.makefile('rwb')\n"
        "s, w = link(); out = []\n"
        "try:\n    w.write(b'x' * 3_000_000); w.flush()\nexcept OSError: pass\n"
        "out.append(json.loads(w.readline()))\n"
        "many = [link() for _ in range(40)]; time.sleep(0.5)\n"
        "refused = 0\n"
        "for s, w in many:\n"
        '    try:\n        w.write(b\'{"tool": "tools"}\\n\'); w.flush()\n'
        "        refused += not json.loads(w.readline())['ok']\n"
        "    except (OSError, ValueError): refused += 1\n"
        "answer([out[0], refused])",
    )
    assert error_code(result[0]) == "PAYLOAD_TOO_LARGE"
    assert result[1] == 40 - 16


@requirement("sandbox.broker-bounds")
async def test_concurrent_calls_work_on_own_and_shared_connections(sandbox: SandboxedService) -> None:
    result = await sandbox.result(
        "def link():\n    s = socket.socket(socket.AF_UNIX); s.connect(os.environ['STENTOR_TOOLS']); return s\n"
        "def many(s, name):\n"
        "    w = s.makefile('rwb')\n"
        "    good = 0\n"
        "    for n in range(50):\n"
        "        r = {'id': f'{name}{n}', 'tool': 'write_file', 'arguments': {'path': f'{name}{n}', 'content': 'x'}}\n"
        "        w.write(json.dumps(r).encode() + b'\\n'); w.flush(); good += json.loads(w.readline())['ok']\n"
        "    return good\n"
        "def forked(do):\n"
        "    pid = os.fork()\n"
        "    if pid == 0:\n        os._exit(do())\n"
        "    return pid\n"
        "mine = link()\n"
        "pids = [forked(lambda: many(link(), 'a')), forked(lambda: many(link(), 'b'))]\n"
        "codes = [os.waitstatus_to_exitcode(os.waitpid(p, 0)[1]) for p in pids]\n"
        'line = b\'{"tool": "tools"}\\n\'\n'
        "pids = [forked(lambda: sum(mine.send(line) for _ in range(20)) and 0) for _ in range(2)]\n"
        "[os.waitpid(p, 0) for p in pids]\n"
        "w = mine.makefile('rwb')\n"
        "answer([codes, [json.loads(w.readline())['ok'] for _ in range(40)], len(os.listdir('.'))])",
        tools=FILES,
    )
    assert result == [[50, 50], [True] * 40, 100]


@requirement("sandbox.broker-bounds")
async def test_client_that_never_reads_does_not_block_others(
    sandbox: SandboxedService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stentor.domains.sandbox.broker.service.WRITE_TIMEOUT_SECONDS", 0.5)
    result = await sandbox.result(
        "import select\n"
        "open('big', 'w').write('x' * 1_000_000)\n"
        "slow = socket.socket(socket.AF_UNIX); slow.connect(os.environ['STENTOR_TOOLS'])\n"
        "line = json.dumps({'tool': 'read_file', 'arguments': {'path': 'big'}}).encode() + b'\\n'\n"
        "for _ in range(5): slow.send(line)\n"
        "ok = call('list_files')['ok']\n"
        "ended = select.poll(); ended.register(slow, 0); ended.poll()\n"
        "total = 0\n"
        "try:\n    while chunk := slow.recv(1_000_000): total += len(chunk)\nexcept OSError: pass\n"
        "answer([ok, total < 4_000_000])",
        tools=FILES,
    )
    assert result == [True, True]


@requirement("sandbox.broker-bounds")
async def test_tool_calls_per_run_are_limited(sandbox: SandboxedService, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stentor.domains.sandbox.broker.service.MAX_CALLS", 5)
    result = await sandbox.result("answer([call('list_files')['ok'] for _ in range(8)])", tools=FILES)
    assert result == [True] * 5 + [False] * 3


@requirement("sandbox.broker-per-run")
async def test_broker_socket_is_removed_after_the_run(sandbox: SandboxedService) -> None:
    await sandbox.python("answer(1)")
    await sandbox.do()
    assert list((sandbox.folder / "runs").iterdir()) == []


@requirement("sandbox.broker-per-run")
async def test_tool_call_of_a_lost_attempt_returns_lease_lost(sandbox: SandboxedService) -> None:
    await sandbox.python(
        "open('begun', 'w').close()\n"
        "while not os.path.exists('go'): time.sleep(0.02)\n"
        "found = call('write_file', path='made', content='x')\n"
        "open('partial', 'w').write(json.dumps(found)); os.rename('partial', 'found')\nanswer(1)",
        tools=FILES,
        options={"folder": "kept"},
    )
    task_id = await sandbox.world.submit()
    folder = sandbox.folder / "kept" / sandbox.agents["ann"]
    await soon((folder / "begun").exists)
    next_epoch = Sql("update tasks set epoch = epoch + 1 where task_id = :id")
    await sandbox.world.kernel.infra.db.write(lambda tx: tx.run(next_epoch, id=task_id))
    (folder / "go").touch()
    await soon((folder / "found").exists)
    assert error_code(json.loads((folder / "found").read_text())) == "LEASE_LOST"
    assert not (folder / "made").exists()
    await sandbox.world.admin.post(f"/api/v1/tasks/{task_id}/cancel")
