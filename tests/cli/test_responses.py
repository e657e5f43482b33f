"""Responses as commands read them, and the wait for a rollback, against a service that is simulated."""

from __future__ import annotations

import re
from typing import Any

import httpx
import msgspec
import pytest

from stentor.cli.client.client import ServiceClient
from stentor.cli.client.responses import Response
from stentor.cli.commands.agents.governance import wait_for_rollback
from stentor.cli.output import EXIT_FAILED, CommandFailed

ROLLBACK = {"rollback_id": "r1", "status": "in_progress", "completed_at": None, "verified": False, "notes": None}


class Row(msgspec.Struct):
    name: str


def simulated(documents: list[Any]) -> ServiceClient:
    """Return a client of a service that returns these documents, the last one again and again."""

    def respond(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, json=documents.pop(0) if len(documents) > 1 else documents[0])

    http = httpx.AsyncClient(base_url="http://service", transport=httpx.MockTransport(respond))
    return ServiceClient(http, "http://service", "")


async def test_a_rollback_is_awaited_until_it_has_ended() -> None:
    ended = ROLLBACK | {"status": "failed", "completed_at": "2026-11-20T21:45:00Z", "notes": "The hash differs."}
    response = await wait_for_rollback(simulated([ROLLBACK, ROLLBACK, ended]), "r1")
    assert (response.value.status, response.document) == ("failed", ended)


async def test_a_rollback_that_does_not_end_in_time_is_an_error() -> None:
    with pytest.raises(CommandFailed, match=re.escape("stentor call rollbacks.get rollback_id=r1")) as raised:
        await wait_for_rollback(simulated([ROLLBACK]), "r1", timeout_seconds=0.2)
    assert "Rollback r1 is still in_progress after 0.2 s." in str(raised.value)
    assert raised.value.code == EXIT_FAILED


async def test_unknown_fields_of_a_response_are_kept_in_its_document() -> None:
    response = await simulated([{"name": "ann", "added_later": 1}]).get("/rows/1", Row)
    assert response.value == Row("ann")
    assert response.document == {"name": "ann", "added_later": 1}


def test_a_missing_field_is_an_error_only_when_the_fields_are_read() -> None:
    response = Response({"other": 1}, Row)
    assert response.document == {"other": 1}
    with pytest.raises(CommandFailed, match="missing required field `name`"):
        _ = response.value
