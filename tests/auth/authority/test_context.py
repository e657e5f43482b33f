"""What a context may do and reach."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stentor.auth.authority.context import AuthorityContext, covers, is_namespace, is_narrower, realm
from stentor.core.errors import AuthorityDenied
from tests.requirements import requirement


def context(**fields: Any) -> AuthorityContext:
    base: dict[str, Any] = {
        "principal": "ann",
        "tenant": "default",
        "namespaces": ("team/notes",),
        "capabilities": frozenset({"memory:read"}),
        "issuer": "stentor",
        "receipt_id": "r-1",
        "expires_at": None,
    }
    return AuthorityContext(**{**base, **fields})


BLANK = ["", " ", "\t\n", "\u00a0", "\u200b", "\u2028", "\x00", "\ufeff"]


@requirement("authority.blank-is-denied")
@pytest.mark.parametrize("text", BLANK)
@pytest.mark.parametrize("field", ["principal", "tenant"])
def test_blank_evidence_is_denied(field: str, text: str) -> None:
    with pytest.raises(AuthorityDenied, match=field):
        context(**{field: text})


@requirement("authority.blank-is-denied")
@pytest.mark.parametrize("capabilities", [[], *([text] for text in BLANK), ["memory:read", " "]])
def test_a_blank_set_of_capabilities_is_denied(capabilities: list[str]) -> None:
    with pytest.raises(AuthorityDenied, match="capabilities") as caught:
        context(capabilities=frozenset(capabilities))
    assert (caught.value.status, caught.value.code) == (403, "AUTHORITY_DENIED")


def test_only_a_granted_capability_may_be_used() -> None:
    asked = context(capabilities=frozenset({"memory:read", "*"}))
    assert asked.has_capability("memory:read")
    assert not any(
        asked.has_capability(other) for other in ("memory:write", "memory", "MEMORY:READ", "memory:read ", "")
    )


@requirement("authority.namespace-patterns")
@pytest.mark.parametrize(
    ("pattern", "namespace", "wanted"),
    [
        ("team/notes", "team/notes", True),
        ("team/notes", "team/notes/2026/may", True),
        ("team/notes", "team/notes2", False),
        ("team/notes", "team", False),
        ("team/notes", "team/other", False),
        ("team/notes", "Team/notes", False),
        ("team/notes", "team/notes/", False),
        ("team/notes", "/team/notes", False),
        ("team/notes", "team//notes", False),
        ("team/notes", "team/notes/../other", False),
        ("team/notes", "team/notes/./x", False),
        ("team/notes", "team/notes/ x", False),
        ("team/notes", "team/notes/x\\..\\y", False),
        ("team/notes", "team/notes/x\n", False),
        ("team/notes", "team/notes/x\u0000", False),
        ("team/notes", "team/notes/*", False),
        ("team/notes", "", False),
        ("caf\u00e9", "caf\u00e9/x", True),
        ("caf\u00e9", "cafe\u0301/x", False),
        ("*", "cafe\u0301/x", False),
        ("cafe\u0301", "cafe\u0301/x", False),
        ("*", "team/notes", True),
        ("*", "anything", True),
        ("*", "../x", False),
        ("*", "", False),
        ("*", "*", False),
        ("team/*", "team/notes", False),
        ("", "team", False),
        ("team/..", "team/..", False),
    ],
)
def test_a_pattern_covers_itself_and_what_lies_below(pattern: str, namespace: str, wanted: bool) -> None:
    assert covers(pattern, namespace) is wanted
    assert context(namespaces=("unrelated", pattern)).can_reach(namespace) is wanted


def test_without_namespaces_nothing_is_reached() -> None:
    assert not context(namespaces=()).can_reach("team")


NAMES = st.lists(st.sampled_from(["a", "b", "ab", "a b", "ä", "..", ".", "", "*"]), min_size=1, max_size=4).map(
    "/".join
)


@given(NAMES, NAMES)
def test_what_is_covered_lies_at_or_below_by_whole_segments(pattern: str, namespace: str) -> None:
    below = namespace.split("/")[: len(pattern.split("/"))] == pattern.split("/")
    both = is_namespace(namespace) and (pattern == "*" or is_namespace(pattern))
    assert covers(pattern, namespace) is (both and (pattern == "*" or below))


@given(st.lists(NAMES, max_size=3), st.lists(NAMES, max_size=3), NAMES)
def test_who_is_narrower_reaches_nothing_more(child: list[str], parent: list[str], namespace: str) -> None:
    if is_narrower(child, parent) and any(covers(pattern, namespace) for pattern in child):
        assert any(covers(pattern, namespace) for pattern in parent)


def test_all_is_narrower_than_all_only() -> None:
    assert is_narrower(["*"], ["*"])
    assert is_narrower(["a", "b/c"], ["*"])
    assert not is_narrower(["*"], ["a", "b"])


@given(st.text(max_size=20) | st.sampled_from(["vault", "vault/a", "vault:other", "vaults"]))
def test_any_text_is_a_namespace_or_not(text: str) -> None:
    # A vault and the guarded folders must be named by a grant; `*` does not cover them.
    assert context(namespaces=("*",)).can_reach(text) is (is_namespace(text) and not realm(text))
