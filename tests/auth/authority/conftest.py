"""A verifier over a real database, with a clock that stands."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from stentor.auth.authority.receipts import ReceiptVerifier, ReplayGuard
from stentor.core.db import Database
from stentor.core.db.sqlite.driver import SqliteDriver
from stentor.testing import FixedClock
from tests.auth.authority.forging import AUDIENCE, ISSUERS, NOW
from tests.databases import Databases


@pytest.fixture
def clock() -> FixedClock:
    return FixedClock(NOW)


@pytest.fixture
async def sqlite(databases: Databases, tmp_path: Path, clock: FixedClock) -> AsyncIterator[Database]:
    database = Database(SqliteDriver(databases.sqlite(tmp_path / "stentor.db"), clock))
    yield database
    database.close()


@pytest.fixture
def verifier(sqlite: Database, clock: FixedClock) -> ReceiptVerifier:
    return ReceiptVerifier(ISSUERS, AUDIENCE, ReplayGuard(sqlite), clock)
