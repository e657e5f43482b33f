"""What the log says while the store cannot be used: the beginning, a reminder now and then, the end."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

REMIND_SECONDS = 30
log = logging.getLogger(__name__)


class Outage:
    """Told of every failure and success; silent about most of them, because thousands may come a second."""

    def __init__(self, what: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._what = what
        self._clock = clock
        self._lock = threading.Lock()
        self._began: float | None = None
        self._said = 0.0
        self._failures = 0
        self.total = 0
        """Failures since the start."""

    @property
    def lasts(self) -> bool:
        return self._began is not None

    def failed(self, reason: str) -> None:
        with self._lock:
            now = self._clock()
            self._failures += 1
            self.total += 1
            if self._began is None:
                self._began = self._said = now
                log.error("the database cannot be %s: %s", self._what, reason)
            elif now - self._said >= REMIND_SECONDS:
                self._said = now
                text = "for %.0f s the database cannot be %s (%d tries): %s"
                log.error(text, now - self._began, self._what, self._failures, reason)

    def worked(self) -> None:
        if self._began is None:
            return
        with self._lock:
            if self._began is not None:
                text = "the database can be %s again after %.1f s (%d tries failed)"
                log.warning(text, self._what, self._clock() - self._began, self._failures)
            self._began, self._failures = None, 0
