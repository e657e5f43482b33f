"""Programs that try to break out of their cage, to outlive it or to use up the host. None does."""

from __future__ import annotations

import asyncio
import os
import platform
import uuid
from pathlib import Path
from typing import Any

import pytest

from stentor.domains.sandbox import seccomp
from tests.domains.sandbox.conftest import Caged, MakeCaged
from tests.patience import soon
from tests.requirements import requirement

pytestmark = pytest.mark.parametrize("driver", ["sqlite"], indirect=True)

CALLS = {
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
    "personality": "libc.syscall(N, 0xffffffff)",
}


def alive(marker: str) -> list[int]:
    """The processes of this host that have the marker in their command line."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if marker.encode() in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
        except OSError:
            continue
    return found


async def gone(marker: str) -> None:
    await soon(lambda: not alive(marker))


def number(name: str) -> int:
    column = seccomp.ARCHITECTURES[platform.machine()].column
    return next(int(row[column] or -1) for row in seccomp._DENIED if row[0] == name)


@requirement("sandbox.system-calls")
async def test_the_kernels_dangerous_calls_are_refused(caged: Caged) -> None:
    lines = "\n".join(f"N={number(name)}; attempt({name!r}, lambda: {code})" for name, code in CALLS.items())
    found = await caged.result(
        "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\nfound = {}\n"
        "def attempt(name, do):\n    ctypes.set_errno(0)\n    found[name] = [do(), ctypes.get_errno()]\n"
        f"{lines}\nanswer(found)"
    )
    assert found == {name: [-1, 1] for name in CALLS}


@requirement("sandbox.system-calls")
async def test_namespaces_cannot_be_made_by_clone_either(caged: Caged) -> None:
    clone = seccomp.ARCHITECTURES[platform.machine()].clone
    found = await caged.result(
        "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\n"
        f"first = [libc.syscall({clone}, 0x10000000 | 17, 0, 0, 0, 0), ctypes.get_errno()]\n"
        "second = [libc.syscall(435, 0, 0), ctypes.get_errno()]\n"
        "child = os.fork()\nif child == 0: os._exit(0)\nanswer([first, second, child > 0])"
    )
    assert found == [[-1, 1], [-1, 38], True]


@requirement("sandbox.no-network")
async def test_there_is_no_network_and_no_raw_socket(caged: Caged, unused_tcp_port_of_service: int) -> None:
    found = await caged.result(
        "found = {}\n"
        "def attempt(name, *kind, to=None):\n"
        "    try:\n        s = socket.socket(*kind); s.settimeout(2); to and s.connect(to); found[name] = 'open'\n"
        "    except OSError as e:\n        found[name] = e.errno\n"
        "attempt('raw', socket.AF_INET, socket.SOCK_RAW, 1)\n"
        "attempt('packet', 17, socket.SOCK_RAW, 3)\n"
        "attempt('netlink', 16, socket.SOCK_RAW)\n"
        "attempt('vsock', 40, socket.SOCK_STREAM)\n"
        "attempt('world', socket.AF_INET, socket.SOCK_STREAM, to=('1.1.1.1', 53))\n"
        f"attempt('service', socket.AF_INET, socket.SOCK_STREAM, to=('127.0.0.1', {unused_tcp_port_of_service}))\n"
        "answer(found)"
    )
    assert found == {"raw": 1, "packet": 97, "netlink": 97, "vsock": 97, "world": 101, "service": 111}


@pytest.fixture
async def unused_tcp_port_of_service() -> Any:
    """A port of this host at which something does answer."""
    server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
    yield server.sockets[0].getsockname()[1]
    server.close()


@requirement("sandbox.no-host-files", "governance.cage")
async def test_files_and_secrets_of_the_service_are_out_of_reach(
    caged: Caged, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SERVICE_SECRET_FOR_TEST", "canary")
    outside = [tmp_path / "stentor.db", caged.folder, "/etc/passwd", "/etc/shadow", "/root", "/home", "/var", "/run"]
    found = await caged.result(
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
    assert found[:2] == [[], False]
    assert set(found[2]) <= {"HOME", "LANG", "PATH", "PWD", "STENTOR_TOOLS", "TMPDIR", "LC_CTYPE"}
    assert found[3] <= 3
    assert found[4] == 65534


@requirement("sandbox.no-host-files")
async def test_only_the_work_folder_can_be_written(caged: Caged) -> None:
    found = await caged.result(
        "def attempt(path):\n"
        "    try: open(path, 'w').close(); return 'written'\n"
        "    except OSError as e: return e.strerror\n"
        "answer({p: attempt(p) for p in ('/x', '/usr/x', '/usr/bin/python3', '/dev/x', '/etc/x', '/stentor/x',"
        " '/stentor/stentor-tool', '/proc/sys/kernel/core_pattern', '/proc/sysrq-trigger', '/work/x', '/tmp/x')})"
    )
    assert {path for path, how in found.items() if how == "written"} == {"/work/x", "/tmp/x"}


@requirement("sandbox.no-host-files")
async def test_a_hard_link_to_a_file_outside_cannot_be_made(caged: Caged) -> None:
    found = await caged.result(
        "try: os.link('/usr/bin/env', '/work/env'); answer('linked')\nexcept OSError as e: answer(e.errno)"
    )
    assert found in (18, 1)  # another file system, or not permitted


@requirement("sandbox.limits")
async def test_a_fork_bomb_stays_within_its_number_of_processes(caged: Caged) -> None:
    marker = uuid.uuid4().hex
    await caged.python(
        f"marker = '{marker}'\nn = 0\n"
        "try:\n    while True:\n        if os.fork() == 0: time.sleep(600)\n        n += 1\n"
        "except OSError as e: answer([n, e.errno])",
        options={"processes": 20},
    )
    task = await caged.do()
    made, why = task["result"]
    assert 10 < made < 20
    assert why == 11
    await gone(marker)


@requirement("sandbox.limits")
async def test_memory_file_size_and_open_files_are_limited(caged: Caged) -> None:
    found = await caged.result(
        "import signal\nsignal.signal(signal.SIGXFSZ, signal.SIG_IGN)\nfound = []\n"
        "try: bytearray(500_000_000)\nexcept MemoryError: found.append('memory')\n"
        "try:\n    with open('big', 'wb') as f:\n        for _ in range(40): f.write(bytes(1_000_000))\n"
        "except OSError as e: found.append(e.errno)\n"
        "try:\n    keep = [open('/dev/null') for _ in range(100)]\nexcept OSError as e: found.append(e.errno)\n"
        "answer(found)",
        options={"memory_mb": 200, "file_mb": 5, "open_files": 40},
    )
    assert found == ["memory", 27, 24]


@requirement("sandbox.limits")
async def test_folders_in_memory_are_small(caged: Caged) -> None:
    found = await caged.result(
        "found = []\n"
        "for path in ('/tmp/x', '/dev/shm/x'):\n"
        "    try:\n        with open(path, 'wb') as f:\n            for _ in range(200): f.write(bytes(1_000_000))\n"
        "    except OSError as e: found.append(e.errno)\n"
        "answer(found)"
    )
    assert found == [28, 28]


@requirement("sandbox.limits")
async def test_a_program_that_computes_for_ever_is_ended_by_its_limit(caged: Caged) -> None:
    await caged.register("sh", "-c", "while :; do :; done", options={"cpu_seconds": 1})
    task = await caged.do(timeout_seconds=60)
    assert (task["status"], task["error"]["code"]) == ("failed", "COMMAND_FAILED")


@requirement("sandbox.output-limit")
@pytest.mark.parametrize("where", ["", " >&2"])
async def test_a_gigabyte_of_output_ends_the_run(caged: Caged, where: str) -> None:
    await caged.register("sh", "-c", f"head -c 1000000000 /dev/zero{where}; echo '{{\"result\": 1}}'")
    task = await caged.do()
    assert (task["status"], task["error"]["code"]) == ("failed", "OUTPUT_TOO_LARGE")


@requirement("sandbox.ends-whole")
async def test_a_program_that_ignores_sigterm_dies_with_all_it_started(caged: Caged) -> None:
    marker = uuid.uuid4().hex
    await caged.register(
        "sh",
        "-c",
        f"trap '' TERM HUP INT; (setsid sh -c 'sleep 600; : {marker}' &); sleep 600; :",
    )
    task = await caged.do(timeout_seconds=1)
    assert (task["status"], task["error"]["code"]) == ("aborted", "TIMEOUT")
    await gone(marker)


@requirement("sandbox.ends-whole")
async def test_a_program_is_asked_to_end_before_it_is_killed(caged: Caged) -> None:
    await caged.register(
        "sh",
        "-c",
        "trap 'echo ended > /work/ended; exit 0' TERM; while :; do sleep 0.05; done",
        options={"folder": "kept"},
    )
    await caged.do(timeout_seconds=1)
    assert (caged.folder / "kept" / caged.agents["ann"] / "ended").read_text() == "ended\n"


@requirement("sandbox.ends-whole")
async def test_a_process_left_behind_ends_with_the_run(caged: Caged) -> None:
    marker = uuid.uuid4().hex
    await caged.python(
        f"subprocess.Popen(['setsid', 'python3', '-c', 'import time; time.sleep(600) # {marker}'],"
        " stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)\n"
        "time.sleep(0.3)\nanswer(1)"
    )
    assert (await caged.do())["status"] == "completed"
    await gone(marker)


@requirement("sandbox.ends-whole")
async def test_a_process_that_holds_the_pipe_does_not_hold_the_task(caged: Caged) -> None:
    marker = uuid.uuid4().hex
    await caged.python(f"subprocess.Popen(['python3', '-c', 'import time; time.sleep(600) # {marker}'])\nanswer(1)")
    assert (await caged.do())["status"] == "completed"
    await gone(marker)


@requirement("sandbox.settings")
async def test_a_folder_that_the_caged_user_cannot_reach_is_told(make_caged: MakeCaged, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only a service that runs as root starts cages as another user")
    caged = await make_caged(SERVICE_CAGE_DIR=str(tmp_path / "cage"))
    assert "SERVICE_CAGE_DIR" in (caged.world.kernel.command_agents.sandbox.problem or "")


@requirement("sandbox.settings")
async def test_a_folder_whose_sockets_would_have_too_long_a_path_is_told(make_caged: MakeCaged, cage_dir: Path) -> None:
    caged = await make_caged(SERVICE_CAGE_DIR=str(cage_dir / ("x" * 90)))
    assert "too long" in (caged.world.kernel.command_agents.sandbox.problem or "")


def test_the_filter_is_well_formed_for_every_processor(driver: Any) -> None:
    for machine, kind in seccomp.ARCHITECTURES.items():
        code = seccomp.build_filter(machine)
        assert len(code) % 8 == 0
        assert len(code) // 8 < 4096
        numbers = [row[kind.column] for row in seccomp._DENIED if row[kind.column] is not None]
        assert len(numbers) == len(set(numbers))
