"""No error, log line or answer holds a receipt, a proof or a key."""

from __future__ import annotations

import logging
import traceback

import pytest

from stentor.auth.authority.jws import parse
from stentor.auth.authority.proof import ProofRequest
from stentor.auth.authority.receipts import ReceiptVerifier
from stentor.core.errors import AuthorityRefused, StentorError
from stentor.core.security.redaction import RedactingFormatter, Redactor
from tests.auth.authority.forging import CLAIMS, HEADER, HOLDER, OWN_KEY, STRANGER, bound, jwk, receipt, seal
from tests.auth.authority.test_delegation import ROOT, chain, child
from tests.auth.authority.test_proof import BOUND, proof, request
from tests.requirements import requirement

CANARY = "canary-7f3a"
ATTEMPTS: dict[str, tuple[str, ProofRequest | None]] = {
    "no receipt": (CANARY, None),
    "not ASCII": (CANARY + "é", None),
    "a wrong signature": (receipt(sub=CANARY)[:-4] + "AAAA", None),
    "an unknown key": (receipt({"kid": CANARY}), None),
    "another audience": (receipt(aud=CANARY), None),
    "another issuer": (receipt(iss=CANARY), None),
    "an unknown claim": (seal(HEADER, {**CLAIMS, CANARY: CANARY}), None),
    "an unknown header": (receipt({CANARY: CANARY}), None),
    "broken claims": (seal(HEADER, CANARY.encode()), None),
    "a name twice": (seal(HEADER, f'{{"{CANARY}":1,"{CANARY}":2}}'.encode()), None),
    "a private key": (receipt({"jwk": OWN_KEY.as_dict(private=True)}), None),
    "expired": (receipt(sub=CANARY, iat=1, exp=2), None),
    "no proof": (bound(sub=CANARY), None),
    "a bad proof": (bound(sub=CANARY), request(CANARY)),
    "the proof of a stranger": (BOUND, request(proof(key=STRANGER, jti=CANARY))),
    "the proof of a private key": (BOUND, request(proof({"jwk": HOLDER.as_dict(private=True)}))),
    "another path": (BOUND, request(proof(htu=CANARY))),
    "a bad child": (chain(ROOT, child(sub=CANARY)), None),
    "a bad child's capability": (chain(ROOT, child(cap=[CANARY])), None),
    "the key of a stranger": (chain(ROOT, child(header={"jwk": {**jwk(STRANGER), "x": CANARY}})), None),
}


def secrets(text: str, sent: ProofRequest | None) -> list[str]:
    whole = [text, text[-40:], CANARY, str(OWN_KEY.as_dict(private=True)["d"]), str(HOLDER.as_dict(private=True)["d"])]
    return whole + ([sent.proof, sent.proof[-40:]] if sent and sent.proof else [])


@requirement("http.receipt-failures-sanitized")
@pytest.mark.parametrize(("text", "sent"), ATTEMPTS.values(), ids=ATTEMPTS)
async def test_every_refusal_is_the_same_and_tells_nothing(
    verifier: ReceiptVerifier, caplog: pytest.LogCaptureFixture, text: str, sent: ProofRequest | None
) -> None:
    with caplog.at_level(logging.DEBUG), pytest.raises(AuthorityRefused) as caught:
        await verifier.verify(text, sent)
    error = caught.value
    assert (error.status, error.code, error.message) == (401, "AUTHORITY_REFUSED", "The receipt was refused.")
    assert error.details is None
    assert error.__context__ is error.__cause__ is None
    assert [record.name for record in caplog.records if "rejected" in record.message] == [
        "stentor.auth.authority.receipts"
    ]
    told = caplog.text + "".join(traceback.format_exception(error)) + repr(error)
    assert [secret for secret in secrets(text, sent) if secret in told] == []


async def test_a_use_leaves_no_trace_of_the_receipt(
    verifier: ReceiptVerifier, caplog: pytest.LogCaptureFixture
) -> None:
    text = receipt(sub=CANARY)
    with caplog.at_level(logging.DEBUG):
        found = await verifier.verify(text)
        with pytest.raises(AuthorityRefused):
            await verifier.verify(text)
    assert found.principal == CANARY
    told = caplog.text + repr(found) + repr(parse(text))
    assert [part for part in text.split(".") if part in told] == []
    assert CANARY not in caplog.text


def test_a_receipt_that_gets_into_a_log_line_is_masked() -> None:
    formatter = RedactingFormatter(Redactor())
    for text in (receipt(), chain(ROOT, child()), proof()):
        record = logging.LogRecord("x", logging.INFO, "x", 1, "got %s from a caller", (text,), None)
        shown = formatter.format(record)
        assert not any(part in shown for link in text.split("~") for part in link.split("."))
        assert shown.endswith("from a caller")


def test_a_long_line_is_masked_in_no_long_time() -> None:
    assert Redactor().redact("eyJ" * 200_000) == "eyJ" * 200_000


def test_the_error_has_no_room_for_a_detail() -> None:
    with pytest.raises(TypeError):
        AuthorityRefused("because")  # pyrefly: ignore[bad-argument-count] - the test is that it takes none
    assert issubclass(AuthorityRefused, StentorError)
    assert set(CLAIMS) <= {"iss", "aud", "sub", "tenant", "ns", "cap", "iat", "exp", "jti"}
