"""What the detailed health shows to whom."""

from __future__ import annotations

import httpx

from tests.conftest import World
from tests.requirements import requirement

PATH = "/api/v1/health/detailed"


@requirement("http.health-detail-needs-key")
async def test_without_a_key_there_are_statuses_and_no_detail(world: World) -> None:
    async with httpx.AsyncClient(transport=world.admin._transport, base_url="http://test") as stranger:
        for headers in ({}, {"X-API-Key": "wrong"}):
            found = (await stranger.get(PATH, headers=headers)).json()["components"]
            assert set(found) >= {"api", "mcp_server", "vault", "agents"}
            for component in found.values():
                assert component["status"] in ("available", "disabled", "unavailable")
                assert (component["detail"], component["latency_ms"]) == (None, None)
    known = (await world.clients["READER"].get(PATH)).json()["components"]
    assert known["agents"]["detail"] == "loaded", "no number, which would be that of all tenants"
    assert known["webhooks"]["detail"] == "can be delivered", "nor here"
