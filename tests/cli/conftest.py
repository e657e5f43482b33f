"""The program without a service, and with one that holds its data folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
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


@pytest.fixture(scope="module")
def tenants(request: pytest.FixtureRequest, serve_module: Callable[..., Any]) -> Iterator[Any]:
    """The service of a module, once for each of its tests with `shared`: with the key of another tenant each time."""
    tests = sum(
        item.path == request.path and "shared" in getattr(item, "fixturenames", ()) for item in request.session.items
    )
    keys = {f"SERVICE_API_KEY_T{n}": f"t{n}-key-7c1e:admin:read,write,delete,admin:t{n}" for n in range(tests)}
    service = serve_module(**keys)
    return (replace(service, key=f"t{n}-key-7c1e") for n in range(tests))


@pytest.fixture
def shared(tenants: Iterator[Any]) -> tuple[Program, Any]:
    """As `served`, but the service is that of the module's other tests, which are other tenants."""
    service = next(tenants)
    return Program(service.data_dir, {"SERVICE_CLIENT_KEY": service.key, **service.state}), service
