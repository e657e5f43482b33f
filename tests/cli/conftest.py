"""The program without a service, and with one that holds its data folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.program import Program


@pytest.fixture
def program(tmp_path: Path) -> Program:
    """Nobody holds the data folder."""
    return Program(tmp_path / "data")


@pytest.fixture
def served(serve: Callable[..., Any]) -> tuple[Program, Any]:
    """The program beside a running service, with the admin's key; and the service."""
    service = serve()
    return Program(service.data_dir, {"SERVICE_CLIENT_KEY": service.key, **service.state}), service
