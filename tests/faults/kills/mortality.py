"""A process that kills itself at its writes: before one, after it, or while it is under way."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

Kill = Callable[[], None]


class KillLog:
    """A file with a line for each kill, written before it by whoever kills."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def note(self, what: str) -> None:
        file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        os.write(file, f"{what}\n".encode())
        os.close(file)

    def read(self) -> Counter[str]:
        return Counter(self.path.read_text().splitlines() if self.path.exists() else ())


def kill_self() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Mortality:
    """Kills at a write with a certain chance.

    `longest` is in seconds how long after its beginning a kill that comes during a write is at most.
    """

    def __init__(self, name: str, log: KillLog, chance: float, longest: float, kill: Kill = kill_self) -> None:
        self._name, self._log, self._chance, self._longest, self._kill = name, log, chance, longest, kill
        self._dice = random.Random(os.urandom(8))

    @contextmanager
    def around(self, place: str) -> Iterator[None]:
        """Make a write mortal."""
        when = self._dice.choice(("before", "during", "after")) if self._dice.random() < self._chance else None
        if when == "before":
            self.die(f"{when} {place}")
        if when == "during":
            threading.Thread(target=self._die_soon, args=(f"{when} {place}",), daemon=True).start()
        yield
        if when == "after":
            self.die(f"{when} {place}")

    def die(self, where: str) -> None:
        self._log.note(f"{self._name} {where}")
        self._kill()

    def _die_soon(self, where: str) -> None:
        time.sleep(self._dice.uniform(0, self._longest))
        self.die(where)
