"""What a process of Stentor makes at its first use and keeps. In a run of all tests it is made once, before those
processes are forked that would each make it again.
"""

from __future__ import annotations

import asyncio
import importlib
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import httpx

if TYPE_CHECKING:
    from stentor.bootstrap import Service
    from stentor.bootstrap.surfaces.builder import Surface

KEY = "warm-key-7c1e"
FIRST_USED = ("anyio._backends._asyncio", "pydantic.v1")
"""Modules that FastAPI and AnyIO import with the first request."""


def up() -> None:
    """Build the routes of the operations, what validates their input, and the pages' templates; answer two requests."""
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
    _answer_once()


def _answer_once() -> None:
    """Run a service within this process and have it answer: what its parts compile, they keep."""
    from stentor import bootstrap
    from stentor.bootstrap.surfaces.builder import build_surfaces, surface_names
    from stentor.core import ids, settings
    from stentor.core.security.redaction import Redactor

    with tempfile.TemporaryDirectory(prefix="stentor-warm-") as folder:
        base = {
            "SERVICE_EMBEDDING_MODEL": "none",
            "SERVICE_LLM_FIND_OLLAMA": "0",
            "SERVICE_API_KEY_WARM": f"{KEY}:admin:read",
        }
        chosen, redactor = settings.load(base, {"SERVICE_DATA_DIR": Path(folder) / "data"}), Redactor()
        service = bootstrap.open_service(chosen, base, redactor)
        addresses = dict.fromkeys(surface_names(chosen), "http://127.0.0.1")
        surfaces = build_surfaces(service, chosen, base, redactor, addresses, None)
        asyncio.run(_ask(service, surfaces))
    ids._tails.clear()  # random, and no two processes may have the same


async def _ask(service: Service, surfaces: list[Surface]) -> None:
    try:
        await service.start()
        transport = httpx.ASGITransport(service.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
            for path in ("/health", "/api/v1/tasks"):
                answer = await http.get(path, headers={"X-API-Key": KEY})
                assert answer.is_success, answer.text
    finally:
        for surface in surfaces:
            for close in surface.close:
                await close()
        await service.stop()
