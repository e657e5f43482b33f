"""The key before everything under /api, and none for /health."""

from __future__ import annotations

import httpx
import pytest

from tests.requirements import requirement
from tests.surfaces.notestore.running import KEY, TOOLS, NoteStore
from tests.vaultplugin.server import KEY as PLUGIN_KEY

WRONG: list[list[tuple[str, str]]] = [
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


def anonymous(store: NoteStore) -> httpx.Client:
    return httpx.Client(base_url=store.address, verify=False, trust_env=False)


@requirement("notestore.auth-403")
@pytest.mark.parametrize("headers", WRONG, ids=range(len(WRONG)))
def test_without_the_key_every_tool_is_403_and_does_nothing(store: NoteStore, headers: list[tuple[str, str]]) -> None:
    store.write("a.md", "x")
    with anonymous(store) as client:
        for tool, body in TOOLS.items():
            answer = client.post(f"/api/{tool}", json=body, headers=headers)
            assert answer.status_code == 403
            assert answer.json().keys() == {"success", "error"}
            assert answer.json()["success"] is False
            assert KEY not in answer.text
    assert store.stub.asked == []


@requirement("notestore.auth-403")
@pytest.mark.parametrize(
    "path", ["/", "/none", "/api", "/api/", "/api/none", "/api/health", "/health/", "/%61pi/getContext"]
)
def test_without_the_key_nothing_says_what_exists(store: NoteStore, path: str) -> None:
    with anonymous(store) as client:
        for method in ("GET", "POST", "DELETE"):
            assert client.request(method, path).status_code == 403
        assert client.post(path, content=b"{" * 20_000).status_code == 403


def test_the_scheme_is_written_in_any_case(store: NoteStore) -> None:
    with anonymous(store) as client:
        assert client.post("/api/listNotes", headers={"Authorization": f"bearer  {KEY}"}).status_code == 200


@requirement("notestore.health-open")
def test_health_needs_no_key_and_no_plugin(store: NoteStore) -> None:
    store.stub.mood = "500"
    with anonymous(store) as client:
        answer = client.get("/health")
        assert (answer.status_code, answer.json()) == (200, {"status": "ok"})
        assert client.get("/health", headers={"Authorization": "Bearer wrong"}).status_code == 200
        assert client.head("/health").status_code == 200
        assert client.post("/health").status_code == 405
    assert store.stub.asked == []


@requirement("notestore.plugin-certificate-and-key")
def test_the_plugin_reads_its_own_key_and_never_the_callers(store: NoteStore) -> None:
    store.write("a.md", "x")
    for tool, body in TOOLS.items():
        store.call(tool, **body)
    assert len(store.stub.asked) >= len(TOOLS)
    for request in store.stub.asked:
        assert request.headers["authorization"] == f"Bearer {PLUGIN_KEY}"
        assert KEY not in str(request)


def test_no_key_stands_in_the_log(store: NoteStore) -> None:
    """At level debug, over calls that succeed and calls that fail."""
    for mood in ("ok", "401", "500", "noise", "garbage"):
        store.stub.mood = mood
        for tool, body in TOOLS.items():
            store.write("a.md", "x")
            store.call(tool, **body)
    log = store.log.read_text()
    assert "searchReplace" in log
    assert "plugin: key rejected" in log
    for secret in (KEY, PLUGIN_KEY, "DETAILS-OF-THE-PLUGIN", "Traceback"):
        assert secret not in log
