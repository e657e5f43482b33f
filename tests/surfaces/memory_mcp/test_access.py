"""The identity of a bearer token, and the access settings that are checked before the server starts."""

from __future__ import annotations

import gc
import weakref
from datetime import UTC, datetime
from typing import Any

from mcp.server.auth.middleware.bearer_auth import BearerAuthBackend
from starlette.requests import HTTPConnection

from stentor.auth.api_keys import KeyRing, digest_key
from stentor.auth.authority.context import AuthorityContext
from stentor.auth.authority.proof import ProofRequest
from stentor.auth.principal import Principal
from stentor.bootstrap.surfaces.memory_mcp import governed_memory
from stentor.cli.inspection import inspect_config
from stentor.surfaces.memory_mcp.access import BearerTokenVerifier
from stentor.surfaces.memory_mcp.tools import LocalToolCaller
from tests.conftest import MakeWorld
from tests.requirements import requirement

EXPIRED_AT = datetime(2020, 1, 1, tzinfo=UTC)


class AcceptingVerifier:
    """Accepts a receipt that expired within the clock leeway."""

    async def verify(
        self, receipt: str, request: ProofRequest | None = None, session: str | None = None
    ) -> AuthorityContext:
        return AuthorityContext("ann", "default", ("team",), frozenset({"memory.read"}), "stentor", "1", EXPIRED_AT)


@requirement("memory_mcp.token-checks")
async def test_bearer_backend_leaves_the_expiry_check_to_the_receipt_verifier() -> None:
    headers = [(b"authorization", b"Bearer a.b.c")]
    connection = HTTPConnection({"type": "http", "headers": headers})
    authenticated = await BearerAuthBackend(BearerTokenVerifier(KeyRing({}), AcceptingVerifier())).authenticate(
        connection
    )
    assert authenticated is not None


@requirement("memory_mcp.token-checks")
async def test_a_key_with_dots_is_a_key_where_receipts_are_accepted_too() -> None:
    ring = KeyRing({digest_key("a.dotted.key"): Principal("dana", "admin", frozenset({"read"}))})
    token = await BearerTokenVerifier(ring, AcceptingVerifier()).verify_token("a.dotted.key")
    assert token is not None
    assert token.context is not None
    assert token.context.principal == "dana"


@requirement("registry.stopped-key")
async def test_the_key_of_a_stopped_agent_reads_the_memory_and_writes_nothing() -> None:
    ring = KeyRing({digest_key("bob-key"): Principal("bob", "agent", frozenset({"read", "write"}))})
    for is_active, capabilities in ((True, {"memory.read", "memory.write"}), (False, {"memory.read"})):
        verifier = BearerTokenVerifier(ring, None, may_write=lambda principal, active=is_active: active)
        token = await verifier.verify_token("bob-key")
        assert token is not None
        assert token.context is not None
        assert token.context.capabilities == capabilities


@requirement("memory_mcp.access-checked-at-start")
def test_config_inspection_reports_invalid_memory_access() -> None:
    key = {"SERVICE_API_KEY_BOB": "bob-key-7c1e:agent:read"}
    inspection = inspect_config(
        {**key, "SERVICE_MEMORY_ACCESS_BOB": "team:r", "SERVICE_VAULTS": "alpha=/srv/a, beta=/srv/b"}
    )
    assert inspection.problem is None
    assert "alpha=/srv/a, beta=/srv/b" in [setting.value for setting in inspection.settings]
    for invalid_access in ({"SERVICE_MEMORY_ACCESS_BOB": "team"}, {"SERVICE_MEMORY_ACCESS_ANN": "team:r"}):
        problem = inspect_config({**key, **invalid_access}).problem
        assert problem is not None
        assert problem.startswith(next(iter(invalid_access)))


class Arguments(dict[str, Any]):
    """A dict that can be weakly referenced."""


async def test_the_arguments_of_a_denied_call_are_freed_without_the_garbage_collector(make_world: MakeWorld) -> None:
    tools = LocalToolCaller(governed_memory((await make_world(SERVICE_MEMORY="1")).kernel))
    bob = AuthorityContext("bob", "default", ("bob",), frozenset({"memory.write"}), "key", "", None)

    async def denied() -> weakref.ref[Arguments]:
        arguments = Arguments(namespace="ann", key="a", content="long")
        assert (await tools.call(bob, "write-memory", arguments)).is_error
        return weakref.ref(arguments)

    gc.disable()
    try:
        assert (await denied())() is None
    finally:
        gc.enable()
