"""Authentication: every path needs the key except /health."""

from __future__ import annotations

from typing import Any, cast

import httpx
import pytest

from stentor.surfaces.notestore.app import create_app
from tests.requirements import requirement
from tests.surfaces.notestore.note_store import KEY, TOOLS, NoteStore
from tests.vaultplugin.server import KEY as PLUGIN_KEY

INVALID_HEADERS: list[list[tuple[str, str]]] = [
    [],
    [("Authorization", "")],
    [("Authorization", "Bearer")],
    [("Authorization", "Bearer wrong")],
    [("Authorization", f"Bearer {KEY}x")],
    [("Authorization", f"Bearer {KEY[:-1]}")],
    [("Authorization", f"Bearer {KEY.upper()}")],
    [("Authorization", f"Bearer {PLUGIN_KEY}")],
    [("Authorization", f"Basic {KEY}")],
    [("Authorization", KEY)],
    [("Authorization", f"Bearer {KEY}"), ("Authorization", "Bearer wrong")],
    [("X-API-Key", KEY)],
    [("Cookie", f"Authorization=Bearer {KEY}")],
]


def unauthenticated_client(store: NoteStore) -> httpx.Client:
    return httpx.Client(base_url=store.address, verify=False, trust_env=False)


@requirement("notestore.auth-403")
@pytest.mark.parametrize("headers", INVALID_HEADERS, ids=range(len(INVALID_HEADERS)))
def test_tool_call_without_the_key_returns_403_and_has_no_effect(
    store: NoteStore, headers: list[tuple[str, str]]
) -> None:
    store.write("a.md", "x")
    with unauthenticated_client(store) as client:
        for tool, body in TOOLS.items():
            response = client.post(f"/api/{tool}", json=body, headers=headers)
            assert response.status_code == 403
            assert response.json().keys() == {"success", "error"}
            assert response.json()["success"] is False
            assert KEY not in response.text
    assert store.stub.requests == []


@requirement("notestore.auth-403")
@pytest.mark.parametrize(
    "path", ["/", "/none", "/api", "/api/", "/api/none", "/api/health", "/health/", "/%61pi/getContext"]
)
def test_unknown_paths_return_403_without_the_key(store: NoteStore, path: str) -> None:
    with unauthenticated_client(store) as client:
        for method in ("GET", "POST", "DELETE"):
            assert client.request(method, path).status_code == 403
        assert client.post(path, content=b"{" * 20_000).status_code == 403


def test_authorization_scheme_is_case_insensitive(store: NoteStore) -> None:
    with unauthenticated_client(store) as client:
        assert client.post("/api/listNotes", headers={"Authorization": f"bearer  {KEY}"}).status_code == 200


@requirement("notestore.health-open")
def test_health_check_needs_no_key_and_no_plugin(store: NoteStore) -> None:
    store.stub.behaviour = "500"
    with unauthenticated_client(store) as client:
        response = client.get("/health")
        assert (response.status_code, response.json()) == (200, {"status": "ok"})
        assert client.get("/health", headers={"Authorization": "Bearer wrong"}).status_code == 200
        assert client.head("/health").status_code == 200
        assert client.post("/health").status_code == 405
    assert store.stub.requests == []


@requirement("notestore.plugin-certificate-and-key")
def test_plugin_requests_never_contain_the_callers_key(store: NoteStore) -> None:
    store.write("a.md", "x")
    for tool, body in TOOLS.items():
        store.call(tool, **body)
    assert len(store.stub.requests) >= len(TOOLS)
    for request in store.stub.requests:
        assert request.headers["authorization"] == f"Bearer {PLUGIN_KEY}"
        assert KEY not in str(request)


@requirement("http.malformed-not-logged")
async def test_callers_without_the_key_do_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "stentor")
    transport = httpx.ASGITransport(create_app(cast(Any, None), KEY, 1.0))
    async with httpx.AsyncClient(transport=transport, base_url="http://notes") as client:
        assert (await client.post("/api/getContext")).status_code == 403
        assert (await client.delete("/health")).status_code == 405
        assert caplog.text == ""
        assert (await client.post("/api/nothing", headers={"Authorization": f"Bearer {KEY}"})).status_code == 404
    assert "rejected status=404 code=NOT_FOUND" in caplog.text


def test_log_contains_no_keys_and_no_plugin_details(store: NoteStore) -> None:
    """The log level is debug; some calls succeed and some fail."""
    for behaviour in ("ok", "401", "500", "noise", "garbage"):
        store.stub.behaviour = behaviour
        for tool, body in TOOLS.items():
            store.write("a.md", "x")
            store.call(tool, **body)
    log = store.log.read_text()
    assert "searchReplace" in log
    assert "plugin: key rejected" in log
    for secret in (KEY, PLUGIN_KEY, "DETAILS-OF-THE-PLUGIN", "Traceback"):
        assert secret not in log
