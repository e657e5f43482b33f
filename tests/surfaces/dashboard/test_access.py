"""Who may ask the dashboard service, and what its OpenAPI says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from stentor.bootstrap.surfaces import dashboard as wiring
from stentor.bootstrap.surfaces import dashboard_parts
from stentor.bootstrap.surfaces.builder import surface_host
from stentor.core import settings
from stentor.core.errors import StartRefused
from stentor.core.security.redaction import Redactor
from tests.requirements import requirement
from tests.surfaces.dashboard.board import KEY, Board

PATHS = (
    "/api/tasks/x",
    "/api/tasks/x/activity",
    "/api/reports",
    "/api/monitoring/governance",
    "/api/monitoring/prometheus",
    "/api/hebbian/sentinel",
    "/api/hebbian/sentinel/alerts",
    "/api/agents/x/card",
    "/api/routing/config",
    "/api/nothing",
)
GOVERNANCE = "/api/monitoring/governance"


def stranger(board: Board, **headers: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=board.http._transport, base_url="http://127.0.0.1:8081", headers=headers)


@requirement("dashboard.auth")
@pytest.mark.parametrize("path", PATHS)
async def test_without_the_key_nothing_answers(board: Board, path: str) -> None:
    for headers in ({}, {"X-API-Key": "wrong"}, {"X-API-Key": ""}, {"X-API-Key": f"{KEY}x"}):
        async with stranger(board, **headers) as http:
            for answer in (await http.get(path), await http.post(path, json={})):
                assert answer.status_code == 401
                assert answer.json()["success"] is False
                assert KEY not in answer.text


@requirement("dashboard.auth")
async def test_a_client_of_the_api_is_told_that_it_has_the_wrong_port(board: Board) -> None:
    for answer in (await board.http.get("/api/v1/tasks"), await board.http.post("/api/v1/agents/x/claims", json={})):
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "NOT_FOUND")
        assert "this is the dashboard. The API is on the gateway's port" in answer.json()["error"]["message"]


@requirement("dashboard.auth")
async def test_a_client_of_another_port_is_not_told_that_its_key_is_wrong(board: Board) -> None:
    async with stranger(board, Authorization="Bearer of-the-service") as http:
        for answer in (await http.post("/v1/chat/completions", json={}), await http.get("/v1/models")):
            assert answer.status_code == 404
            assert "this is the dashboard" in answer.json()["error"]["message"]
        assert (await http.post("/mcp", json={})).status_code == 404


@requirement("dashboard.auth")
async def test_work_needs_the_key_too(board: Board) -> None:
    async with stranger(board) as http:
        answer = await http.post("/api/cli/execute/stream", json={"instruction": "x"})
    assert answer.status_code == 401


@requirement("dashboard.auth")
async def test_the_shared_key_counts_only_when_the_dashboard_has_none_of_its_own(make_board: Any) -> None:
    board: Board = await make_board(DASHBOARD_API_KEY="", MCP_API_KEY="shared-key-7c1e")
    both: Board = await make_board(board.world, MCP_API_KEY="shared-key-7c1e")
    for one, status in ((board, 200), (both, 401)):
        async with stranger(one, **{"X-API-Key": "shared-key-7c1e"}) as http:
            assert (await http.get(GOVERNANCE)).status_code == status


@requirement("dashboard.auth-no-gateway-bearer")
async def test_a_bearer_credential_does_not_open_the_dashboard(board: Board) -> None:
    for token in (KEY, "admin-key-7c1e"):
        async with stranger(board, Authorization=f"Bearer {token}") as http:
            assert (await http.get(GOVERNANCE)).status_code == 401
    async with stranger(board, **{"X-API-Key": "admin-key-7c1e"}) as http:
        assert (await http.get(GOVERNANCE)).status_code == 401


async def test_two_keys_in_one_request_are_refused(board: Board) -> None:
    answer = await board.http.get(GOVERNANCE, headers=[("X-API-Key", KEY), ("X-API-Key", "other")])
    assert answer.status_code == 401


@requirement("dashboard.auth-keyless")
async def test_without_keys_everybody_on_this_machine_may_ask(make_board: Any) -> None:
    board: Board = await make_board(DASHBOARD_API_KEY="")
    async with stranger(board) as http:
        for host in ("127.0.0.1:8081", "localhost:8081", "[::1]:8081", "LOCALHOST"):
            assert (await http.get(GOVERNANCE, headers={"Host": host})).status_code == 200
        own = {"Host": "127.0.0.1:8081", "Origin": "http://127.0.0.1:8081"}
        assert (await http.get(GOVERNANCE, headers=own)).status_code == 200


@requirement("dashboard.cross-site")
async def test_without_keys_a_page_of_another_site_is_refused(make_board: Any) -> None:
    board: Board = await make_board(DASHBOARD_API_KEY="")
    async with stranger(board) as http:
        for headers in (
            {"Host": "evil.example"},
            {"Host": "127.0.0.1.evil.example"},
            {"Host": "127.0.0.1:8081", "Origin": "http://evil.example"},
            {"Host": "127.0.0.1:8081", "Origin": "http://127.0.0.1:9999"},
            {"Host": "localhost:8081", "Origin": "http://localhost:5173"},
            {"Host": "127.0.0.1:8081", "Origin": "null"},
        ):
            assert (await http.get(GOVERNANCE, headers=headers)).status_code == 403, headers
            work = await http.post("/api/cli/execute/stream", json={"instruction": "x"}, headers=headers)
            assert work.status_code == 403


@requirement("dashboard.auth-keyless")
def test_without_keys_it_starts_on_loopback_only(tmp_path: Path) -> None:
    base = {"SERVICE_DATA_DIR": str(tmp_path), "SERVICE_HOST": "0.0.0.0"}
    with pytest.raises(StartRefused, match="DASHBOARD_API_KEY"):
        dashboard_parts.open_alone(settings.load(base), Redactor())
    host, warning = surface_host(settings.load(base), "dashboard")
    assert host == "127.0.0.1"
    assert warning is not None
    assert surface_host(settings.load({**base, "DASHBOARD_API_KEY": KEY}), "dashboard") == ("0.0.0.0", None)
    assert surface_host(settings.load(base), "mcp") == ("0.0.0.0", None)


@pytest.mark.parametrize("variable", ["DASHBOARD_API_KEY", "MCP_API_KEY"])
@pytest.mark.parametrize("key", ["changeme", "two words", "kéy-7c1e"])
def test_a_key_that_is_none_stops_the_start(tmp_path: Path, variable: str, key: str) -> None:
    chosen = settings.load({"SERVICE_DATA_DIR": str(tmp_path), variable: key})
    with pytest.raises(StartRefused, match=variable) as refused:
        wiring.dashboard_key(chosen)
    assert key not in str(refused.value)


def test_a_data_folder_that_is_not_there_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(StartRefused, match="--data-dir"):
        dashboard_parts.open_alone(settings.load({"SERVICE_DATA_DIR": str(tmp_path / "none")}), Redactor())


@requirement("dashboard.unversioned-paths")
async def test_neither_service_has_the_others_paths(board: Board) -> None:
    await board.get("/api/v1/tasks", 404)
    for path in PATHS:
        assert (await board.world.admin.get(path)).status_code == 404


async def test_the_description_names_every_route_with_its_statuses(board: Board) -> None:
    async with stranger(board) as http:
        assert (await http.get("/health")).json()["status"] == "ok"
        document = (await http.get("/openapi.json")).json()
    operations = {(method, path): spec for path, found in document["paths"].items() for method, spec in found.items()}
    assert len(operations) == 11
    for (_, path), spec in operations.items():
        assert "422" not in spec["responses"]
        if path != "/health":
            assert {"200", "400", "401", "403"} <= set(spec["responses"])
            assert spec["security"] == [{"key": []}]
    assert {"404", "500"} <= set(operations["get", "/api/tasks/{task_id}"]["responses"])
    assert {"429", "500", "503"} <= set(operations["post", "/api/cli/execute/stream"]["responses"])


async def test_every_answer_says_what_it_is_and_is_not_kept(board: Board) -> None:
    for path in (*PATHS, "/health"):
        answer = await board.http.get(path)
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] in ("no-store", "no-cache")
        assert answer.headers["x-request-id"]
    wrong = await board.http.delete("/api/reports")
    assert (wrong.status_code, wrong.headers["allow"]) == (405, "GET")
