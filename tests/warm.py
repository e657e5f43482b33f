"""What a process of Stentor makes at its first use and keeps. In a run of all tests it is made once, before those
processes are forked that would each make it again.
"""

from __future__ import annotations

import importlib

FIRST_USED = ("anyio._backends._asyncio", "pydantic.v1")
"""Modules that FastAPI and AnyIO import with the first request."""


def up() -> None:
    """Build the routes of the operations, what validates their input, and the pages' templates."""
    from stentor.bootstrap.operations import TABLES
    from stentor.surfaces.dashboard.site import page
    from stentor.web.operations import operation_route

    for name in FIRST_USED:
        importlib.import_module(name)
    for tag, table in TABLES:
        for operation in table:
            _ = operation.parameters, operation.output_adapter
            if not operation.has_own_route:
                _ = operation_route(operation, tag).dependant
    templates = page.create_environment()
    for name in templates.list_templates():
        templates.get_template(name)
