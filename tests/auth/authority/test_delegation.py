"""Authority that is passed on only becomes less."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from joserfc.jwk import OKPKey

from stentor.auth.authority.claims import ReceiptClaims, ReceiptError
from stentor.auth.authority.delegation import delegate, require_narrower
from stentor.auth.authority.keys import thumbprint
from stentor.auth.authority.proof import ProofRequest, prove
from stentor.auth.authority.receipts import ReceiptVerifier, verify_chain
from stentor.core.errors import AuthorityRefused, InvalidRequest
from tests.auth.authority.forging import (
    AUDIENCE,
    CLAIMS,
    DROP,
    HOLDER,
    ISSUERS,
    NOW,
    OWN_KEY,
    SECOND_HOLDER,
    SECONDS,
    STRANGER,
    _without,
    bound,
    holds,
    jwk,
    receipt,
    seal,
    sha256,
)
from tests.auth.authority.test_context import context
from tests.requirements import requirement

ROOT = bound(ns=["team", "other"])


def child(
    of: str = ROOT,
    header: dict[str, Any] | None = None,
    key: OKPKey = HOLDER,
    to: OKPKey = SECOND_HOLDER,
    **claims: Any,
) -> str:
    """A good child of the parent, but for these fields."""
    base = {**CLAIMS, "iss": "ann", "sub": "ann/helper", "ns": ["team/notes"], "cap": ["memory:read"], "jti": "c-1"}
    base |= {"cnf": {"jkt": thumbprint(to)}, "parent": sha256(of)}
    head = {"alg": "Ed25519", "typ": "receipt+jwt", "jwk": jwk(key), **(header or {})}
    return seal(_without(head), _without({**base, **claims}), key)


def chain(*links: str) -> str:
    return "~".join(links)


@requirement("governance.delegated-authority-narrows")
def test_a_child_gives_a_narrower_context() -> None:
    found = verify_chain(chain(ROOT, child()), ISSUERS, AUDIENCE, NOW).context()
    assert (found.principal, found.tenant, found.issuer, found.receipt_id) == (
        "ann/helper",
        "default",
        "stentor",
        "c-1",
    )
    assert found.namespaces == ("team/notes",)
    assert found.capabilities == {"memory:read"}
    assert found.delegated_by == ("ann",)


CHILDREN: dict[str, dict[str, Any]] = {
    "one more capability": {"cap": ["memory:read", "memory:delete"]},
    "another namespace": {"ns": ["elsewhere"]},
    "a namespace above": {"ns": ["team", "*"]},
    "a namespace beside": {"ns": ["team2"]},
    "a longer life": {"exp": SECONDS + 201},
    "a begin before the parent's": {"iat": SECONDS - 11},
    "another tenant": {"tenant": "acme"},
    "another audience": {"aud": "other"},
    "another issuer": {"iss": "stentor"},
    "a principal of its own": {"sub": "root"},
    "the parent's principal": {"sub": "ann"},
    "a principal that only begins alike": {"sub": "anna/helper"},
    "a principal two steps down": {"sub": "ann/a/b"},
    "a principal without a name": {"sub": "ann/"},
    "a principal that climbs": {"sub": "ann/.."},
    "no key of its holder": {"cnf": DROP},
    "no parent": {"parent": DROP},
    "another parent": {"parent": sha256("x")},
    "the parent's hash in hex": {"parent": "0" * 64},
    "one more claim": {"extra": 1},
    "no capability": {"cap": []},
    "no namespace": {"ns": []},
    "signed by a stranger": {"key": STRANGER},
    "signed by a stranger under the holder's key": {"key": STRANGER, "header": {"jwk": jwk(HOLDER)}},
    "signed by the issuer": {"key": OWN_KEY},
    "signed by the next holder": {"key": SECOND_HOLDER},
    "a key id instead of a key": {"header": {"jwk": DROP, "kid": thumbprint(HOLDER)}},
    "a key and a key id": {"header": {"kid": thumbprint(HOLDER)}},
    "another algorithm": {"header": {"alg": "EdDSA"}},
    "the type of a proof": {"header": {"typ": "receipt-proof+jwt"}},
}


@requirement("governance.delegated-authority-narrows", "authority.holder-signs")
@pytest.mark.parametrize("fields", CHILDREN.values(), ids=CHILDREN)
def test_a_child_that_is_not_narrower_is_refused(fields: dict[str, Any]) -> None:
    assert holds(chain(ROOT, child()))
    assert not holds(chain(ROOT, child(**fields)))


@requirement("authority.holder-signs")
def test_a_receipt_that_names_no_key_cannot_be_passed_on() -> None:
    free = receipt(ns=["team"])
    assert holds(free)
    assert not holds(chain(free, child(free)))
    with pytest.raises(InvalidRequest, match="holder"):
        delegate(free, HOLDER, SECOND_HOLDER, "helper", now=NOW)


def test_a_chain_is_taken_whole_and_in_its_order() -> None:
    first = child()
    second = child(first, key=SECOND_HOLDER, to=HOLDER, iss="ann/helper", sub="ann/helper/b", jti="c-2")
    assert holds(chain(ROOT, first, second))
    for links in (
        (first,),
        (first, ROOT),
        (ROOT, second),
        (first, second),
        (ROOT, first, first),
        (ROOT, ROOT),
        (ROOT, second, first),
        (ROOT, first, second, second),
        (ROOT, first, ""),
        ("", ROOT),
        (bound(ns=["team"], jti="r-2"), first),
    ):
        assert not holds(chain(*links)), len(links)


def deep(hops: int) -> tuple[str, OKPKey]:
    """A chain of so many hops, made by its holders, and the key of the last."""
    found, key = ROOT, HOLDER
    for n in range(hops):
        following = OKPKey.generate_key("Ed25519")
        found = delegate(found, key, following, f"hop{n}", now=NOW)
        key = following
    return found, key


@requirement("governance.delegated-authority-narrows")
def test_authority_is_passed_on_four_times_at_most() -> None:
    found, key = deep(4)
    context = verify_chain(found, ISSUERS, AUDIENCE, NOW).context()
    assert context.delegated_by == ("ann", "ann/hop0", "ann/hop0/hop1", "ann/hop0/hop1/hop2")
    assert context.principal == "ann/hop0/hop1/hop2/hop3"
    with pytest.raises(InvalidRequest, match="4 times"):
        delegate(found, key, STRANGER, "hop4", now=NOW)
    last = found.rpartition("~")[2]
    fifth = child(last, key=key, iss=context.principal, sub=f"{context.principal}/x")
    assert not holds(chain(found, fifth))


THREE = deep(2)[0]


@given(st.integers(0, len(THREE) - 1), st.sampled_from("ABab01-_.~= \x00é"))
def test_any_other_character_in_a_chain_is_refused(at: int, other: str) -> None:
    assert holds(THREE[:at] + other + THREE[at + 1 :]) is (THREE[at] == other)


async def test_the_last_holder_proves_each_request_with_the_whole_chain(verifier: ReceiptVerifier) -> None:
    found, key = deep(2)
    for n in range(2):
        made = prove(key, found, "POST", "/mcp", str(n).encode(), now=NOW)
        context = await verifier.verify(found, ProofRequest("POST", "/mcp", str(n).encode(), made))
        assert context.principal == "ann/hop0/hop1"
    for wrong in (prove(HOLDER, found, "POST", "/mcp", now=NOW), prove(key, ROOT, "POST", "/mcp", now=NOW), None):
        with pytest.raises(AuthorityRefused):
            await verifier.verify(found, ProofRequest("POST", "/mcp", b"", wrong))


def test_a_child_expires_before_its_parent() -> None:
    made = delegate(ROOT, HOLDER, SECOND_HOLDER, "helper", lifetime=10, now=NOW)
    for seconds, wanted in ((19, True), (20, False), (100, False)):
        assert holds(made, NOW + seconds * 1_000_000) is wanted
        assert holds(ROOT, NOW + seconds * 1_000_000)


def test_a_child_lives_no_longer_than_its_parent() -> None:
    made = delegate(ROOT, HOLDER, SECOND_HOLDER, "helper", lifetime=10, now=NOW)
    assert verify_chain(made, ISSUERS, AUDIENCE, NOW).claims.exp == SECONDS + 10
    made = delegate(ROOT, HOLDER, SECOND_HOLDER, "helper", now=NOW)
    assert verify_chain(made, ISSUERS, AUDIENCE, NOW).claims.exp == SECONDS + 200


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({"capabilities": ("memory:delete",)}, "capability"),
        ({"namespaces": ("*",)}, "namespace"),
        ({"lifetime": 0}, "exp"),
        ({"name": "a/b"}, "principal"),
        ({"name": ""}, "principal"),
    ],
)
def test_a_hop_that_nobody_would_take_is_not_made(fields: dict[str, Any], wanted: str) -> None:
    with pytest.raises(InvalidRequest, match=wanted):
        delegate(ROOT, HOLDER, SECOND_HOLDER, **dict[str, Any](name="helper", now=NOW) | fields)
    with pytest.raises(InvalidRequest, match="holder"):
        delegate(ROOT, STRANGER, SECOND_HOLDER, "helper", now=NOW)


PATTERNS = st.lists(st.sampled_from(["*", "a", "a/b", "a/b/c", "ab", "b"]), min_size=1, max_size=3, unique=True)
CAPABILITIES = st.lists(st.sampled_from(["r", "w", "d"]), min_size=1, max_size=3, unique=True)
REACHED = ["a", "a/b", "a/b/c", "a/x", "ab", "b", "b/c", "z"]


@given(PATTERNS, PATTERNS, CAPABILITIES, CAPABILITIES)
def test_who_holds_a_child_can_do_nothing_that_its_parent_cannot(
    ns: list[str], parent_ns: list[str], cap: list[str], parent_cap: list[str]
) -> None:
    base: dict[str, Any] = {"aud": "x", "tenant": "t", "iat": 1, "exp": 2, "jti": "j", "jkt": "k"}
    parent = ReceiptClaims(iss="s", sub="ann", ns=tuple(parent_ns), cap=tuple(parent_cap), **base)
    asked = ReceiptClaims(iss="ann", sub="ann/x", ns=tuple(ns), cap=tuple(cap), **base)
    above, below = context_of(parent), context_of(asked)
    within = set(cap) <= set(parent_cap)
    try:
        require_narrower(asked, parent)
    except ReceiptError:
        assert not within or not all(pattern_within(pattern, parent_ns) for pattern in ns)
    else:
        assert within
        assert all(above.can_reach(name) for name in REACHED if below.can_reach(name))


def context_of(claims: ReceiptClaims) -> Any:
    return context(namespaces=claims.ns, capabilities=frozenset(claims.cap))


def pattern_within(pattern: str, parent: list[str]) -> bool:
    return "*" in parent or any(pattern == wide or pattern.startswith(f"{wide}/") for wide in parent)


@requirement("authority.uris-cross-stripped")
def test_the_principals_of_a_chain_cross_the_boundary_without_credentials() -> None:
    agent = "svc?token=hunter2"
    root = bound(ns=["team", "other"], sub=agent)
    found = verify_chain(chain(root, child(root, iss=agent, sub=f"{agent}/helper")), ISSUERS, AUDIENCE, NOW).context()
    assert found.delegated_by == ("svc",)
    assert "hunter2" not in repr(found)
