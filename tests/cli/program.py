"""Running the real program in a subprocess."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests import forkserver

COMMAND = [sys.executable, "-m", "stentor"]
TEXT = "Agents do tasks. Stentor routes each task to the best agent. It records why it did so."
SUMMARIZE = ("--type", "summarize", "--capability", "summarize")


@dataclass
class Done:
    """One run of the program."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one document of one line on standard output."""
        assert self.out.count("\n") == 1, (self.out, self.err)
        assert self.out.endswith("\n")
        return json.loads(self.out)


@dataclass
class Program:
    """The program with a data folder and an environment of its own."""

    data_dir: Path
    environ: dict[str, str] = field(default_factory=dict)
    folder: Path | None = None
    """The working directory; None means the one of the tests."""

    @property
    def env(self) -> dict[str, str]:
        home = str(self.data_dir.parent)
        base = {"PATH": os.environ["PATH"], "HOME": home, "COLUMNS": "200", "SERVICE_DATA_DIR": str(self.data_dir)}
        base |= {"SERVICE_EMBEDDING_MODEL": "none"}  # to prepare one takes seconds; its tests say so
        return {**base, **self.environ}

    def __call__(self, *args: str, stdin: str | bytes = b"") -> Done:
        content = stdin.encode() if isinstance(stdin, str) else stdin
        if self._interpreter:
            done = subprocess.run(
                [*COMMAND, *args], env=self.env, input=content, capture_output=True, timeout=200, cwd=self.folder
            )
        else:
            done = forkserver.run(args, self.env, content, cwd=self.folder)
        assert b"Traceback" not in done.stderr, done.stderr.decode()
        return Done(done.returncode, done.stdout.decode(), done.stderr.decode())

    def start(self, *args: str) -> forkserver.Process | subprocess.Popen[str]:
        """A run that is still going on."""
        if self._interpreter:
            pipe = subprocess.PIPE
            return subprocess.Popen([*COMMAND, *args], env=self.env, stdout=pipe, stderr=pipe, text=True)
        return forkserver.Process(args, self.env)

    @property
    def _interpreter(self) -> bool:
        """Whether something is set that the interpreter reads when it starts."""
        return any(name.startswith("PYTHON") for name in self.environ)
