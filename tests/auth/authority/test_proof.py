"""A receipt that names a key is good for who has the key, once per proof."""

from __future__ import annotations

from typing import Any

import pytest

from stentor.auth.authority.proof import MAX_AGE_S, ProofRequest, prove
from stentor.auth.authority.receipts import ReceiptVerifier
from stentor.core.errors import AuthorityRefused
from stentor.testing import FixedClock
from tests.auth.authority.forging import (
    DROP,
    HOLDER,
    NOW,
    SECONDS,
    STRANGER,
    _without,
    bound,
    jwk,
    receipt,
    seal,
    sha256,
)
from tests.requirements import requirement

BODY = b'{"x":1}'
BOUND = bound()


def proof(header: dict[str, Any] | None = None, key: Any = HOLDER, for_: str = BOUND, **claims: Any) -> str:
    head = {"alg": "Ed25519", "typ": "receipt-proof+jwt", "jwk": jwk(key), **(header or {})}
    base = {"jti": "p-1", "iat": SECONDS, "htm": "POST", "htu": "/mcp", "digest": sha256(BODY), "receipt": sha256(for_)}
    return seal(_without(head), _without({**base, **claims}), key)


def request(text: str | None, method: str = "POST", path: str = "/mcp", body: bytes = BODY) -> ProofRequest:
    return ProofRequest(method, path, body, text)


async def taken(by: ReceiptVerifier, text: str, sent: ProofRequest | None) -> bool:
    try:
        await by.verify(text, sent)
    except AuthorityRefused:
        return False
    return True


@requirement("authority.proof-of-possession")
async def test_a_bound_receipt_may_be_presented_again_with_new_proofs(verifier: ReceiptVerifier) -> None:
    for n in range(3):
        found = await verifier.verify(BOUND, request(proof(jti=f"p-{n}")))
        assert found.principal == "ann"
    assert not await taken(verifier, BOUND, request(proof(jti="p-1")))


async def test_the_proof_that_a_client_makes_is_taken(verifier: ReceiptVerifier) -> None:
    for path in ("/mcp", "/mcp?x=1"):
        made = prove(HOLDER, BOUND, "POST", path, BODY, now=NOW)
        assert await taken(verifier, BOUND, request(made, path=path))
        assert not await taken(verifier, BOUND, request(made, path=path))


@requirement("authority.proof-of-possession")
@pytest.mark.parametrize("sent", [None, request(None), request("")], ids=["no request", "no proof", "an empty proof"])
async def test_a_bound_receipt_alone_is_worth_nothing(verifier: ReceiptVerifier, sent: ProofRequest | None) -> None:
    assert not await taken(verifier, BOUND, sent)


REQUESTS = {
    "another method": {"method": "GET"},
    "a method in small letters": {"method": "post"},
    "another path": {"path": "/mcp/"},
    "another query": {"path": "/mcp?x=1"},
    "another body": {"body": b'{"x":2}'},
    "no body": {"body": b""},
}


@requirement("authority.proof-of-possession")
@pytest.mark.parametrize("other", REQUESTS.values(), ids=REQUESTS)
async def test_a_proof_is_for_one_request(verifier: ReceiptVerifier, other: dict[str, Any]) -> None:
    assert not await taken(verifier, BOUND, request(proof(), **other))
    assert await taken(verifier, BOUND, request(proof()))


PROOFS: dict[str, dict[str, Any]] = {
    "signed by another key": {"key": STRANGER},
    "signed by another key under the holder's": {"key": STRANGER, "header": {"jwk": jwk(HOLDER)}},
    "a private key in the header": {"header": {"jwk": HOLDER.as_dict(private=True)}},
    "a key with an id": {"header": {"jwk": {**jwk(HOLDER), "kid": "x"}}},
    "no key": {"header": {"jwk": DROP}},
    "a kid": {"header": {"kid": "x"}},
    "a key as text": {"header": {"jwk": "x"}},
    "the type of a receipt": {"header": {"typ": "receipt+jwt"}},
    "another algorithm": {"header": {"alg": "EdDSA"}},
    "for another receipt": {"for_": receipt()},
    "too old": {"iat": SECONDS - MAX_AGE_S - 11},
    "from the future": {"iat": SECONDS + 11},
    "a time as text": {"iat": str(SECONDS)},
    "a blank id": {"jti": " "},
    "no id": {"jti": DROP},
    "no method": {"htm": DROP},
    "no path": {"htu": DROP},
    "no digest": {"digest": DROP},
    "an empty digest": {"digest": ""},
    "a digest of another type": {"digest": 1},
    "no receipt": {"receipt": DROP},
    "one more claim": {"nonce": "x"},
}


@requirement("authority.proof-of-possession")
@pytest.mark.parametrize("fields", PROOFS.values(), ids=PROOFS)
async def test_any_other_proof_is_refused(verifier: ReceiptVerifier, fields: dict[str, Any]) -> None:
    assert not await taken(verifier, BOUND, request(proof(**fields)))
    assert await taken(verifier, BOUND, request(proof()))


@pytest.mark.parametrize("text", ["x", "a.b.c", BOUND, f"{proof()}.", f" {proof()}", "~" * 9999], ids=range(6))
async def test_what_is_no_proof_is_refused(verifier: ReceiptVerifier, text: str) -> None:
    assert not await taken(verifier, BOUND, request(text))


@pytest.mark.parametrize("age", [-10, 0, MAX_AGE_S, MAX_AGE_S + 10])
async def test_a_proof_is_fresh_for_a_minute(verifier: ReceiptVerifier, age: int) -> None:
    assert await taken(verifier, BOUND, request(proof(iat=SECONDS - age)))


async def test_a_proof_is_remembered_for_as_long_as_it_would_be_taken(
    verifier: ReceiptVerifier, clock: FixedClock
) -> None:
    sent = request(proof(iat=SECONDS + 10))
    assert await taken(verifier, BOUND, sent)
    for _ in range(17):
        clock.advance(seconds=5)
        assert not await taken(verifier, BOUND, sent)


async def test_a_proof_beside_a_receipt_that_names_no_key_is_refused(verifier: ReceiptVerifier) -> None:
    free = receipt()
    assert not await taken(verifier, free, request(proof(for_=free)))
    assert await taken(verifier, free, request(None))


async def test_a_receipt_is_no_proof_and_a_proof_no_receipt(verifier: ReceiptVerifier) -> None:
    assert not await taken(verifier, proof(), request(proof()))
    assert not await taken(verifier, BOUND, request(BOUND))


def test_a_request_does_not_show_its_proof() -> None:
    assert proof() not in repr(request(proof()))
