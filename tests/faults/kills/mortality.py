"""Kills at writes: before one, after it, while it is under way, or some time later."""

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
from typing import Literal

When = Literal["before", "during", "after", "some time after"]
_SECONDS: dict[When, float] = {"before": 0, "during": 0.005, "after": 0, "some time after": 0.1}
"""How long after the beginning of a write a kill comes at most."""


STOP_SHARE = 0.15
"""How often a process is only stopped for a while, so that what it does next may come after the end of its lease."""


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


class Mortality:
    """A process that kills itself at a write with a certain chance."""

    def __init__(self, name: str, log: KillLog, chance: float) -> None:
        self._name, self._log, self._chance = name, log, chance

    @contextmanager
    def around(self, place: str) -> Iterator[None]:
        """Make a write mortal."""
        with death(self._choose(), lambda when: self._die(f"{when} {place}")):
            yield

    def _choose(self) -> When | None:
        return choose() if self._chance and _dice.random() < self._chance else None

    def _die(self, where: str) -> None:
        is_stop = _dice.random() < STOP_SHARE
        self._log.note(f"{self._name} {'stopped ' if is_stop else ''}{where}")
        os.kill(os.getpid(), signal.SIGSTOP if is_stop else signal.SIGKILL)


def choose() -> When:
    """Choose when to kill."""
    return _dice.choice(list(_SECONDS))


@contextmanager
def death(when: When | None, kill: Callable[[When], None]) -> Iterator[None]:
    """Kill before, during or after a write, or some time after its beginning; not without `when`."""
    if when == "before":
        kill(when)
    elif when in ("during", "some time after"):
        threading.Thread(target=_kill_soon, args=(when, kill), daemon=True).start()
    yield
    if when == "after":
        kill(when)


def _kill_soon(when: When, kill: Callable[[When], None]) -> None:
    time.sleep(_dice.uniform(0, _SECONDS[when]))
    kill(when)


_dice = random.SystemRandom()
