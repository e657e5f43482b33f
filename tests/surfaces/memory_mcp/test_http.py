"""The Streamable HTTP transport of a running service, black-box."""

from __future__ import annotations

import json
import re
from typing import Any, cast

import httpx
import httpx2
import pytest
from mcp import Client, MCPError
from mcp.client.auth import OAuthClientProvider, OAuthRegistrationError
from mcp.shared.auth import OAuthClientMetadata
from pydantic import AnyUrl

from stentor.auth.authority import keys
from stentor.auth.authority.keys import generate, thumbprint
from stentor.auth.authority.proof import ReceiptAuth, prove
from stentor.auth.authority.receipts import create_own_claims, issue_receipt
from stentor.core.clock import SECOND, SystemClock
from tests import forkserver
from tests.conftest import Service
from tests.requirements import requirement
from tests.surfaces.memory_mcp.conftest import MODES, connected, denials, use

CALL = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
ACCEPT = {"Accept": "application/json, text/event-stream"}


def receipt(service: Service, **claims: Any) -> str:
    """Signed with the service's own key, by default for the namespace `team`."""
    names = {"sub": "ann", "tenant": "default", "aud": "stentor", **claims.pop("names", {})}
    spaces = claims.pop("ns", ("team",))
    granted = claims.pop("cap", ("memory.read", "memory.write"))
    now = SystemClock().now() - claims.pop("ago", 0) * SECOND
    made = create_own_claims(names, spaces, granted, claims.pop("lifetime", 60), claims.pop("jkt", None), now=now)
    return issue_receipt(made, keys.ensure_signing_key(service.data_dir))


def post(service: Service, body: Any = CALL, **headers: str) -> httpx.Response:
    return httpx.post(service.ready["mcp"] + "/mcp", json=body, headers={**ACCEPT, **headers}, timeout=60)


@requirement("memory_mcp.four-tools", "memory_mcp.tool-annotations", "memory_mcp.two-revisions")
@pytest.mark.parametrize("mode", MODES)
async def test_both_revisions_offer_the_four_tools_with_their_schemas(service: Service, mode: str) -> None:
    async with connected(service, mode=mode) as client:
        assert client.protocol_version == ("2025-11-25" if mode == "legacy" else mode)
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert set(tools) == {"write-memory", "read-memory", "search-memory", "get-memory-status"}
        for name, tool in tools.items():
            assert tool.annotations is not None
            assert tool.annotations.read_only_hint == (name != "write-memory")
            assert tool.annotations.destructive_hint == (name == "write-memory")
            assert tool.input_schema["type"] == "object"
            assert tool.input_schema["additionalProperties"] is False
            assert tool.output_schema is not None
            assert tool.output_schema["type"] == "object"


@requirement("memory_mcp.two-revisions", "memory_mcp.answers-carry-record", "memory_mcp.tool-annotations")
@pytest.mark.parametrize("mode", MODES)
async def test_a_client_writes_reads_finds_and_asks(service: Service, mode: str) -> None:
    """The client checks every answer against its output schema."""
    key = f"plan-{mode}"
    async with connected(service, mode=mode) as client:
        written = await use(client, "write-memory", namespace="team", key=key, content="# Deploying\nOn Fridays.")
        assert (written["disposition"], written["version"]) == ("created", 1)
        read = await use(client, "read-memory", namespace="team", key=key)
        assert read["content"] == "# Deploying\nOn Fridays."
        found = await use(client, "search-memory", namespace="team", query="deployed", mode="keyword")
        assert f"team/{key}" in [one["record_id"] for one in found["results"]]
        status = await use(client, "get-memory-status", namespace="team", record_id=f"team/{key}")
        assert status["record"]["content_sha256"] == written["content_sha256"]
    assert (service.data_dir / "vault/Memory/team" / f"{key}.md").read_text() == "# Deploying\nOn Fridays."


@requirement("memory_mcp.write-base-hash")
async def test_errors_have_stable_codes_and_say_what_to_do(service: Service) -> None:
    async with connected(service) as client:
        base = {"namespace": "errors", "key": "a"}
        assert await use(client, "read-memory", **base) == "NOT_FOUND"
        assert await use(client, "read-memory", namespace="errors") == "INVALID_REQUEST"
        assert await use(client, "read-memory", **base, more=1) == "INVALID_REQUEST"
        assert await use(client, "read-memory", namespace="../x", key="a") == "INVALID_REQUEST"
        assert await use(client, "write-memory", **base, content="x", base_hash="0" * 64) == "CONFLICT"
        for wrong in ("zzz", "", "0" * 63, "0" * 63 + "G", "0" * 64 + "\n"):
            assert await use(client, "write-memory", **base, content="x", base_hash=wrong) == "INVALID_REQUEST"
        assert await use(client, "write-memory", **base, content="x", idempotency_key="") == "INVALID_REQUEST"
        assert await use(client, "search-memory", namespace="errors", query="x", limit=101) == "INVALID_REQUEST"
        assert await use(client, "search-memory", namespace="errors", query="x", limit=0) == "INVALID_REQUEST"
        assert await use(client, "search-memory", namespace="errors", query="x", mode="odd") == "INVALID_REQUEST"
        near = await use(client, "search-memory", namespace="errors", query="x", mode="semantic")
        assert near == "SERVICE_UNAVAILABLE"
        unsafe = {**base, "content": "x", "metadata": {"deep": [{"apiKey": "s3"}]}}
        named = await client.call_tool("write-memory", unsafe)
        assert named.is_error
        assert "metadata.deep[0].apiKey" in named.content[0].text  # type: ignore[union-attr]
        assert "s3" not in named.content[0].text  # type: ignore[union-attr]
        with pytest.raises(MCPError, match="Unknown tool"):
            await client.call_tool("drop-memory", {})


@requirement("memory_mcp.http-needs-bearer")
@pytest.mark.parametrize(
    "header", [None, "", "Bearer", "Bearer nonsense", "Basic YTpi", "Bearer a.b.c", "Bearer " + "x" * 9000]
)
def test_without_a_valid_token_nothing_is_served(service: Service, header: str | None) -> None:
    answer = post(service, **({} if header is None else {"Authorization": header}))
    assert answer.status_code == 401
    assert "resource_metadata=" in answer.headers["www-authenticate"]
    assert "nonsense" not in answer.text


@requirement("memory_mcp.token-checks", "memory_mcp.no-authorization-server")
def test_the_metadata_says_what_is_protected_wherever_it_is_asked_for(service: Service) -> None:
    pointed_to = re.search('resource_metadata="([^"]*)"', post(service).headers["www-authenticate"])
    assert pointed_to is not None
    for address in (pointed_to[1], service.ready["mcp"] + "/.well-known/oauth-protected-resource"):
        answer = httpx.get(address, headers={"Origin": "https://inspector.example"})
        assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, "*")
        assert answer.json() == {
            "resource": service.ready["mcp"] + "/mcp",
            "scopes_supported": ["memory.read", "memory.write"],
            "bearer_methods_supported": ["header"],
            "resource_name": "Stentor memory",
        }


@requirement("memory_mcp.token-checks")
async def test_a_receipt_reaches_what_it_names_and_nothing_else(service: Service) -> None:
    async with connected(service, lambda: receipt(service)) as client:
        assert (await use(client, "write-memory", namespace="team/a", key="k", content="x"))["version"] == 1
        assert await use(client, "read-memory", namespace="other", key="k") == "AUTHORITY_DENIED"
    async with connected(service, lambda: receipt(service, cap=("memory.read",))) as client:
        assert await use(client, "write-memory", namespace="team/a", key="k", content="y") == "AUTHORITY_DENIED"
        assert (await use(client, "read-memory", namespace="team/a", key="k"))["content"] == "x"
    async with connected(service, lambda: receipt(service, names={"tenant": "elsewhere"})) as client:
        assert await use(client, "read-memory", namespace="team/a", key="k") == "AUTHORITY_DENIED"
    assert '"by":"ann"' in denials(service.database)[-1]


@requirement("memory_mcp.token-checks")
@pytest.mark.parametrize(
    "claims", [{"names": {"aud": "another"}}, {"ago": 600}, {"ago": -600}], ids=["audience", "expired", "future"]
)
def test_a_receipt_for_another_audience_or_time_is_refused(service: Service, claims: dict[str, Any]) -> None:
    assert post(service, Authorization=f"Bearer {receipt(service, **claims)}").status_code == 401


@requirement("memory_mcp.receipt-session")
@pytest.mark.parametrize("mode", MODES)
async def test_a_client_that_was_given_one_receipt_works_with_it_until_it_expires(service: Service, mode: str) -> None:
    """The official client, unmodified: it sends the same token with initialize, with lists and with calls."""
    async with connected(service, receipt(service), mode) as client:
        assert (await client.list_tools()).tools
        assert (await use(client, "write-memory", namespace="team", key=f"s-{mode}", content="x"))["version"] == 1
        assert (await use(client, "read-memory", namespace="team", key=f"s-{mode}"))["content"] == "x"


@requirement("memory_mcp.receipt-session")
def test_a_receipt_that_one_address_used_is_refused_from_another(service: Service) -> None:
    token = receipt(service)
    bearer = {"Authorization": f"Bearer {token}", **ACCEPT}
    with httpx.Client(transport=httpx.HTTPTransport(local_address="127.0.0.2"), timeout=60) as elsewhere:
        statuses = [
            post(service, Authorization=f"Bearer {token}").status_code,
            elsewhere.post(service.ready["mcp"] + "/mcp", json=CALL, headers=bearer).status_code,
            post(service, Authorization=f"Bearer {token}").status_code,
        ]
    assert statuses == [200, 401, 200]


def test_a_receipt_bound_to_a_key_needs_a_proof_for_each_request(service: Service) -> None:
    holder = generate()
    token = receipt(service, jkt=thumbprint(holder))
    body = json.dumps(CALL).encode()

    def send(content: bytes, **headers: str) -> int:
        given = {**ACCEPT, "Authorization": f"Bearer {token}", "Content-Type": "application/json", **headers}
        return httpx.post(service.ready["mcp"] + "/mcp", content=content, headers=given).status_code

    def proof(key: Any, path: str = "/mcp") -> dict[str, str]:
        return {"Receipt-Proof": prove(key, token, "POST", path, body, now=SystemClock().now())}

    assert send(body) == 401
    assert send(body, **proof(generate())) == 401
    assert send(body, **proof(holder, "/other")) == 401
    assert send(body + b" ", **proof(holder)) == 401
    once = proof(holder)
    assert [send(body, **once), send(body, **once), send(body, **proof(holder))] == [200, 401, 200]


@requirement("memory_mcp.receipt-client")
@pytest.mark.parametrize("mode", MODES)
async def test_the_official_client_works_with_a_bound_receipt_and_the_class_that_signs(
    service: Service, mode: str
) -> None:
    holder = generate()
    token = receipt(service, jkt=thumbprint(holder))
    async with connected(service, auth=ReceiptAuth(lambda: token, holder), mode=mode) as client:
        assert (await client.list_tools()).tools
        assert await use(client, "read-memory", namespace="team", key="none") == "NOT_FOUND"


@requirement("memory_mcp.token-checks")
@pytest.mark.parametrize(
    ("header", "value", "status"),
    [
        ("Host", "evil.example", 421),
        ("Host", "127.0.0.1:1", 421),
        ("Origin", "https://evil.example", 403),
        ("Origin", "null", 403),
    ],
)
def test_hosts_and_origins_that_nobody_allowed_are_refused(
    service: Service, header: str, value: str, status: int
) -> None:
    assert post(service, Authorization="Bearer admin-key-7c1e", **{header: value}).status_code == status
    assert post(service, Authorization="Bearer admin-key-7c1e", Origin=service.ready["mcp"]).status_code == 200


@requirement("memory_mcp.blank-evidence-denied")
async def test_a_key_without_capabilities_is_denied_and_the_run_log_says_so(service: Service) -> None:
    before = len(denials(service.database))
    async with connected(service, "blank-key-7c1e") as client:
        for tool in ("write-memory", "read-memory", "search-memory", "get-memory-status"):
            assert await use(client, tool, namespace="team") == "AUTHORITY_DENIED"
    assert len(denials(service.database)) == before + 4


@requirement("memory_mcp.gate-on-every-call")
async def test_a_key_that_is_no_administrators_reaches_its_own_namespace_and_the_shared_one(service: Service) -> None:
    async with connected(service, "bob-key-7c1e") as client:
        for namespace in ("bob", "bob/notes", "shared"):
            assert (await use(client, "write-memory", namespace=namespace, key="k", content="x"))["version"] == 1
        for namespace in ("team", "bobby"):
            assert await use(client, "write-memory", namespace=namespace, key="k", content="x") == "AUTHORITY_DENIED"
    async with connected(service, "reader-key-7c1e") as client:
        assert await use(client, "write-memory", namespace="reader", key="k", content="x") == "AUTHORITY_DENIED"
    async with connected(service, "other-key-7c1e") as client:
        assert await use(client, "read-memory", namespace="bob", key="k") == "AUTHORITY_DENIED"


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (b"", 400),
        (b"{", 400),
        (b"[" * 5000, 400),
        (b"[]", 400),
        (b"\xff\xfe", 400),
        (b'{"jsonrpc":"2.0","id":1,"method":"tools/list","params":' + b'{"a":' * 3000 + b"1" + b"}" * 3001, 400),
        (b'{"jsonrpc":"2.0","id":' + b"9" * 5000 + b',"method":"tools/list"}', 400),
        (b" " * 10_000_001, 413),
    ],
    ids=["empty", "open", "deep", "list", "bytes", "deep params", "digits", "large"],
)
def test_a_body_that_is_no_call_is_refused(service: Service, content: bytes, status: int) -> None:
    headers = {**ACCEPT, "Authorization": "Bearer admin-key-7c1e", "Content-Type": "application/json"}
    answer = httpx.post(service.ready["mcp"] + "/mcp", content=content, headers=headers, timeout=60)
    assert answer.status_code == status, answer.text[:500]


def test_health_needs_no_token(service: Service) -> None:
    assert httpx.get(service.ready["mcp"] + "/health").json()["status"] == "ok"


def test_the_gateways_health_knows_of_it(service: Service) -> None:
    with service.client() as http:
        components = http.get("/api/v1/health/detailed").json()["components"]
    assert components["mcp_server"]["status"] == "available"


def test_a_second_server_on_the_folder_says_where_the_first_one_answers(service: Service) -> None:
    ended = forkserver.run_text(["mcp", "--http", "--data-dir", str(service.data_dir)], service.environ)
    assert ended.returncode == 1
    assert service.ready["mcp"] in ended.stderr


def test_the_client_is_the_official_one() -> None:
    assert Client.__module__.startswith("mcp.")


class NoStorage:
    """Of a client that never signed in."""

    async def get_tokens(self) -> None: ...
    async def set_tokens(self, tokens: object) -> None: ...
    async def get_client_info(self) -> None: ...
    async def set_client_info(self, client_info: object) -> None: ...


@requirement("memory_mcp.no-authorization-server")
async def test_a_client_that_would_sign_in_is_told_to_send_a_key(service: Service) -> None:
    """Unmodified, without a token: its search for an authorization server stays here and ends with what to do."""
    asked: list[str] = []

    async def note(request: httpx2.Request) -> None:
        asked.append(str(request.url))

    async def nobody(*args: object) -> Any:
        raise AssertionError("it was sent to a page where somebody signs in")

    wanted = OAuthClientMetadata(client_name="a", redirect_uris=[AnyUrl("http://localhost:3030/callback")])
    auth = OAuthClientProvider(service.ready["mcp"] + "/mcp", wanted, cast("Any", NoStorage()), nobody, nobody)
    async with httpx2.AsyncClient(auth=auth, trust_env=False, event_hooks={"request": [note]}) as http:
        with pytest.raises(OAuthRegistrationError, match="Authorization: Bearer"):
            await http.post(service.ready["mcp"] + "/mcp", json={})
    assert asked
    assert all(url.startswith(service.ready["mcp"]) for url in asked), asked
