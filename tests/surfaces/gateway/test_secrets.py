"""Keys and configured secrets appear in no answer, header, row, log line or notice of a real service."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from tests.conftest import Service
from tests.databases import content
from tests.surfaces.gateway.operations import PROTECTED

KEY = "canary-5f0c1d7e-admin"
OTHER = "canary-5f0c1d7e-agent"
CANARY = b"canary-5f0c1d7e"


def seen(client: httpx.Client) -> list[bytes]:
    """Head and body of an answer of every operation: well-formed, malformed, without and with a wrong key."""
    found = []
    for operation in PROTECTED:
        body = operation.example if operation.has_body else None
        ways: list[dict[str, Any]] = [
            {"json": body},
            {"content": b"{"},
            {"json": body, "headers": {"X-API-Key": "", "Authorization": f"Bearer {KEY}x"}},
            {"json": {"surprise": 1}, "headers": {"Authorization": f"Bearer {KEY}"}},
        ]
        for options in ways:
            answer = client.request(operation.method, operation.url(), params=operation.query, **options)
            found.append(repr(answer.headers.raw).encode() + answer.content)
    return found


def test_no_secret_comes_out_anywhere(serve: Callable[..., Service], tmp_path: Path) -> None:
    service = serve(
        SERVICE_API_KEY_CANARY=f"{KEY}:admin:read,write,delete,admin",
        SERVICE_API_KEY_AGENT=f"{OTHER}:agent:read",
        SERVICE_LOG_LEVEL="debug",
    )
    with service.client(KEY) as client:
        made = client.post("/api/v1/registry/agents", json={"name": "ann", "capabilities": ["summarize"]})
        body = {"type": "summarize", "input": "x", "required_capabilities": ["summarize"]}
        assert client.post("/api/v1/tasks", json=body).status_code == 202
        assert made.status_code == 201
        answers = seen(client)
        answers.append(client.get("/metrics").content)
    service.process.terminate()
    out, err = service.process.communicate(timeout=200)
    assert not [answer for answer in answers if CANARY in answer]
    assert CANARY.decode() not in out + err
    files = [path for path in service.data_dir.rglob("*") if path.is_file()]
    assert not [path for path in files if CANARY in path.read_bytes()]
    kept = content(service.database)
    assert b"summarize" in kept
    assert CANARY not in kept
