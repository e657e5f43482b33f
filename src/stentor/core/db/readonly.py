"""A database that is only read: what has no writer cannot write or checkpoint, whatever asks it to."""

from __future__ import annotations

from stentor.core.db.driver import Connection, Driver
from stentor.core.errors import StoreUnavailable


class ReadOnly:
    """The driver of a process that is a guest at the database: its readers, and a refusal instead of a writer."""

    shared = True

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self.name = driver.name

    def writer(self) -> Connection:
        raise StoreUnavailable("This process has the database open for reading alone.")

    def reader(self) -> Connection:
        return self._driver.reader()
