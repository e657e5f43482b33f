"""The demo at a terminal: it goes on with its dashboard until Ctrl-C."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from stentor.cli.demo import run
from stentor.cli.demo.run import create_client
from stentor.cli.output import CommandFailed
from tests.stub import Answer, serving


def read_until(terminal: int, text: bytes) -> str:
    """Return what the program prints, up to a text or its end."""
    output = b""
    while text not in output:
        try:
            output += os.read(terminal, 4096)
        except OSError:  # the program has ended
            break
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", output.decode(errors="replace"))


def test_demo_sends_no_key_to_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "")
    with (
        serving(lambda request, before: Answer(200)) as (address, asked),
        serving(lambda request, before: Answer(403)) as (proxy, _),
    ):
        monkeypatch.setenv("http_proxy", proxy)
        with create_client(address, "key") as client:
            assert client.get("/tasks").status_code == 200
    assert asked[0].headers["x-api-key"] == "key"


@pytest.mark.slow
def test_demo_at_a_terminal_keeps_its_dashboard_until_ctrl_c(tmp_path: Path) -> None:
    process, terminal = pty.fork()
    if process == 0:
        # Nothing else may run in the child: it is a copy of the tests.
        os.execve(
            sys.executable,
            [sys.executable, "-m", "stentor", "demo", "--rounds", "1"],
            os.environ | {"TMPDIR": str(tmp_path)},
        )
    output = read_until(terminal, b"Ctrl-C ends it")
    dashboard, key = (
        re.search(pattern, output) for pattern in (r"dashboard of this demo: (\S+)", r"Sign in with the key: +(\S+)")
    )
    assert dashboard is not None
    assert key is not None
    with httpx.Client(base_url=dashboard[1], timeout=200, follow_redirects=True) as browser:
        browser.post("/sign-in", data={"key": key[1]})
        assert "<h1>Tasks</h1>" in browser.get("/tasks").text
    os.write(terminal, b"\x03")
    assert "stopped and its data deleted" in read_until(terminal, b"deleted.")
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0
    assert list(tmp_path.glob("stentor-demo-*")) == []


def test_demo_whose_terminal_closes_deletes_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def closes(folder: Path, keys: list[str]) -> Iterator[dict[str, str]]:
        folder.mkdir()
        try:
            os.kill(os.getpid(), signal.SIGHUP)
            yield {}
        finally:
            # The shell and the kernel may both send it.
            os.kill(os.getpid(), signal.SIGHUP)

    monkeypatch.setattr(run, "_service", closes)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = {number: signal.getsignal(number) for number in run.STOP_SIGNALS}
    # As at a terminal, also if the tests run under `nohup`.
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        with pytest.raises(KeyboardInterrupt):
            run.run_demo(1, as_json=True, stays_open=False)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert list(tmp_path.iterdir()) == []


def test_demo_whose_service_cannot_start_says_so(tmp_path: Path) -> None:
    file = tmp_path / "data"
    file.touch()
    with pytest.raises(CommandFailed, match="did not start"), run._service(file, ["demo_" + "a" * 32] * 2):
        pass


@pytest.mark.slow
def test_demo_that_is_terminated_leaves_neither_a_service_nor_a_folder(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "stentor", "demo", "--json", "--rounds", "100"]
    environ = os.environ | {"TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        address = next(found[0] for line in process.stderr if (found := re.search(r"http://[\d.:]+", line)))
        assert httpx.get(f"{address}/health").is_success
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=200)
    assert process.returncode == 130
    assert list(tmp_path.glob("stentor-demo-*")) == []
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{address}/health")
