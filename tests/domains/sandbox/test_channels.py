"""Programs find no channel to the host: descriptors, sockets, signals, other processes, rights, resources."""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.domains.sandbox.conftest import FILES, SandboxedService
from tests.requirements import requirement

ATTEMPT = """
import errno
found = {}
def attempt(name, do):
    try: found[name] = do()
    except OSError as e: found[name] = errno.errorcode[e.errno]
    except ValueError: found[name] = "EPERM"  # from setrlimit
"""


@requirement("sandbox.no-host-files")
async def test_a_program_inherits_three_pipes_and_sees_no_other_descriptor(sandbox: SandboxedService) -> None:
    result = await sandbox.result(
        ATTEMPT + "def kinds(pid):\n"
        "    folder = f'/proc/{pid}/fd'\n"
        "    names = [name for name in os.listdir(folder) if os.path.lexists(f'{folder}/{name}')]\n"
        "    return sorted(os.readlink(f'{folder}/{name}').partition(':')[0] for name in names)\n"
        "attempt('own', lambda: kinds('self'))\n"
        "attempt('first', lambda: kinds(1))\n"
        "for name in ('root/root', 'root/var', 'cwd/../root', 'root/proc/1/root/home'):\n"
        "    attempt(name, lambda: os.listdir(f'/proc/1/{name}'))\n"
        "answer(found)"
    )
    assert result.pop("own") == ["pipe"] * 3
    # bubblewrap's own process; its root is the one of the sandbox.
    assert set(result.pop("first")) <= {"pipe", "anon_inode"}
    assert set(result.values()) <= {"EACCES", "ENOENT", "EPERM"}


@pytest.fixture
def abstract_socket() -> Iterator[str]:
    """The name of a socket of this host that has no file."""
    name = f"stentor-test-{uuid.uuid4()}"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"\0{name}")
        listener.listen()
        yield name


@requirement("sandbox.no-network")
async def test_abstract_sockets_of_the_host_are_unreachable(sandbox: SandboxedService, abstract_socket: str) -> None:
    result = await sandbox.result(
        f"{ATTEMPT}attempt('connect', lambda: socket.socket(socket.AF_UNIX).connect('\\0{abstract_socket}'))\n"
        "answer(found)"
    )
    assert result == {"connect": "ECONNREFUSED"}


@requirement("sandbox.no-host-files")
async def test_a_program_cannot_signal_or_see_a_process_of_the_host(sandbox: SandboxedService) -> None:
    outside = [os.getpid(), os.getppid()]
    result = await sandbox.result(
        f"{ATTEMPT}mine = set(map(int, filter(str.isdigit, os.listdir('/proc'))))\n"
        f"for pid in {outside}:\n"
        "    if pid not in mine: attempt(str(pid), lambda: os.kill(pid, 9))\n"
        "attempt('parent', lambda: os.getppid() in mine | {0})\n"
        "answer(found)"
    )
    assert result.pop("parent") is True
    assert set(result.values()) <= {"ESRCH"}


@requirement("sandbox.limits")
async def test_killing_everything_in_the_sandbox_ends_only_the_run(sandbox: SandboxedService) -> None:
    await sandbox.python("os.kill(1, 9); os.kill(-1, 9); time.sleep(60)")
    assert (await sandbox.do())["status"] == "failed"
    assert await sandbox.result("answer('next')", name="ben") == "next"


@requirement("sandbox.limits", "sandbox.system-calls")
async def test_a_program_gets_no_rights_and_raises_no_limit(sandbox: SandboxedService) -> None:
    result = await sandbox.result(
        ATTEMPT + "import resource\n"
        "lines = open('/proc/self/status').read().splitlines()\n"
        "status = dict(line.split(':\\t', 1) for line in lines if ':\\t' in line)\n"
        "for name in ('CapInh', 'CapPrm', 'CapEff', 'CapBnd', 'CapAmb', 'NoNewPrivs', 'Seccomp', 'Groups'):\n"
        "    found[name] = status[name].strip()\n"
        "for name in ('NOFILE', 'NPROC', 'AS', 'FSIZE', 'CPU', 'CORE'):\n"
        "    limit = getattr(resource, 'RLIMIT_' + name)\n"
        "    attempt(name, lambda: resource.setrlimit(limit, (resource.RLIM_INFINITY,) * 2))\n"
        "def write(path, text):\n"
        "    with open(path, 'w') as file: file.write(text)\n"
        "attempt('nice', lambda: os.nice(-5))\n"
        "attempt('scheduler', lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1)))\n"
        "attempt('oom', lambda: write('/proc/self/oom_score_adj', '-500'))\n"
        "attempt('user', lambda: os.setuid(0))\n"
        "attempt('group', lambda: os.setgroups([0]))\n"
        "attempt('map', lambda: write('/proc/self/uid_map', '0 0 1'))\n"
        "attempt('device', lambda: os.mknod('/tmp/disk', 0o60666, os.makedev(8, 0)))\n"
        "attempt('sys', lambda: os.listdir('/sys'))\n"
        "attempt('memory', lambda: open('/proc/kcore', 'rb').read(1))\n"
        "answer(found)"
    )
    for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert int(result.pop(name), 16) == 0, name
    assert (result.pop("NoNewPrivs"), result.pop("Seccomp")) == ("1", "2")
    assert result.pop("Groups") == ""
    assert set(result.values()) <= {"EPERM", "EACCES", "EINVAL", "ENOENT"}, result


def count_descriptors() -> int:
    return len(list(Path("/dev/fd").iterdir()))


@requirement("sandbox.limits")
async def test_descriptors_that_a_program_sends_do_not_stay_open_in_the_service(sandbox: SandboxedService) -> None:
    before = count_descriptors()
    result = await sandbox.result(
        "import array\n"
        "link = socket.socket(socket.AF_UNIX)\n"
        "link.connect(os.environ['STENTOR_TOOLS'])\n"
        "line = json.dumps({'id': 1, 'tool': 'list_files', 'arguments': {}}).encode() + b'\\n'\n"
        "null = os.open('/dev/null', os.O_RDONLY)\n"
        "for _ in range(50):\n"
        "    link.sendmsg([line], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [null] * 50))])\n"
        "    wire = link.recv(1 << 16)\n"
        "answer(wire.decode())",
        tools=FILES,
    )
    assert "entries" in result
    assert count_descriptors() < before + 50
