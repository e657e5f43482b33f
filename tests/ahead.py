"""Commands that need nothing of other tests: a run of all tests in several processes starts them during the collection,
which leaves a core idle, and each test then takes the result of its command.

They run one after the other, in a group of processes that ends with the process of the tests.
"""

from __future__ import annotations

import atexit
import os
import pickle
import signal
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).parents[1]
LINT_IMPORTS = str(Path(sysconfig.get_path("scripts")) / "lint-imports")
CHECKS = {
    "ruff": [sys.executable, "-m", "ruff", "check", "--no-cache", "."],
    "format": [sys.executable, "-m", "ruff", "format", "--no-cache", "--check", "."],
    "pyrefly": [sys.executable, "-m", "pyrefly", "check", "--summary=none"],
    "imports": [LINT_IMPORTS, "--no-cache"],
}
DEMO = [sys.executable, "-m", "stentor", "demo"]

_started: dict[tuple[str, ...], tuple[int, int]] = {}
"""Of each command: a pipe that is closed once it has ended, and the file with its result."""


def reference(folder: Path) -> list[str]:
    """Writes the generated reference into a folder."""
    return [sys.executable, "-m", "stentor.cli.reference", str(folder)]


def run(words: Sequence[str], environ: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Return the result of a command, which is run now if it was not started before."""
    if tuple(words) in _started:
        ended, result = _started[tuple(words)]
        assert os.read(ended, 1) == b""
        # Empty where the group was killed.
        if content := os.pread(result, os.fstat(result).st_size, 0):
            done: subprocess.CompletedProcess[str] = pickle.loads(content)
            return done
    return _run(words, environ)


def start(*commands: tuple[Sequence[str], Mapping[str, str]]) -> None:
    """Start the commands, each with additions to its environment."""
    writers = list[int]()
    for words, _ in commands:
        ended, writer = os.pipe()
        writers.append(writer)
        result, path = tempfile.mkstemp()
        Path(path).unlink()
        _started[tuple(words)] = ended, result
    if group := os.fork():
        with suppress(ProcessLookupError):
            os.setpgid(group, group)
        atexit.register(_end, group)
        for writer in writers:
            os.close(writer)
        return
    _run_all(commands, writers)


def _run_all(commands: Sequence[tuple[Sequence[str], Mapping[str, str]]], writers: Sequence[int]) -> None:
    try:
        os.setpgid(0, 0)
        for (words, environ), writer in zip(commands, writers, strict=True):
            with open(_started[tuple(words)][1], "wb", closefd=False) as result:
                pickle.dump(_run(words, environ), result)
            os.close(writer)
    finally:
        os._exit(0)


def _run(words: Sequence[str], environ: Mapping[str, str] | None) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **(environ or {})}
    return subprocess.run(
        words, cwd=ROOT, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=1100
    )


def _end(group: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGTERM)
    os.waitpid(group, 0)
