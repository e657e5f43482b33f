"""A real service, whose clients speak over plain sockets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.service import Service, serving


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Service]]:
    """Starts services on SQLite: what is tested here is in front of the database."""
    with serving(tmp_path) as start:
        yield start
