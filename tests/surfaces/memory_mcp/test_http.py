"""The Streamable HTTP transport of the governed memory, against a running service."""

from __future__ import annotations

import json
import re
from typing import Any, cast

import httpx
import httpx2
import jsonschema
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
from tests.surfaces.memory_mcp.conftest import MODES, call, connect_client, denials

CALL = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
ACCEPT = {"Accept": "application/json, text/event-stream"}


def create_receipt(service: Service, **claims: Any) -> str:
    """Return a receipt signed with the service's own key, by default for the namespace `team`."""
    names = {"sub": "ann", "tenant": "default", "aud": "stentor", **claims.pop("names", {})}
    namespaces = claims.pop("ns", ("team",))
    capabilities = claims.pop("cap", ("memory.read", "memory.write"))
    now = SystemClock().now() - claims.pop("ago", 0) * SECOND
    own_claims = create_own_claims(
        names, namespaces, capabilities, claims.pop("lifetime", 60), claims.pop("jkt", None), now=now
    )
    return issue_receipt(own_claims, keys.ensure_signing_key(service.data_dir))


def post(service: Service, body: Any = CALL, **headers: str) -> httpx.Response:
    return httpx.post(service.ready["mcp"] + "/mcp", json=body, headers={**ACCEPT, **headers}, timeout=200)


@requirement("memory_mcp.four-tools", "memory_mcp.tool-annotations", "memory_mcp.two-revisions")
@pytest.mark.parametrize("mode", MODES)
async def test_both_revisions_list_the_four_tools_with_their_schemas(service: Service, mode: str) -> None:
    async with connect_client(service, mode=mode) as client:
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


@requirement("memory_mcp.errors-match-schema")
async def test_errors_match_the_output_schema_that_clients_check_them_against(service: Service) -> None:
    async with connect_client(service) as client:
        for tool in (await client.list_tools()).tools:
            assert tool.output_schema is not None
            failed = await client.call_tool(tool.name, {"namespace": 1})
            assert failed.is_error
            jsonschema.validate(failed.structured_content, tool.output_schema)
            with pytest.raises(jsonschema.ValidationError):
                jsonschema.validate({"namespace": "team"}, tool.output_schema)


@requirement("memory_mcp.two-revisions", "memory_mcp.answers-carry-record", "memory_mcp.tool-annotations")
@pytest.mark.parametrize("mode", MODES)
async def test_client_uses_all_four_tools_in_both_revisions(service: Service, mode: str) -> None:
    """The client validates every result against the output schema of the tool."""
    key = f"plan-{mode}"
    async with connect_client(service, mode=mode) as client:
        written = await call(client, "write-memory", namespace="team", key=key, content="# Deploying\nOn Fridays.")
        assert (written["disposition"], written["version"]) == ("created", 1)
        read = await call(client, "read-memory", namespace="team", key=key)
        assert read["content"] == "# Deploying\nOn Fridays."
        search = await call(client, "search-memory", namespace="team", query="deployed", mode="keyword")
        assert f"team/{key}" in [result["record_id"] for result in search["results"]]
        status = await call(client, "get-memory-status", namespace="team", record_id=f"team/{key}")
        assert status["record"]["content_sha256"] == written["content_sha256"]
    assert (service.data_dir / "vault/Memory/team" / f"{key}.md").read_text() == "# Deploying\nOn Fridays."


@requirement("memory_mcp.write-base-hash")
async def test_invalid_tool_calls_return_stable_error_codes(service: Service) -> None:
    async with connect_client(service) as client:
        base = {"namespace": "errors", "key": "a"}
        assert await call(client, "read-memory", **base) == "NOT_FOUND"
        assert await call(client, "read-memory", namespace="errors") == "INVALID_REQUEST"
        assert await call(client, "read-memory", **base, more=1) == "INVALID_REQUEST"
        assert await call(client, "read-memory", namespace="../x", key="a") == "INVALID_REQUEST"
        assert await call(client, "write-memory", **base, content="x", base_hash="0" * 64) == "CONFLICT"
        for bad_hash in ("zzz", "", "0" * 63, "0" * 63 + "G", "0" * 64 + "\n"):
            assert await call(client, "write-memory", **base, content="x", base_hash=bad_hash) == "INVALID_REQUEST"
        for bad_key in ("", "a\0b", "k" * 256):
            written = await call(client, "write-memory", **base, content="x", idempotency_key=bad_key)
            assert written == "INVALID_REQUEST"
        assert await call(client, "read-memory", **base) == "NOT_FOUND", "nothing was written"
        assert await call(client, "search-memory", namespace="errors", query="x", limit=101) == "INVALID_REQUEST"
        assert await call(client, "search-memory", namespace="errors", query="x", limit=0) == "INVALID_REQUEST"
        assert await call(client, "search-memory", namespace="errors", query="x", mode="odd") == "INVALID_REQUEST"
        semantic_search = await call(client, "search-memory", namespace="errors", query="x", mode="semantic")
        assert semantic_search == "SERVICE_UNAVAILABLE"
        arguments_with_secret = {**base, "content": "x", "metadata": {"deep": [{"apiKey": "s3"}]}}
        result = await client.call_tool("write-memory", arguments_with_secret)
        assert result.is_error
        assert "metadata.deep[0].apiKey" in result.content[0].text  # pyrefly: ignore[missing-attribute] - an error's content is text
        assert "s3" not in result.content[0].text  # pyrefly: ignore[not-iterable] - an error's content is text
        with pytest.raises(MCPError, match="Unknown tool"):
            await client.call_tool("drop-memory", {})


@requirement("memory_mcp.no-event-stream")
def test_a_get_for_an_event_stream_is_405_because_the_server_sends_no_events(service: Service) -> None:
    headers = {"Accept": "text/event-stream", "Authorization": "Bearer admin-key-7c1e"}
    with httpx.stream("GET", service.ready["mcp"] + "/mcp", headers=headers, timeout=200) as response:
        assert (response.status_code, response.headers["allow"]) == (405, "POST")


@requirement("memory_mcp.http-needs-bearer")
@pytest.mark.parametrize(
    "header", [None, "", "Bearer", "Bearer nonsense", "Basic YTpi", "Bearer a.b.c", "Bearer " + "x" * 9000]
)
def test_request_without_a_valid_token_is_unauthorized(service: Service, header: str | None) -> None:
    response = post(service, **({} if header is None else {"Authorization": header}))
    assert response.status_code == 401
    assert "resource_metadata=" in response.headers["www-authenticate"]
    assert "nonsense" not in response.text


@requirement("http.auth-one-key")
@pytest.mark.parametrize(("other", "status"), [("admin-key-7c1e", 200), ("reader-key-7c1e", 401)])
def test_a_request_with_two_different_tokens_is_unauthorized(service: Service, other: str, status: int) -> None:
    headers = [*ACCEPT.items(), ("Authorization", "Bearer admin-key-7c1e"), ("Authorization", f"Bearer {other}")]
    assert httpx.post(service.ready["mcp"] + "/mcp", json=CALL, headers=headers, timeout=200).status_code == status


@requirement("memory_mcp.token-checks", "memory_mcp.no-authorization-server")
def test_protected_resource_metadata_is_served_at_both_addresses(service: Service) -> None:
    metadata_url = re.search('resource_metadata="([^"]*)"', post(service).headers["www-authenticate"])
    assert metadata_url is not None
    for url in (metadata_url[1], service.ready["mcp"] + "/.well-known/oauth-protected-resource"):
        response = httpx.get(url, headers={"Origin": "https://inspector.example"})
        assert (response.status_code, response.headers["access-control-allow-origin"]) == (200, "*")
        assert response.json() == {
            "resource": service.ready["mcp"] + "/mcp",
            "scopes_supported": ["memory.read", "memory.write"],
            "bearer_methods_supported": ["header"],
            "resource_name": "Stentor memory",
        }


@requirement("memory_mcp.token-checks")
async def test_receipt_grants_only_its_namespaces_capabilities_and_tenant(service: Service) -> None:
    async with connect_client(service, lambda: create_receipt(service)) as client:
        assert (await call(client, "write-memory", namespace="team/a", key="k", content="x"))["version"] == 1
        assert await call(client, "read-memory", namespace="other", key="k") == "AUTHORITY_DENIED"
    async with connect_client(service, lambda: create_receipt(service, cap=("memory.read",))) as client:
        assert await call(client, "write-memory", namespace="team/a", key="k", content="y") == "AUTHORITY_DENIED"
        assert (await call(client, "read-memory", namespace="team/a", key="k"))["content"] == "x"
    async with connect_client(service, lambda: create_receipt(service, names={"tenant": "elsewhere"})) as client:
        assert await call(client, "read-memory", namespace="team/a", key="k") == "AUTHORITY_DENIED"
    assert '"by":"ann"' in denials(service.database)[-1]


@requirement("memory_mcp.token-checks")
@pytest.mark.parametrize(
    "claims", [{"names": {"aud": "another"}}, {"ago": 600}, {"ago": -600}], ids=["audience", "expired", "future"]
)
def test_receipt_for_another_audience_or_time_is_rejected(service: Service, claims: dict[str, Any]) -> None:
    assert post(service, Authorization=f"Bearer {create_receipt(service, **claims)}").status_code == 401


@requirement("memory_mcp.receipt-session")
@pytest.mark.parametrize("mode", MODES)
async def test_client_reuses_one_receipt_for_several_requests(service: Service, mode: str) -> None:
    """The unmodified official client sends the same token with initialize, with lists and with calls."""
    async with connect_client(service, create_receipt(service), mode) as client:
        assert (await client.list_tools()).tools
        assert (await call(client, "write-memory", namespace="team", key=f"s-{mode}", content="x"))["version"] == 1
        assert (await call(client, "read-memory", namespace="team", key=f"s-{mode}"))["content"] == "x"


@requirement("memory_mcp.receipt-session")
def test_receipt_is_rejected_from_a_second_client_address(service: Service) -> None:
    token = create_receipt(service)
    headers = {"Authorization": f"Bearer {token}", **ACCEPT}
    with httpx.Client(transport=httpx.HTTPTransport(local_address="127.0.0.2"), timeout=200) as second_client:
        statuses = [
            post(service, Authorization=f"Bearer {token}").status_code,
            second_client.post(service.ready["mcp"] + "/mcp", json=CALL, headers=headers).status_code,
            post(service, Authorization=f"Bearer {token}").status_code,
        ]
    assert statuses == [200, 401, 200]


def test_bound_receipt_needs_a_new_proof_for_each_request(service: Service) -> None:
    holder_key = generate()
    token = create_receipt(service, jkt=thumbprint(holder_key))
    body = json.dumps(CALL).encode()

    def send(content: bytes, **headers: str) -> int:
        request_headers = {**ACCEPT, "Authorization": f"Bearer {token}", "Content-Type": "application/json", **headers}
        return httpx.post(service.ready["mcp"] + "/mcp", content=content, headers=request_headers).status_code

    def proof(key: Any, path: str = "/mcp") -> dict[str, str]:
        return {"Receipt-Proof": prove(key, token, "POST", path, body, now=SystemClock().now())}

    assert send(body) == 401
    assert send(body, **proof(generate())) == 401
    assert send(body, **proof(holder_key, "/other")) == 401
    assert send(body + b" ", **proof(holder_key)) == 401
    used_proof = proof(holder_key)
    assert [send(body, **used_proof), send(body, **used_proof), send(body, **proof(holder_key))] == [200, 401, 200]


@requirement("memory_mcp.receipt-client")
@pytest.mark.parametrize("mode", MODES)
async def test_official_client_works_with_a_bound_receipt_and_receipt_auth(service: Service, mode: str) -> None:
    holder_key = generate()
    token = create_receipt(service, jkt=thumbprint(holder_key))
    async with connect_client(service, auth=ReceiptAuth(lambda: token, holder_key), mode=mode) as client:
        assert (await client.list_tools()).tools
        assert await call(client, "read-memory", namespace="team", key="none") == "NOT_FOUND"


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
def test_unknown_hosts_and_origins_are_rejected(service: Service, header: str, value: str, status: int) -> None:
    assert post(service, Authorization="Bearer admin-key-7c1e", **{header: value}).status_code == status
    assert post(service, Authorization="Bearer admin-key-7c1e", Origin=service.ready["mcp"]).status_code == 200


@requirement("memory_mcp.blank-evidence-denied")
async def test_denials_of_a_key_without_capabilities_are_in_the_run_log(service: Service) -> None:
    before = len(denials(service.database))
    async with connect_client(service, "blank-key-7c1e") as client:
        for tool in ("write-memory", "read-memory", "search-memory", "get-memory-status"):
            assert await call(client, tool, namespace="team") == "AUTHORITY_DENIED"
    assert len(denials(service.database)) == before + 4


@requirement("memory_mcp.gate-on-every-call")
async def test_agent_key_reaches_its_own_namespace_and_the_shared_one(service: Service) -> None:
    async with connect_client(service, "bob-key-7c1e") as client:
        for namespace in ("bob", "bob/notes", "shared"):
            assert (await call(client, "write-memory", namespace=namespace, key="k", content="x"))["version"] == 1
        for namespace in ("team", "bobby"):
            assert await call(client, "write-memory", namespace=namespace, key="k", content="x") == "AUTHORITY_DENIED"
    async with connect_client(service, "reader-key-7c1e") as client:
        assert await call(client, "write-memory", namespace="reader", key="k", content="x") == "AUTHORITY_DENIED"
    async with connect_client(service, "other-key-7c1e") as client:
        assert await call(client, "read-memory", namespace="bob", key="k") == "AUTHORITY_DENIED"


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
def test_invalid_or_oversized_body_is_rejected(service: Service, content: bytes, status: int) -> None:
    headers = {**ACCEPT, "Authorization": "Bearer admin-key-7c1e", "Content-Type": "application/json"}
    response = httpx.post(service.ready["mcp"] + "/mcp", content=content, headers=headers, timeout=200)
    assert response.status_code == status, response.text[:500]


def test_a_client_of_another_port_is_told_what_this_one_is(service: Service) -> None:
    answer = httpx.get(service.ready["mcp"] + "/api/v1/tasks", timeout=200)
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "NOT_FOUND")
    assert "this is the memory's MCP server, at /mcp" in answer.json()["error"]["message"]


def test_health_check_needs_no_token(service: Service) -> None:
    assert httpx.get(service.ready["mcp"] + "/health").json()["status"] == "ok"


def test_detailed_health_of_the_gateway_lists_the_mcp_server(service: Service) -> None:
    with service.client() as http:
        components = http.get("/api/v1/health/detailed").json()["components"]
    assert components["mcp_server"]["status"] == "available"


def test_second_server_on_a_data_folder_names_the_address_of_the_first(service: Service) -> None:
    process = forkserver.run_text(["mcp", "--http", "--data-dir", str(service.data_dir)], service.environ)
    assert process.returncode == 1
    assert service.ready["mcp"] in process.stderr


def test_client_is_from_the_official_mcp_package() -> None:
    assert Client.__module__.startswith("mcp.")


class EmptyTokenStorage:
    """The token storage of a client that never signed in."""

    async def get_tokens(self) -> None: ...
    async def set_tokens(self, tokens: object) -> None: ...
    async def get_client_info(self) -> None: ...
    async def set_client_info(self, client_info: object) -> None: ...


@requirement("memory_mcp.no-authorization-server")
async def test_client_that_tries_oauth_gets_the_bearer_token_hint(service: Service) -> None:
    """The unmodified client searches for an authorization server on this service only, and ends with an error."""
    requested_urls: list[str] = []

    async def record_url(request: httpx2.Request) -> None:
        requested_urls.append(str(request.url))

    async def fail_on_sign_in(*args: object) -> Any:
        raise AssertionError("the client was redirected to a sign-in page")

    client_metadata = OAuthClientMetadata(client_name="a", redirect_uris=[AnyUrl("http://localhost:3030/callback")])
    auth = OAuthClientProvider(
        service.ready["mcp"] + "/mcp",
        client_metadata,
        cast("Any", EmptyTokenStorage()),
        fail_on_sign_in,
        fail_on_sign_in,
    )
    async with httpx2.AsyncClient(auth=auth, trust_env=False, event_hooks={"request": [record_url]}) as http:
        with pytest.raises(OAuthRegistrationError, match="Authorization: Bearer"):
            await http.post(service.ready["mcp"] + "/mcp", json={})
    assert requested_urls
    assert all(url.startswith(service.ready["mcp"]) for url in requested_urls), requested_urls
