"""The boundary as the service opens it: over its settings, its data folder and its database."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stentor.auth.authority import keys, receipts
from stentor.auth.authority.claims import MAX_LIFETIME_S, ReceiptClaims
from stentor.auth.authority.keys import thumbprint
from stentor.auth.authority.receipts import ReceiptVerifier
from stentor.bootstrap.surfaces.memory_mcp import open_receipt_verifier as open_verifier
from stentor.core import settings
from stentor.core.clock import SystemClock
from stentor.core.db import Database
from stentor.core.errors import AuthorityRefused, StartRefused
from stentor.core.security.redaction import Redactor
from stentor.core.settings import Settings
from tests.auth.authority.forging import CI_KEY, jwk, receipt
from tests.requirements import requirement


def chosen(folder: Path, **environ: str) -> Settings:
    return settings.load({"SERVICE_DATA_DIR": str(folder), **environ})


def made(folder: Path, audience: str = "stentor") -> str:
    names = {"aud": audience, "sub": "ann", "tenant": "acme"}
    claims = receipts.create_own_claims(names, ("*",), ("memory:read",), MAX_LIFETIME_S, now=SystemClock().now())
    return receipts.issue_receipt(claims, keys.ensure_signing_key(folder))


@requirement("authority.own-key", "http.receipt-gives-authority")
async def test_what_the_folders_key_signs_is_taken_by_the_service(sqlite: Database, tmp_path: Path) -> None:
    redactor = Redactor()
    verifier = open_verifier(chosen(tmp_path), sqlite, SystemClock(), redactor)
    context = await verifier.verify(made(tmp_path))
    assert (context.principal, context.tenant, context.issuer) == ("ann", "acme", "stentor")
    assert context.can_reach("any/where")
    secret = keys.signing_key_file(tmp_path).read_text()
    assert json.loads(secret)["d"] not in redactor.redact(secret)
    with pytest.raises(AuthorityRefused):
        await verifier.verify(made(tmp_path / "another"))


async def test_audience_and_issuers_come_from_the_settings(sqlite: Database, tmp_path: Path) -> None:
    (tmp_path / "issuers.json").write_text(
        json.dumps({"ci": {"issuer": "https://ci.example", "key": jwk(CI_KEY), "tenants": ["default"]}})
    )
    environ = {"SERVICE_AUTHORITY_ISSUERS": str(tmp_path / "issuers.json"), "SERVICE_AUTHORITY_AUDIENCE": "memory"}
    verifier: ReceiptVerifier = open_verifier(chosen(tmp_path, **environ), sqlite, SystemClock(), Redactor())
    assert (await verifier.verify(made(tmp_path, "memory"))).issuer == "stentor"
    now = SystemClock().now() // 1_000_000
    theirs = receipt({"kid": "ci"}, CI_KEY, iss="https://ci.example", aud="memory", iat=now, exp=now + 60)
    assert (await verifier.verify(theirs)).issuer == "https://ci.example"
    with pytest.raises(AuthorityRefused):
        await verifier.verify(made(tmp_path, "stentor"))


def test_a_broken_table_of_issuers_stops_the_start(sqlite: Database, tmp_path: Path) -> None:
    (tmp_path / "issuers.json").write_text("[]")
    with pytest.raises(StartRefused, match=r"issuers\.json"):
        open_verifier(
            chosen(tmp_path, SERVICE_AUTHORITY_ISSUERS=str(tmp_path / "issuers.json")),
            sqlite,
            SystemClock(),
            Redactor(),
        )


def test_a_changed_key_has_another_name(tmp_path: Path) -> None:
    first = keys.ensure_signing_key(tmp_path)
    keys.signing_key_file(tmp_path).rename(tmp_path / "old.key")
    assert thumbprint(keys.ensure_signing_key(tmp_path)) != thumbprint(first)


def test_claims_of_the_service_name_the_service() -> None:
    names = {"aud": "a", "sub": "s", "tenant": "t"}
    found = receipts.create_own_claims(names, ("n",), ("c",), 7, "k" * 43, now=5_999_999)
    assert found == ReceiptClaims("stentor", "a", "s", "t", ("n",), ("c",), 5, 12, found.jti, "k" * 43)
