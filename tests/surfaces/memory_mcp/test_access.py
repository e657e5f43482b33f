"""Whom a bearer token stands for, before any request is served."""

from __future__ import annotations

from datetime import UTC, datetime

from mcp.server.auth.middleware.bearer_auth import BearerAuthBackend
from starlette.requests import HTTPConnection

from stentor.auth.api_keys import KeyRing
from stentor.auth.authority.context import AuthorityContext
from stentor.auth.authority.proof import ProofRequest
from stentor.cli.inspection import inspect_config
from stentor.surfaces.memory_mcp.access import BearerTokenVerifier
from tests.requirements import requirement

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)


class Accepting:
    """The boundary takes a receipt whose end is past, within the leeway for clocks."""

    async def verify(
        self, receipt: str, request: ProofRequest | None = None, session: str | None = None
    ) -> AuthorityContext:
        return AuthorityContext("ann", "default", ("team",), frozenset({"memory.read"}), "stentor", "1", LONG_AGO)


@requirement("memory_mcp.token-checks")
async def test_the_time_of_a_receipt_is_checked_by_the_boundary_alone_with_its_leeway() -> None:
    headers = [(b"authorization", b"Bearer a.b.c")]
    connection = HTTPConnection({"type": "http", "headers": headers})
    found = await BearerAuthBackend(BearerTokenVerifier(KeyRing({}), Accepting())).authenticate(connection)
    assert found is not None


@requirement("memory_mcp.access-checked-at-start")
def test_doctor_and_config_say_that_a_start_would_be_refused() -> None:
    key = {"SERVICE_API_KEY_BOB": "bob-key-7c1e:agent:read"}
    good = inspect_config({**key, "SERVICE_MEMORY_ACCESS_BOB": "team:r", "SERVICE_VAULTS": "alpha=/srv/a, beta=/srv/b"})
    assert good.problem is None
    assert "alpha=/srv/a, beta=/srv/b" in [setting.value for setting in good.settings]
    for wrong in ({"SERVICE_MEMORY_ACCESS_BOB": "team"}, {"SERVICE_MEMORY_ACCESS_ANN": "team:r"}):
        problem = inspect_config({**key, **wrong}).problem
        assert problem is not None
        assert problem.startswith(next(iter(wrong)))
