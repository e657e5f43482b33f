"""Who gets past the gate: the two headers, the two refusals, and what needs no key at all."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.conftest import World
from tests.requirements import requirement
from tests.surfaces.gateway.operations import OPERATIONS, PROTECTED

PATH = "/api/v1/tasks"
KEY, OTHER_KEY = "reader-key-7c1e", "writer-key-7c1e"
PUBLIC = {
    "/health",
    "/api/v1",
    "/api/v1/health",
    "/api/v1/health/detailed",
    "/api/v1/health/ready",
    "/api/v1/health/live",
}
SIGN_IN = {"/api/v1/people/sign-in"}
"""Its body is the credential: see tests/domains/people/test_people.py."""
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "INVENTED")
OTHERS = (
    *("/", "/docs", "/metrics", "/api/v1/", "/api/v1/nothing", "/api/v1/memory/read/exact", "/api/v1/atp/queue"),
    *("/health/", "/health/../metrics", "//health", "/HEALTH", "/api/v1/health/../tasks", "/openapi.json/x"),
    *("/api%2Fv1%2Fhealth", "/health%2F..%2Fmetrics", "/health;/metrics", "/api/v1/tasks%00"),
)
Headers = dict[str, str] | list[tuple[str, str]]


@pytest.fixture
def stranger(world: World) -> httpx.AsyncClient:
    """The admin's client without its key."""
    del world.admin.headers["X-API-Key"]
    return world.admin


ACCEPTED: list[Headers] = [
    {"Authorization": f"Bearer {KEY}"},
    {"authorization": f"bearer  {KEY} "},
    {"X-API-Key": KEY},
    {"x-api-key": f" {KEY} "},
    {"Authorization": f"Bearer {KEY}", "X-API-Key": KEY},
    {"Authorization": "Basic dTpw", "X-API-Key": KEY},
    [("X-API-Key", KEY), ("X-API-Key", KEY)],
]
MISSING: list[Headers] = [
    {},
    {"Authorization": ""},
    {"Authorization": "Bearer "},
    {"Authorization": KEY},
    {"X-API-Key": " "},
]
WRONG: list[Headers] = [
    {"X-API-Key": "nobodys-key"},
    {"X-API-Key": KEY.upper()},
    {"X-API-Key": f"{KEY}:admin:read"},
    {"Authorization": f"Bearer {KEY}x"},
    {"Authorization": "Bearer nobodys-key", "X-API-Key": KEY},
    {"X-API-Key": "é"},
    {"X-API-Key": "x" * 60_000},
    [("X-API-Key", KEY), ("X-API-Key", "nobodys-key")],
    # Two keys that are both known: which of them counts would depend on their order.
    {"X-API-Key": KEY, "Authorization": f"Bearer {OTHER_KEY}"},
    [("X-API-Key", OTHER_KEY), ("X-API-Key", KEY)],
    [("Authorization", f"Bearer {OTHER_KEY}"), ("Authorization", f"Bearer {KEY}")],
]


@requirement("http.auth-two-headers")
async def test_a_key_is_taken_from_either_header(stranger: httpx.AsyncClient) -> None:
    for headers in ACCEPTED:
        assert (await stranger.get(PATH, headers=headers)).status_code == 200, headers


@requirement("http.auth-401-bodies", "http.auth-required")
async def test_a_missing_key_is_401_with_its_own_body(stranger: httpx.AsyncClient) -> None:
    for headers in MISSING:
        _refused(await stranger.get(PATH, headers=headers), "Authentication required")


@requirement("http.auth-401-bodies")
async def test_a_person_who_opens_the_api_in_a_browser_is_sent_to_the_dashboard(stranger: httpx.AsyncClient) -> None:
    answer = await stranger.get("/")
    _refused(answer, "Authentication required")
    assert "People sign in to the dashboard" in answer.json()["message"]


@requirement("http.auth-401-bodies", "http.auth-one-key")
async def test_a_wrong_key_is_401_and_is_never_repeated(stranger: httpx.AsyncClient) -> None:
    for headers in WRONG:
        pairs = headers.items() if isinstance(headers, dict) else headers
        answer = await stranger.get(PATH, headers=[(k.encode(), v.encode()) for k, v in pairs])
        _refused(answer, "Invalid API key")
        assert "nobodys-key" not in answer.text + str(answer.headers)


def _refused(answer: httpx.Response, error: str) -> None:
    body: dict[str, Any] = answer.json()
    assert answer.status_code == 401
    assert set(body) == {"success", "error", "message"}
    assert (body["success"], body["error"]) == (False, error)
    assert body["message"]
    assert answer.headers["www-authenticate"] == "Bearer"


@requirement("http.auth-required")
async def test_every_operation_but_the_public_ones_is_401_without_a_key_and_with_a_wrong_one(
    stranger: httpx.AsyncClient,
) -> None:
    for headers in ({}, {"X-API-Key": "nobodys-key"}):
        answers = [await stranger.request(o.method, o.url(), headers=headers) for o in PROTECTED]
        assert [a.status_code for a in answers] == [401] * len(PROTECTED)
    assert {o.path for o in OPERATIONS if o.public} == PUBLIC | SIGN_IN


@requirement("http.auth-required")
async def test_any_other_path_and_method_needs_a_key_whether_or_not_it_exists(stranger: httpx.AsyncClient) -> None:
    for path in OTHERS:
        for method in METHODS:
            answer = await stranger.request(method, f"http://stentor.test{path}")
            assert answer.status_code == 401, f"{method} {path}"


@requirement("http.auth-required")
async def test_the_public_routes_take_no_notice_of_a_wrong_key(stranger: httpx.AsyncClient) -> None:
    for path in sorted(PUBLIC):
        assert (await stranger.get(path, headers={"X-API-Key": "nobodys-key"})).status_code == 200
