"""What a receipt must be, and that everything else is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stentor.auth.authority.claims import CLOCK_LEEWAY_S
from stentor.auth.authority.keys import thumbprint
from stentor.auth.authority.receipts import create_own_claims, inspect_receipt, issue_receipt, verify_chain
from stentor.core.errors import AuthorityRefused, InvalidRequest
from tests.auth.authority.forging import (
    AUDIENCE,
    CI_KEY,
    CLAIMS,
    DROP,
    HEADER,
    HOLDER,
    ISSUERS,
    NOW,
    OWN_KEY,
    SECONDS,
    STRANGER,
    b64,
    bound,
    holds,
    jwk,
    raw,
    receipt,
    seal,
)
from tests.requirements import requirement

GOOD = receipt()
HEAD, BODY, SIGNATURE = GOOD.split(".")


@requirement("http.receipt-gives-authority")
def test_a_good_receipt_gives_a_context() -> None:
    found = inspect_receipt(GOOD, ISSUERS, AUDIENCE, NOW)
    assert (found.principal, found.tenant, found.issuer, found.receipt_id) == ("ann", "default", "stentor", "r-1")
    assert found.namespaces == ("team/notes",)
    assert found.capabilities == {"memory:read", "memory:write"}
    assert found.expires_at is not None
    assert found.expires_at.timestamp() == SECONDS + 200
    assert found.delegated_by == ()


def test_an_issued_receipt_is_taken() -> None:
    names = {"aud": AUDIENCE, "sub": "ann", "tenant": "anything"}
    made = issue_receipt(create_own_claims(names, ("*",), ("memory:read",), 300, thumbprint(HOLDER), now=NOW), OWN_KEY)
    found = verify_chain(made, ISSUERS, AUDIENCE, NOW)
    assert (found.claims.sub, found.claims.jkt, found.issuer) == ("ann", thumbprint(HOLDER), "stentor")
    assert found.claims.exp - found.claims.iat == 300


@pytest.mark.parametrize(
    ("names", "namespaces", "capabilities", "lifetime", "wanted"),
    [
        ({"sub": " "}, ("a",), ("c",), 10, "sub"),
        ({"tenant": ""}, ("a",), ("c",), 10, "tenant"),
        ({}, (), ("c",), 10, "ns"),
        ({}, ("a/../b",), ("c",), 10, "ns"),
        ({}, ("a", "a"), ("c",), 10, "ns"),
        ({}, ("a",), (), 10, "cap"),
        ({}, ("a",), ("c",), 301, "exp"),
        ({}, ("a",), ("c",), 0, "exp"),
        ({}, tuple(f"{n}{'x' * 200}" for n in range(32)), ("c",), 10, "too long"),
    ],
)
def test_a_receipt_that_nobody_would_take_is_not_issued(
    names: dict[str, str], namespaces: tuple[str, ...], capabilities: tuple[str, ...], lifetime: int, wanted: str
) -> None:
    whole = {"aud": AUDIENCE, "sub": "ann", "tenant": "default", **names}
    with pytest.raises(InvalidRequest, match=wanted):
        issue_receipt(create_own_claims(whole, namespaces, capabilities, lifetime, now=NOW), OWN_KEY)


def unsigned(header: Any, claims: Any = CLAIMS, signature: str = SIGNATURE) -> str:
    return f"{b64(json.dumps(header).encode())}.{b64(json.dumps(claims).encode())}.{signature}"


JSON_FORM = json.dumps({"payload": BODY, "protected": HEAD, "signature": SIGNATURE})
FORMS = {
    "nothing": "",
    "a blank": " ",
    "no signature": f"{HEAD}.{BODY}.",
    "no signature and no dot": f"{HEAD}.{BODY}",
    "no payload": f"{HEAD}..{SIGNATURE}",
    "no payload and no dot": f"{HEAD}.{SIGNATURE}",
    "no header": f".{BODY}.{SIGNATURE}",
    "no header and no dot": f"{BODY}.{SIGNATURE}",
    "a payload alone": BODY,
    "dots alone": "..",
    "one more empty part": f"{GOOD}.",
    "one more part": f"{GOOD}.foo",
    "five parts, as of a JWE": f"{HEAD}.{BODY}.{SIGNATURE}.{BODY}.{SIGNATURE}",
    "JSON serialization": JSON_FORM,
    "general JSON serialization": json.dumps({"payload": BODY, "signatures": [{"protected": HEAD}]}),
    "a blank in front": f" {GOOD}",
    "a line break behind": f"{GOOD}\n",
    "a line break inside": f"{HEAD}.\n{BODY}.{SIGNATURE}",
    "padding": f"{HEAD}.{BODY}.{SIGNATURE}==",
    "a NUL": f"{GOOD}\x00",
    "letters that are not ASCII": f"{HEAD}.{BODY}.{SIGNATURE[:-1]}é",
    "plain base64": f"{HEAD}.{BODY}.{SIGNATURE[:-2]}+/",
    "bits behind the end of the signature": f"{HEAD}.{BODY}.{SIGNATURE[:-1]}{chr(ord(SIGNATURE[-1]) + 1)}",
    "a signature that is too short": f"{HEAD}.{BODY}.{SIGNATURE[:-2]}",
    "a signature with more behind it": f"{HEAD}.{BODY}.{SIGNATURE}AA",
    "another payload": f"{HEAD}.{b64(json.dumps({**CLAIMS, 'sub': 'eve'}).encode())}.{SIGNATURE}",
    "another header": f"{b64(json.dumps({**HEADER, 'x': 1}).encode())}.{BODY}.{SIGNATURE}",
    "detached payload": f"{HEAD}..{SIGNATURE}",
    "too long": receipt(sub="a", extra="x" * 5000),
    "a megabyte": "A" * 1_000_000,
    "a megabyte of joints": "~" * 1_000_000,
    "not text": None,
    "bytes": GOOD.encode(),
}


@requirement("authority.form-is-strict")
@pytest.mark.parametrize("text", FORMS.values(), ids=FORMS)
def test_what_is_not_a_compact_jws_is_refused(text: Any) -> None:
    assert not holds(text)


HEADERS: dict[str, Any] = {
    "alg none": {"alg": "none"},
    "alg None": {"alg": "None"},
    "alg null": {"alg": None},
    "alg of another curve": {"alg": "Ed448"},
    "the older alg": {"alg": "EdDSA"},
    "alg in small letters": {"alg": "ed25519"},
    "alg HS256": {"alg": "HS256"},
    "alg ES256": {"alg": "ES256"},
    "alg RS256": {"alg": "RS256"},
    "alg a list": {"alg": ["Ed25519"]},
    "no alg": {"alg": DROP},
    "no typ": {"typ": DROP},
    "typ JWT": {"typ": "JWT"},
    "typ at+jwt": {"typ": "at+jwt"},
    "typ of a proof": {"typ": "receipt-proof+jwt"},
    "typ in capitals": {"typ": "RECEIPT+JWT"},
    "typ with its prefix": {"typ": "application/receipt+jwt"},
    "no kid": {"kid": DROP},
    "another kid": {"kid": "ci-2"},
    "kid of another issuer": {"kid": "ci-1"},
    "kid a number": {"kid": 1},
    "kid a list": {"kid": [HEADER["kid"]]},
    "kid an object": {"kid": {}},
    "kid a path": {"kid": "../../dev/null"},
    "crit": {"crit": ["exp"]},
    "crit, empty": {"crit": []},
    "b64 false": {"b64": False, "crit": ["b64"]},
    "jku": {"jku": "https://evil.example/jwks"},
    "jwk": {"jwk": jwk(STRANGER)},
    "our own jwk": {"jwk": jwk(OWN_KEY)},
    "x5u": {"x5u": "https://evil.example/cert"},
    "x5c": {"x5c": ["MIIB"]},
    "x5t": {"x5t": "abc"},
    "cty": {"cty": "JWT"},
    "zip": {"zip": "DEF"},
    "enc": {"enc": "A128GCM"},
    "unknown": {"unknown": 1},
}


@requirement("authority.header-is-exact", "http.receipt-lifetime")
@pytest.mark.parametrize("fields", HEADERS.values(), ids=HEADERS)
def test_a_header_with_other_fields_is_refused_though_its_signature_holds(fields: dict[str, Any]) -> None:
    assert not holds(receipt(fields))


def test_a_key_in_the_header_is_never_used() -> None:
    assert not holds(receipt({"jwk": jwk(STRANGER)}, STRANGER))
    assert not holds(receipt({"jwk": jwk(STRANGER), "kid": DROP}, STRANGER))
    assert not holds(unsigned({**HEADER, "alg": "none"}, signature=""))
    assert not holds(unsigned({**HEADER, "alg": "none"}))


BODIES: dict[str, bytes] = {
    "not JSON": b"foo",
    "empty": b"",
    "an array": b"[]",
    "a text": b'"x"',
    "null": b"null",
    "a number": b"1",
    "not UTF-8": b'{"iss":"\xff"}',
    "UTF-16": json.dumps(CLAIMS).encode("utf-16"),
    "a byte order mark": b"\xef\xbb\xbf" + json.dumps(CLAIMS).encode(),
    "NaN": json.dumps({**CLAIMS, "exp": float("nan")}).encode(),
    "infinity": json.dumps({**CLAIMS, "exp": float("inf")}).encode(),
    "a huge number": json.dumps(CLAIMS).replace(str(SECONDS + 200), "1" + "0" * 400).encode(),
    "a comment": json.dumps(CLAIMS).replace("{", "{/**/", 1).encode(),
    "a comma at the end": json.dumps(CLAIMS).replace("}", ",}").encode(),
    "two values": json.dumps(CLAIMS).encode() + b"{}",
    "deep": b"[" * 1500 + b"]" * 1500,
    "a name twice": json.dumps(CLAIMS).replace("{", '{"sub":"eve",', 1).encode(),
    "a name twice, once escaped": json.dumps(CLAIMS).replace("{", '{"\\u0073ub":"eve",', 1).encode(),
    "a name twice inside": json.dumps({**CLAIMS, "cnf": 0}).replace('"cnf": 0', '"cnf":{"jkt":"a","jkt":"b"}').encode(),
    "half a surrogate pair": json.dumps({**CLAIMS, "sub": "\ud800"}).encode(),
}


@requirement("authority.form-is-strict")
@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_claims_that_are_not_one_strict_object_are_refused(body: bytes) -> None:
    assert not holds(seal(HEADER, body))


def test_a_header_with_a_name_twice_is_refused() -> None:
    twice = json.dumps(HEADER).replace("{", '{"alg":"none",', 1).encode()
    assert not holds(seal(twice, CLAIMS))
    assert holds(seal(json.dumps(HEADER, indent=1).encode(), CLAIMS))


@requirement("authority.claims-are-exact")
@pytest.mark.parametrize("name", CLAIMS)
def test_every_claim_is_needed(name: str) -> None:
    assert not holds(receipt(**{name: DROP}))


WRONG_TYPES: list[Any] = [
    None,
    True,
    False,
    0,
    -1,
    1.5,
    float(SECONDS),
    "",
    " ",
    "\x00",
    [],
    {},
    [None],
    [1],
    [[]],
    [""],
    ["a", "a"],
]
"""Wrong for every claim; a few would be right for one, and are taken out there."""


@requirement("authority.claims-are-exact")
@pytest.mark.parametrize("value", WRONG_TYPES, ids=repr)
@pytest.mark.parametrize("name", [*CLAIMS, "cnf", "parent"])
def test_a_claim_of_another_type_is_refused(name: str, value: Any) -> None:
    assert not holds(receipt(**{name: value}))


WRONG: dict[str, dict[str, Any]] = {
    "another audience": {"aud": "stentor2"},
    "an audience among others": {"aud": ["stentor", "other"]},
    "an audience in a list": {"aud": ["stentor"]},
    "an audience in capitals": {"aud": "Stentor"},
    "another issuer": {"iss": "https://ci.example"},
    "an unknown issuer": {"iss": "eve"},
    "a principal with a line break": {"sub": "ann\nroot"},
    "a principal with blanks around": {"sub": " ann"},
    "a principal that nobody sees": {"sub": "\u200b"},
    "a principal that turns the line": {"sub": "ann\u202egro.evil"},
    "a principal that is too long": {"sub": "a" * 256},
    "a namespace that climbs": {"ns": ["team/../other"]},
    "a namespace with a wildcard inside": {"ns": ["team/*"]},
    "a namespace that is absolute": {"ns": ["/team"]},
    "a namespace twice": {"ns": ["a", "a"]},
    "too many namespaces": {"ns": [f"n{n}" for n in range(33)]},
    "namespaces as text": {"ns": "team/notes"},
    "a capability twice": {"cap": ["a", "a"]},
    "a blank capability": {"cap": ["a", "\u00a0"]},
    "too many capabilities": {"cap": [f"c{n}" for n in range(33)]},
    "capabilities as text": {"cap": "memory:read"},
    "expired": {"iat": SECONDS - 300, "exp": SECONDS - CLOCK_LEEWAY_S},
    "from the future": {"iat": SECONDS + CLOCK_LEEWAY_S + 1, "exp": SECONDS + 100},
    "longer than five minutes": {"iat": SECONDS, "exp": SECONDS + 301},
    "ends when it begins": {"iat": SECONDS, "exp": SECONDS},
    "ends before it begins": {"iat": SECONDS, "exp": SECONDS - 1},
    "a time as text": {"exp": str(SECONDS + 200)},
    "a time in milliseconds": {"iat": SECONDS * 1000, "exp": SECONDS * 1000 + 200},
    "an id that is too long": {"jti": "x" * 129},
    "nbf": {"nbf": SECONDS},
    "a claim of another standard": {"scope": "admin"},
    "an API key": {"api_key": "x"},
    "a parent": {"parent": "A" * 43},
    "a holder without a thumbprint": {"cnf": {}},
    "a holder's whole key": {"cnf": {"jwk": jwk(HOLDER)}},
    "a holder's key and more": {"cnf": {"jkt": thumbprint(HOLDER), "kid": "x"}},
    "a thumbprint that is too short": {"cnf": {"jkt": "A" * 42}},
    "a thumbprint of another type": {"cnf": {"jkt": 1}},
}


@requirement("authority.claims-are-exact", "http.receipt-lifetime")
@pytest.mark.parametrize("claims", WRONG.values(), ids=WRONG)
def test_a_claim_with_another_value_is_refused(claims: dict[str, Any]) -> None:
    assert not holds(receipt(**claims))


@requirement("authority.clock-leeway")
@pytest.mark.parametrize(
    ("iat", "exp", "wanted"),
    [
        (0, 300, True),
        (CLOCK_LEEWAY_S, 60, True),
        (CLOCK_LEEWAY_S + 1, 60, False),
        (-100, -CLOCK_LEEWAY_S + 1, True),
        (-100, -CLOCK_LEEWAY_S, False),
        (-300, 0, True),
    ],
)
def test_the_clocks_may_differ_by_the_leeway(iat: int, exp: int, wanted: bool) -> None:
    assert holds(receipt(iat=SECONDS + iat, exp=SECONDS + exp)) is wanted


@requirement("authority.issuer-tenants")
def test_an_issuer_names_only_its_own_tenants() -> None:
    ci: dict[str, Any] = {"iss": "https://ci.example"}
    assert holds(receipt({"kid": "ci-1"}, CI_KEY, **ci))
    assert holds(receipt({"kid": "ci-1"}, CI_KEY, tenant="acme", **ci))
    assert not holds(receipt({"kid": "ci-1"}, CI_KEY, tenant="other", **ci))
    assert not holds(receipt({"kid": "ci-1"}, CI_KEY))
    assert not holds(receipt({"kid": "ci-1"}, OWN_KEY, **ci))
    assert holds(receipt(tenant="any-other"))


ORDER = 2**252 + 27742317777372353535851937790883648493
SPECIAL = [0, 1, ORDER - 1, ORDER, ORDER + 1, 2**255 - 19 - 1, 2**255 - 19, 2**255 - 1, 2**256 - 1]


@requirement("authority.form-is-strict")
@pytest.mark.parametrize("s", SPECIAL)
@pytest.mark.parametrize("r", SPECIAL)
def test_a_signature_of_special_values_is_refused(r: int, s: int) -> None:
    signature = r.to_bytes(32, "little") + s.to_bytes(32, "little")
    assert not holds(f"{HEAD}.{BODY}.{b64(signature)}")


def test_a_signature_has_one_form_only() -> None:
    signature = raw(OWN_KEY).sign(f"{HEAD}.{BODY}".encode())
    s = int.from_bytes(signature[32:], "little")
    assert holds(f"{HEAD}.{BODY}.{b64(signature)}")
    assert not holds(f"{HEAD}.{BODY}.{b64(signature[:32] + (s + ORDER).to_bytes(32, 'little'))}")
    assert not holds(f"{HEAD}.{BODY}.{b64(signature[32:] + signature[:32])}")


@given(st.integers(0, len(GOOD) - 1), st.sampled_from("ABab01-_.~=+ \n\x00é"))
def test_any_other_character_at_any_place_is_refused(at: int, other: str) -> None:
    assert holds(GOOD[:at] + other + GOOD[at + 1 :]) is (GOOD[at] == other)


@given(st.text() | st.binary().map(b64) | st.lists(st.binary(max_size=40).map(b64), max_size=6).map(".".join))
def test_any_text_is_refused_with_the_one_error(text: str) -> None:
    with pytest.raises(AuthorityRefused) as caught:
        inspect_receipt(text, ISSUERS, AUDIENCE, NOW)
    assert (caught.value.message, caught.value.details) == ("The receipt was refused.", None)
    assert caught.value.__context__ is None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.sampled_from([*CLAIMS, "cnf", "parent"]), JSON)
def test_any_value_of_any_claim_is_taken_whole_or_refused(name: str, value: Any) -> None:
    text = receipt(**{name: value})
    if holds(text):
        found = inspect_receipt(text, ISSUERS, AUDIENCE, NOW)
        assert name not in ("aud", "iss", "parent") or value == CLAIMS.get(name)
        assert found.principal.strip()
        assert found.capabilities


PLAIN = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=20)
PATTERNS = st.lists(
    st.sampled_from(["*", "a", "a/b", "ä/ö", "a b/c", "team/2026"]), min_size=1, max_size=5, unique=True
)


@given(PLAIN, PLAIN, PATTERNS, st.lists(PLAIN, min_size=1, max_size=5, unique=True), st.integers(1, 300))
def test_what_is_issued_is_taken_and_says_the_same(
    principal: str, tenant: str, namespaces: list[str], capabilities: list[str], lifetime: int
) -> None:
    names = {"aud": AUDIENCE, "sub": principal, "tenant": tenant}
    claims = create_own_claims(names, tuple(namespaces), tuple(capabilities), lifetime, now=NOW)
    assert verify_chain(issue_receipt(claims, OWN_KEY), ISSUERS, AUDIENCE, NOW).claims == claims


def test_a_bound_receipt_says_whose_it_is() -> None:
    assert verify_chain(bound(), ISSUERS, AUDIENCE, NOW).claims.jkt == thumbprint(HOLDER)


@requirement("authority.uris-cross-stripped")
def test_names_that_are_addresses_cross_the_boundary_without_their_credentials() -> None:
    agent = "https://ann:hunter2@agents.example/ann?team=7&access_token=hunter2#key=hunter2"
    found = inspect_receipt(
        receipt(sub=agent, jti="https://x:hunter2@log.example/r-1?sig=hunter2"), ISSUERS, AUDIENCE, NOW
    )
    assert found.principal == "https://agents.example/ann?team=7"
    assert found.receipt_id == "https://log.example/r-1"
    assert "hunter2" not in repr(found)


@requirement("authority.uris-cross-stripped")
def test_a_name_that_is_nothing_but_a_credential_is_refused() -> None:
    assert not holds(receipt(sub="?access_token=hunter2"))
