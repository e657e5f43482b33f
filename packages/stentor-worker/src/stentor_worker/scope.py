"""How steps are identified: by their names, the steps that they run in, and how many of a name began before."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any

MAX_NAME, MAX_KEY = 255, 1024
# So that no name looks like a path or a count.
_ESCAPED = str.maketrans({"%": "%25", "/": "%2F", "#": "%23"})
WAS_CANCELLED = "/#cancelled"
"""Ends the key that says of a step that the program cancelled it. No name of a step has a # of its own.

After it come # and a number if that was more than once at the same time, as by two nested timeouts.
"""
Place = tuple[threading.Thread, "asyncio.Task[Any] | None"]
"""The thread and the asyncio task in which something runs."""


@dataclass(eq=False)
class Entry:
    """A step that runs. `position` is None for one that runs in parallel with others.

    `is_irreversible` says that it cannot be undone: an effect, or the start of a child. `handled` are the keys of
    failed steps after which the program came here.
    """

    scope: Scope
    key: str
    name: str
    kind: str
    position: int | None
    place: Place
    handled: list[str]
    is_irreversible: bool
    tool: str | None = None
    """The tool that the step calls, if any."""
    began_at: float = field(default_factory=time.monotonic)

    def as_cancelled(self, times: int = 1) -> Entry:
        """Return the entry that records how many times the program cancelled this step, which has an outcome."""
        ending = WAS_CANCELLED + (f"#{times}" if times > 1 else "")
        return replace(self, key=self.key + ending, name="cancelled", position=None)

    def list_waiting_tasks(self) -> list[asyncio.Task[Any]]:
        """List the asyncio tasks that may wait for this step: where it was called, and where its scope was opened."""
        return [task for _, task in {self.place, self.scope.home} if task is not None]

    def fields(self) -> dict[str, Any]:
        """Return the fields that name the step in a request."""
        return {"key": self.key, "name": self.name, "position": self.position}


class Scope:
    """The steps that a handler, or another step, runs. Thread-safe.

    Those that begin where the scope was opened, in its thread and its asyncio task, begin in the order of the program,
    and have positions. Others run side by side, in an order that changes from one attempt to the next.
    """

    def __init__(self, prefix: str = "", outer: Scope | None = None, home: Place | None = None) -> None:
        self.prefix, self._outer = prefix, outer
        self._names: Counter[str] = Counter()
        self._parallel_names: set[str] = set()
        """Names of steps that began in another thread or asyncio task than the scope."""
        self._next_position = 0
        self._failed: dict[Place, list[Entry]] = {}
        """Steps whose error the program got, until it continues with another step, by where they began."""
        self._lock = threading.Lock()
        self._home = home or _place()

    def open_here(self) -> None:
        """Treat the current thread and asyncio task as the ones of the program."""
        self._home = _place()

    def enter(self, name: str, kind: str, *, is_irreversible: bool = False) -> Entry:
        """Begin a step. Call it in the order of the program. Raises ValueError for a name that cannot be recorded."""
        if not 1 <= len(name) <= MAX_NAME or not name.isprintable():
            raise ValueError(f"The name of a step is 1 to {MAX_NAME} printable characters, not {name[:40]!r}.")
        place = _place()
        is_home = place == self._home
        with self._lock:
            count = self._names[name] + 1
            if count > 1 and (not is_home or name in self._parallel_names):
                # Which one comes first is random, so the next attempt could swap their values.
                raise ValueError(
                    f"Steps that run side by side need names of their own, and {name!r} began before. Run what belongs "
                    "together in a step with a name of its own, or put a number into the name."
                )
            key = self.prefix + name.translate(_ESCAPED) + (f"#{count}" if count > 1 else "")
            if key in (".", ".."):
                # Clients resolve them as relative segments of a path, so the service takes none with such a key.
                key = key.replace(".", "%2E")
            if len(key) > MAX_KEY:
                raise ValueError(f"The names of step {name[:40]!r} and of the steps around it are too long together.")
            self._names[name] = count
            if not is_home:
                self._parallel_names.add(name)
            position = self._next_position if is_home else None
            self._next_position += is_home
            return Entry(self, key, name, kind, position, place, self._take_handled(place), is_irreversible)

    @property
    def home(self) -> Place:
        """Where the scope was opened."""
        return self._home

    def note_failed(self, entry: Entry) -> None:
        """Note that the program gets the error of a step."""
        with self._lock:
            self._failed.setdefault(entry.place, []).append(entry)
        if self._outer is not None:
            # A step around it may catch the error, and then decides how the program continues.
            self._outer.note_failed(entry)

    def _take_handled(self, place: Place) -> list[str]:
        """Return the failed steps that were handled when a step begins in a place: those of this place, or all at home.

        The others fail side by side with it.
        """
        places = list(self._failed) if place == self._home else [place]
        return [entry.key for where in places for entry in self._failed.pop(where, ())]


def outer_keys(key: str) -> list[str]:
    """Return the keys of the steps around a step, or of those around and at a scope, from its prefix."""
    parts = key.split("/")
    return ["/".join(parts[:length]) for length in range(1, len(parts))]


def _place() -> Place:
    try:
        task = asyncio.current_task()
    except RuntimeError:
        task = None
    return threading.current_thread(), task


current_scope: ContextVar[Scope | None] = ContextVar("stentor_scope", default=None)
"""The scope of the step that runs here; None outside of steps."""
