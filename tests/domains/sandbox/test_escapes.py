"""Programs cannot escape their sandbox, outlive it or exhaust the host."""

from __future__ import annotations

import asyncio
import os
import platform
import uuid
from pathlib import Path
from typing import Any

import pytest

from stentor.domains.sandbox import seccomp
from tests.domains.sandbox.conftest import MakeSandbox, SandboxedService
from tests.patience import soon
from tests.requirements import requirement

DENIED_CALLS = {
    "ptrace": "libc.syscall(N, 0, 0, 0, 0)",
    "unshare": "libc.unshare(0x10000000)",
    "setns": "libc.syscall(N, 3, 0)",
    "mount": "libc.mount(b'x', b'/tmp', b'tmpfs', 0, None)",
    "chroot": "libc.chroot(b'/tmp')",
    "pivot_root": "libc.syscall(N, b'/tmp', b'/tmp')",
    "keyctl": "libc.syscall(N, 0, -3, 0)",
    "bpf": "libc.syscall(N, 0, 0, 0)",
    "perf_event_open": "libc.syscall(N, 0, 0, -1, -1, 0)",
    "userfaultfd": "libc.syscall(N, 0)",
    "io_uring_setup": "libc.syscall(N, 1, 0)",
    "process_vm_readv": "libc.syscall(N, 1, 0, 0, 0, 0, 0)",
    "open_by_handle_at": "libc.syscall(N, -1, 0, 0)",
    "fsopen": "libc.syscall(N, b'tmpfs', 0)",
    "move_mount": "libc.syscall(N, -1, b'', -1, b'', 0)",
    "reboot": "libc.syscall(N, 0, 0, 0, 0)",
    "syslog": "libc.syscall(N, 3, 0, 0)",
    "kexec_load": "libc.syscall(N, 0, 0, 0, 0)",
    "sethostname": "libc.syscall(N, b'x', 1)",
    "shmget": "libc.syscall(N, 0, 4096, 0o1600)",
    "semget": "libc.syscall(N, 0, 1, 0o1600)",
    "msgget": "libc.syscall(N, 0, 0o1600)",
    "memfd_create": "libc.syscall(N, b'x', 0)",
    "memfd_secret": "libc.syscall(N, 0)",
    "personality": "libc.syscall(N, 0xffffffff)",
}


def processes_with(marker: str) -> list[int]:
    """Return the ids of this host's processes whose command line contains the marker."""
    pids = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if marker.encode() in (folder / "cmdline").read_bytes():
                pids.append(int(folder.name))
        except OSError:
            continue
    return pids


async def wait_until_gone(marker: str) -> None:
    await soon(lambda: not processes_with(marker))


def syscall_number(name: str) -> int:
    column = seccomp.ARCHITECTURES[platform.machine()].column
    return next(int(row[column] or -1) for row in seccomp._DENIED if row[0] == name)


@requirement("sandbox.system-calls")
async def test_dangerous_system_calls_are_denied(sandbox: SandboxedService) -> None:
    lines = "\n".join(
        f"N={syscall_number(name)}; attempt({name!r}, lambda: {code})" for name, code in DENIED_CALLS.items()
    )
    result = await sandbox.result(
        "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\nfound = {}\n"
        "def attempt(name, do):\n    ctypes.set_errno(0)\n    found[name] = [do(), ctypes.get_errno()]\n"
        f"{lines}\nanswer(found)"
    )
    assert result == {name: [-1, 1] for name in DENIED_CALLS}


@requirement("sandbox.system-calls")
async def test_clone_cannot_create_namespaces(sandbox: SandboxedService) -> None:
    clone = seccomp.ARCHITECTURES[platform.machine()].clone
    result = await sandbox.result(
        "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\n"
        f"first = [libc.syscall({clone}, 0x10000000 | 17, 0, 0, 0, 0), ctypes.get_errno()]\n"
        "second = [libc.syscall(435, 0, 0), ctypes.get_errno()]\n"
        "child = os.fork()\nif child == 0: os._exit(0)\nanswer([first, second, child > 0])"
    )
    assert result == [[-1, 1], [-1, 38], True]


@requirement("sandbox.no-network")
async def test_sandbox_has_no_network_and_no_raw_sockets(sandbox: SandboxedService, host_service_port: int) -> None:
    result = await sandbox.result(
        "found = {}\n"
        "def attempt(name, *kind, to=None):\n"
        "    try:\n        s = socket.socket(*kind); s.settimeout(2); to and s.connect(to); found[name] = 'open'\n"
        "    except OSError as e:\n        found[name] = e.errno\n"
        "attempt('raw', socket.AF_INET, socket.SOCK_RAW, 1)\n"
        "attempt('packet', 17, socket.SOCK_RAW, 3)\n"
        "attempt('netlink', 16, socket.SOCK_RAW)\n"
        "attempt('vsock', 40, socket.SOCK_STREAM)\n"
        "attempt('world', socket.AF_INET, socket.SOCK_STREAM, to=('1.1.1.1', 53))\n"
        f"attempt('service', socket.AF_INET, socket.SOCK_STREAM, to=('127.0.0.1', {host_service_port}))\n"
        "answer(found)"
    )
    assert result == {"raw": 1, "packet": 97, "netlink": 97, "vsock": 97, "world": 101, "service": 111}


@pytest.fixture
async def host_service_port() -> Any:
    """A port of this host on which a server listens."""
    server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
    yield server.sockets[0].getsockname()[1]
    server.close()


@requirement("sandbox.no-host-files", "governance.cage")
async def test_service_files_and_secrets_are_unreachable(
    sandbox: SandboxedService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SERVICE_SECRET_FOR_TEST", "canary")
    outside = [tmp_path / "stentor.db", sandbox.folder, "/etc/passwd", "/etc/shadow", "/root", "/home", "/var", "/run"]
    result = await sandbox.result(
        f"found = [p for p in {[str(path) for path in outside]} if os.path.exists(p)]\n"
        "texts = []\n"
        "for folder, _, names in os.walk('/proc'):\n"
        "    for name in names:\n"
        "        if name in ('environ', 'cmdline', 'mountinfo'):\n"
        "            try: texts.append(open(os.path.join(folder, name)).read())\n"
        "            except OSError: pass\n"
        "processes = [p for p in os.listdir('/proc') if p.isdigit()]\n"
        "answer([found, 'can' + 'ary' in ''.join(texts), sorted(os.environ), len(processes), os.getuid()])"
    )
    assert result[:2] == [[], False]
    assert set(result[2]) <= {"HOME", "LANG", "PATH", "PWD", "STENTOR_TOOLS", "TMPDIR", "LC_CTYPE"}
    assert result[3] <= 3
    assert result[4] == 65534


@requirement("sandbox.no-host-files")
async def test_only_work_and_tmp_folders_are_writable(sandbox: SandboxedService) -> None:
    result = await sandbox.result(
        "def attempt(path):\n"
        "    try: open(path, 'w').close(); return 'written'\n"
        "    except OSError as e: return e.strerror\n"
        "answer({p: attempt(p) for p in ('/x', '/usr/x', '/usr/bin/python3', '/dev/x', '/etc/x', '/stentor/x',"
        " '/stentor/stentor-tool', '/proc/sys/kernel/core_pattern', '/proc/sysrq-trigger', '/work/x', '/tmp/x')})"
    )
    assert {path for path, outcome in result.items() if outcome == "written"} == {"/work/x", "/tmp/x"}


@requirement("sandbox.no-host-files")
async def test_hard_link_to_a_host_file_is_refused(sandbox: SandboxedService) -> None:
    result = await sandbox.result(
        "try: os.link('/usr/bin/env', '/work/env'); answer('linked')\nexcept OSError as e: answer(e.errno)"
    )
    assert result in (18, 1)  # EXDEV or EPERM.


@requirement("sandbox.limits")
async def test_fork_bomb_stays_within_the_process_limit(sandbox: SandboxedService) -> None:
    marker = uuid.uuid4().hex
    await sandbox.python(
        f"marker = '{marker}'\nn = 0\n"
        "try:\n    while True:\n        if os.fork() == 0: time.sleep(600)\n        n += 1\n"
        "except OSError as e: answer([n, e.errno])",
        options={"processes": 20},
    )
    task = await sandbox.do()
    children, errno = task["result"]
    assert 10 < children < 20
    assert errno == 11
    await wait_until_gone(marker)


@requirement("sandbox.limits")
async def test_memory_file_size_and_open_files_are_limited(sandbox: SandboxedService) -> None:
    result = await sandbox.result(
        "import signal\nsignal.signal(signal.SIGXFSZ, signal.SIG_IGN)\nfound = []\n"
        "try: bytearray(500_000_000)\nexcept MemoryError: found.append('memory')\n"
        "try:\n    with open('big', 'wb') as f:\n        for _ in range(40): f.write(bytes(1_000_000))\n"
        "except OSError as e: found.append(e.errno)\n"
        "try:\n    keep = [open('/dev/null') for _ in range(100)]\nexcept OSError as e: found.append(e.errno)\n"
        "answer(found)",
        options={"memory_mb": 200, "file_mb": 5, "open_files": 40},
    )
    assert result == ["memory", 27, 24]


@requirement("sandbox.limits")
async def test_memory_backed_folders_are_limited(sandbox: SandboxedService) -> None:
    result = await sandbox.result(
        "found = []\n"
        "for path in ('/tmp/x', '/dev/shm/x'):\n"
        "    try:\n        with open(path, 'wb') as f:\n            for _ in range(200): f.write(bytes(1_000_000))\n"
        "    except OSError as e: found.append(e.errno)\n"
        "answer(found)"
    )
    assert result == [28, 28]


@requirement("sandbox.limits")
async def test_endless_computation_is_ended_by_the_cpu_limit(sandbox: SandboxedService) -> None:
    await sandbox.register("sh", "-c", "while :; do :; done", options={"cpu_seconds": 1})
    task = await sandbox.do(timeout_seconds=60)
    assert (task["status"], task["error"]["code"]) == ("failed", "COMMAND_FAILED")


@requirement("sandbox.output-limit")
@pytest.mark.parametrize("redirection", ["", " >&2"])
async def test_gigabyte_of_output_ends_the_run(sandbox: SandboxedService, redirection: str) -> None:
    await sandbox.register("sh", "-c", f"head -c 1000000000 /dev/zero{redirection}; echo '{{\"result\": 1}}'")
    task = await sandbox.do()
    assert (task["status"], task["error"]["code"]) == ("failed", "OUTPUT_TOO_LARGE")


@requirement("sandbox.ends-whole")
async def test_program_that_ignores_sigterm_is_killed_with_its_children(sandbox: SandboxedService) -> None:
    marker = uuid.uuid4().hex
    await sandbox.register(
        "sh",
        "-c",
        f"trap '' TERM HUP INT; (setsid sh -c 'sleep 600; : {marker}' &); sleep 600; :",
    )
    task = await sandbox.do(timeout_seconds=1)
    assert (task["status"], task["error"]["code"]) == ("aborted", "TIMEOUT")
    await wait_until_gone(marker)


@requirement("sandbox.ends-whole")
async def test_program_receives_sigterm_before_sigkill(
    sandbox: SandboxedService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stentor.domains.sandbox.process.GRACE_SECONDS", 60.0)
    await sandbox.register(
        "sh",
        "-c",
        "trap 'echo ended > /work/ended; exit 0' TERM; echo > /work/begun; while :; do sleep 0.05; done",
        options={"folder": "kept"},
    )
    work = sandbox.folder / "kept" / sandbox.agents["ann"]
    task_id = await sandbox.world.submit()
    await soon((work / "begun").exists)
    assert (await sandbox.world.admin.post(f"/api/v1/tasks/{task_id}/cancel")).status_code == 200
    await soon(lambda: (work / "ended").exists() and (work / "ended").read_text() == "ended\n")


@requirement("sandbox.ends-whole")
async def test_orphaned_process_ends_with_the_run(sandbox: SandboxedService) -> None:
    marker = uuid.uuid4().hex
    await sandbox.python(
        f"subprocess.Popen(['setsid', 'python3', '-c', 'import time; time.sleep(600) # {marker}'],"
        " stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)\n"
        "time.sleep(0.3)\nanswer(1)"
    )
    assert (await sandbox.do())["status"] == "completed"
    await wait_until_gone(marker)


@requirement("sandbox.ends-whole")
async def test_process_that_holds_the_pipe_does_not_delay_the_task(sandbox: SandboxedService) -> None:
    marker = uuid.uuid4().hex
    await sandbox.python(f"subprocess.Popen(['python3', '-c', 'import time; time.sleep(600) # {marker}'])\nanswer(1)")
    assert (await sandbox.do())["status"] == "completed"
    await wait_until_gone(marker)


@requirement("sandbox.settings")
async def test_unreachable_sandbox_folder_is_reported(make_sandbox: MakeSandbox, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only a service that runs as root starts cages as another user")
    sandbox = await make_sandbox(SERVICE_CAGE_DIR=str(tmp_path / "cage"))
    assert "SERVICE_CAGE_DIR" in (sandbox.world.kernel.command_agents.sandbox.problem or "")


@requirement("sandbox.settings")
async def test_sandbox_folder_with_too_long_socket_paths_is_reported(
    make_sandbox: MakeSandbox, sandbox_dir: Path
) -> None:
    sandbox = await make_sandbox(SERVICE_CAGE_DIR=str(sandbox_dir / ("x" * 90)))
    assert "too long" in (sandbox.world.kernel.command_agents.sandbox.problem or "")


def test_system_call_filter_is_well_formed_for_every_architecture(driver: Any) -> None:
    for machine, architecture in seccomp.ARCHITECTURES.items():
        code = seccomp.build_filter(machine)
        assert len(code) % 8 == 0
        assert len(code) // 8 < 4096
        numbers = [row[architecture.column] for row in seccomp._DENIED if row[architecture.column] is not None]
        assert len(numbers) == len(set(numbers))
