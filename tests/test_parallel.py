"""Tests that run in several processes report as those of one do; `tests/parallel.py` says how."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CONFTEST = """
import pytest
from tests import parallel

def pytest_addoption(parser):
    parser.addoption("--processes", type=int, default=1)

def pytest_configure(config):
    config.pluginmanager.register(parallel)
    config.addinivalue_line("markers", "together(name): of one process")
"""


def begin(folder: Path, text: str, *words: str) -> subprocess.Popen[str]:
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "test_some.py").write_text(f"import os, pytest, time\n{text}")
    command = [sys.executable, "-m", "pytest", f"--rootdir={folder}", "-c", "/dev/null", "--processes=3", "-rA", *words]
    command += ["-p", "no:cacheprovider", "-p", "pytest_timeout", str(folder)]
    # Where pytest sees that a build service runs it, its summary repeats each message whole.
    environ = {
        name: value for name, value in os.environ.items() if name not in ("CI", "BUILD_NUMBER", "PYTEST_ADDOPTS")
    }
    environ |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "COLUMNS": "80"}
    return subprocess.Popen(command, cwd=ROOT, env=environ, text=True, stdout=subprocess.PIPE)


def report(folder: Path, text: str, *words: str) -> tuple[int, str]:
    with begin(folder, text, *words) as run:
        out, _ = run.communicate(timeout=200)
    return run.returncode, out


def test_each_test_runs_once_and_what_it_printed_is_told(tmp_path: Path) -> None:
    code, out = report(
        tmp_path,
        """
@pytest.mark.parametrize("number", range(20))
def test_one(number):
    print(f"number {number:03}")
    assert number % 10 != 3, "an unlucky number"

def test_skipped():
    pytest.skip("a reason")
""",
    )
    assert code == 1
    assert "2 failed, 18 passed, 1 skipped" in out
    assert all(out.count(f"number {number:03}") == 1 for number in range(20))
    assert out.count("AssertionError: an unlucky number") == 2
    assert "a reason" in out


def test_no_test_runs_twice_however_many_take_their_next_at_once(tmp_path: Path) -> None:
    code, out = report(
        tmp_path,
        """
@pytest.mark.parametrize("number", range(1000))
def test_one(number):
    pass
""",
        "--processes=8",
        "-q",
    )
    assert code == 0
    assert "1000 passed" in out


def test_those_that_belong_together_run_in_one_process_and_share_its_fixtures(tmp_path: Path) -> None:
    code, out = report(
        tmp_path,
        f"""
from pathlib import Path

@pytest.fixture(scope="module")
def place():
    yield os.getpid()
    Path({str(tmp_path)!r}, "ends").open("a").write("module ")

@pytest.fixture(scope="session")
def whole():
    yield os.getpid()
    Path({str(tmp_path)!r}, "ends").open("a").write("session ")

@pytest.mark.together("a")
@pytest.mark.parametrize("number", range(10))
def test_one(number, place, whole, tmp_path):
    assert place == whole == os.getpid()
    (tmp_path / "file").write_text("")
    Path({str(tmp_path)!r}, "pids").open("a").write(f"{{place}} ")
""",
    )
    assert code == 0, out
    assert len(set((tmp_path / "pids").read_text().split())) == 1
    assert (tmp_path / "ends").read_text() == "module session "


def test_the_processes_have_folders_of_their_own_in_one_that_they_share(tmp_path: Path) -> None:
    code, out = report(
        tmp_path,
        f"""
from pathlib import Path

@pytest.mark.parametrize("number", range(3))
def test_one(number, tmp_path_factory):
    own = tmp_path_factory.getbasetemp()
    Path({str(tmp_path)!r}, "folders").open("a").write(f"{{own.parent}} {{own}}\\n")
    while len(Path({str(tmp_path)!r}, "folders").read_text().splitlines()) < 3:
        time.sleep(0.01)
""",
    )
    assert code == 0, out
    shared, own = zip(*map(str.split, (tmp_path / "folders").read_text().splitlines()), strict=True)
    assert (len(set(shared)), len(set(own))) == (1, 3)


def test_a_process_that_dies_fails_its_test_alone(tmp_path: Path) -> None:
    code, out = report(
        tmp_path,
        """
@pytest.mark.together("a")
@pytest.mark.parametrize("number", range(10))
def test_one(number):
    if number in (4, 9):
        os.kill(os.getpid(), 9)

def test_two():
    pass
""",
    )
    assert code == 1
    assert "2 failed, 9 passed" in out
    assert out.count("the process of this test ended with -9") == 2


def test_a_process_that_dies_while_it_reports_fails_its_test_alone(tmp_path: Path) -> None:
    code, out = report(
        tmp_path,
        """
from multiprocessing.connection import Connection

def send_the_beginning(wire, data):
    os.write(wire.fileno(), data[:6])
    os.kill(os.getpid(), 9)

@pytest.mark.together("a")
@pytest.mark.parametrize("number", range(10))
def test_one(number):
    if number == 4:
        Connection._send = send_the_beginning
""",
    )
    assert code == 1
    assert "1 failed, 9 passed" in out
    assert out.count("the process of this test ended with -9") == 1


def test_an_error_at_the_end_of_the_session_is_told(tmp_path: Path) -> None:
    code, out = report(
        tmp_path,
        """
@pytest.fixture(scope="session")
def whole():
    yield
    raise RuntimeError("too late")

def test_one(whole):
    pass
""",
    )
    assert code == 1
    assert "1 passed, 1 error" in out
    assert "RuntimeError: too late" in out


def test_after_the_last_failure_that_is_allowed_no_other_test_begins(tmp_path: Path) -> None:
    code, out = report(
        tmp_path,
        """
@pytest.mark.parametrize("number", range(2000))
def test_one(number):
    assert number != 1
""",
        "--maxfail=1",
    )
    assert code == 1
    assert "stopping after 1 failures" in out
    assert "2000 passed" not in out


def test_an_interrupt_ends_all_processes(tmp_path: Path) -> None:
    text = f"""
from pathlib import Path

@pytest.fixture
def one():
    yield
    Path({str(tmp_path)!r}, f"ended-{{os.getpid()}}").write_text("")

@pytest.mark.parametrize("number", range(9))
def test_one(number, one):
    Path({str(tmp_path)!r}, f"begun-{{os.getpid()}}").write_text("")
    while not Path({str(tmp_path)!r}, "go").exists():
        time.sleep(0.01)
"""
    with begin(tmp_path, text) as run:
        deadline = time.monotonic() + 60
        while len(list(tmp_path.glob("begun-*"))) < 3 and time.monotonic() < deadline:
            time.sleep(0.01)
        run.send_signal(signal.SIGINT)
        (tmp_path / "go").write_text("")
        out, _ = run.communicate(timeout=200)
    assert run.returncode == pytest.ExitCode.INTERRUPTED, out
    assert len(list(tmp_path.glob("ended-*"))) == len(list(tmp_path.glob("begun-*"))) == 3


def test_a_stream_kept_since_the_import_is_still_open(tmp_path: Path) -> None:
    code, out = report(
        tmp_path,
        """
import subprocess, sys

def run(words, errors=sys.stderr):
    subprocess.run(words, stderr=errors, check=True)

@pytest.mark.parametrize("number", range(5))
def test_one(number):
    run(["sh", "-c", f"echo number {number} >&2"])
""",
    )
    assert code == 0, out
    assert all(out.count(f"number {number}\n") == 1 for number in range(5))


def test_a_test_that_takes_too_long_fails_with_its_stack(tmp_path: Path) -> None:
    code, out = report(
        tmp_path,
        """
@pytest.mark.timeout(1)
def test_one():
    while True:
        time.sleep(0.01)

def test_two():
    pass
""",
    )
    assert code == 1
    assert "1 failed, 1 passed" in out
    assert "Failed: Timeout (>1.0s) from pytest-timeout." in out
