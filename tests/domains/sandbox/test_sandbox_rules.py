"""Allowlists: globs, hosts and rates. Pure; what is not named is denied."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stentor.core.clock import SECOND
from stentor.domains.registry.model import AllowedNetwork, AllowedTool, SandboxWhitelist
from stentor.domains.sandbox import model
from stentor.domains.sandbox.model import (
    Access,
    AccessDenial,
    check_access,
    is_path_allowed,
    normalize_path,
    take_token,
)
from tests.requirements import requirement

FILES = AllowedTool("files", ("notes/*.md", "src/**/*.py", "docs/**"), ("read", "write"))
WHITELIST = SandboxWhitelist(
    (FILES, AllowedTool("clock", (), ("read",))), AllowedNetwork(("api.example.com", "*.good.org"), (443,))
)


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("notes/a.md", True),
        ("notes/deep/a.md", False),
        ("notes/a.txt", False),
        ("src/a.py", True),
        ("src/x/y/a.py", True),
        ("src/x/y/a.pyc", False),
        ("docs/x/y", True),
        ("docs/../secret", False),
        ("notes/../../etc/a.md", False),
        ("./notes/a.md", False),
        ("notes//a.md", False),
        ("notes\\..\\a.md", False),
        ("docs/a\0b", False),
        ("/docs/a", False),
        ("docs/a\n", True),
        ("docs/..", False),
        ("", False),
    ],
)
def test_a_path_is_allowed_only_where_a_glob_says_so(path: str, allowed: bool) -> None:
    assert is_path_allowed(FILES, path) is allowed


@requirement("registry.authorize-fails-closed")
@given(st.lists(st.sampled_from(["..", ".", "", "a", "b.md", "*", "\\", "\0"]), min_size=1, max_size=6))
def test_no_path_that_could_mean_another_place_is_matched(parts: list[str]) -> None:
    anything = AllowedTool("any", ("**", "**/*", "../**", "*"), ("read",))
    path = "/".join(parts)
    if (len(parts) > 1 and {"..", ".", ""} & set(parts)) or {"\\", "\0", ".."} & set(parts):
        assert not is_path_allowed(anything, path)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("./notes/x.md", "notes/x.md"),
        ("notes//x.md", "notes/x.md"),
        ("notes/", "notes"),
        ("/shared/./a/", "/shared/a"),
        ("./", "."),
        ("notes/../secret", "notes/../secret"),
        ("./..", "./.."),
        ("//etc/passwd", "//etc/passwd"),
        ("", ""),
    ],
)
def test_a_path_is_brought_into_its_plain_form_unless_it_may_mean_another_place(written: str, meant: str) -> None:
    assert normalize_path(written) == meant


@pytest.mark.parametrize("pattern", ["**", "**/*", "*/etc/passwd", "**/passwd"])
def test_a_relative_glob_matches_no_absolute_path(pattern: str) -> None:
    assert not is_path_allowed(AllowedTool("t", (pattern,), ()), "/etc/passwd")
    assert not is_path_allowed(AllowedTool("t", ("/**",), ()), "//etc/passwd")
    assert is_path_allowed(AllowedTool("t", ("/etc/*",), ()), "/etc/passwd")


@given(st.text(max_size=30), st.text(max_size=30))
def test_any_text_is_a_glob_and_a_path_without_an_error(pattern: str, path: str) -> None:
    assert is_path_allowed(AllowedTool("t", (pattern,), ()), path) in (True, False)


def as_expression(glob: str) -> str:
    """The same glob for the library's engine, which tries again where it was wrong."""
    wild = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    parts = re.split(r"(\*\*/|\*\*|\*|\?)", glob)
    return "(?s:" + "".join(wild.get(part) or re.escape(part) for part in parts) + r")\Z"


@given(st.text("*?/ab", max_size=8), st.text("/ab*", max_size=8))
def test_a_glob_matches_what_an_expression_of_the_same_meaning_matches(pattern: str, path: str) -> None:
    assert model.glob_matches(pattern, path) is bool(re.match(as_expression(pattern), path))


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        ("notes/*-*-*.md", "notes/" + "-" * 4000),
        ("**/a/**/a/**/*.py", "a/" * 2000 + "x"),
        ("**/*a*/*b*/**/*c", "ab/" * 1300 + "x"),
    ],
)
def test_a_path_made_for_it_does_not_keep_a_glob_busy(pattern: str, path: str) -> None:
    """An engine that tries again takes from half a minute to hours for each of these."""
    assert not is_path_allowed(AllowedTool("t", (pattern,), ()), path)


DENIALS = [
    (Access("shell", "read"), "unauthorized_tool"),
    (Access("files", "delete", "docs/a"), "unauthorized_tool"),
    (Access("files", "read", "secret/a"), "unauthorized_path"),
    (Access("clock", "read", "docs/a"), "unauthorized_path"),
    (Access("clock", "read", host="evil.com", port=443), "unsafe_network"),
    (Access("clock", "read", host="api.example.com", port=80), "unsafe_network"),
    (Access("clock", "read", host="good.org", port=443), "unsafe_network"),
    (Access("clock", "read", host="notgood.org", port=443), "unsafe_network"),
]


@requirement("registry.authorize-denial-recorded")
@pytest.mark.parametrize(("access", "kind"), DENIALS)
def test_what_is_not_named_is_denied_with_its_type(access: Access, kind: str) -> None:
    judged = check_access(WHITELIST, access)
    assert isinstance(judged, AccessDenial)
    assert judged.type == kind


@requirement("registry.authorize-fails-closed")
@pytest.mark.parametrize(
    ("access", "kind"),
    [
        (Access("files", "read"), "unauthorized_path"),
        (Access("clock", "read", host="api.example.com"), "unsafe_network"),
        (Access("clock", "read", port=443), "unsafe_network"),
    ],
    ids=["no-path", "no-port", "no-host"],
)
def test_an_access_that_does_not_say_enough_is_denied(access: Access, kind: str) -> None:
    judged = check_access(WHITELIST, access)
    assert isinstance(judged, AccessDenial)
    assert judged.type == kind


@pytest.mark.parametrize(
    "access",
    [
        Access("files", "read", "docs/a"),
        Access("clock", "read"),
        Access("clock", "read", host="API.example.com.", port=443),
        Access("clock", "read", host="deep.good.org", port=443),
    ],
)
def test_what_is_named_is_allowed(access: Access) -> None:
    assert isinstance(check_access(WHITELIST, access), AllowedTool)


def test_a_folder_narrows_a_search_that_may_be_of_everything() -> None:
    access = Access("memory_search", "search", "team")
    free, limited = (AllowedTool("memory_search", paths, ("search",)) for paths in ((), ("other/**",)))
    assert isinstance(check_access(SandboxWhitelist((free,)), access), AllowedTool)
    assert isinstance(check_access(SandboxWhitelist((limited,)), access), AccessDenial)


def test_an_empty_allowlist_allows_nothing() -> None:
    assert isinstance(check_access(SandboxWhitelist(), Access("clock", "read")), AccessDenial)


def test_a_bucket_empties_and_fills_again_with_time() -> None:
    left = take_token(2, None, 0)
    assert left == 1
    left = take_token(2, left, 0)
    assert left == 0
    assert take_token(2, 0.0, 29 * SECOND) is None
    assert take_token(2, 0.0, 30 * SECOND) == 0
    assert take_token(2, 0.0, 3_600 * SECOND) == 1


@given(st.integers(1, 50), st.lists(st.integers(0, 10 * SECOND), min_size=1, max_size=120))
def test_no_pattern_of_calls_beats_a_full_bucket_and_its_rate(limit: int, gaps: list[int]) -> None:
    tokens: float | None = None
    passed = 0
    for gap in gaps:
        left = take_token(limit, tokens, gap)
        if left is not None:
            passed, tokens = passed + 1, left
        else:
            tokens = min(limit, (tokens or 0.0) + gap * limit / (60 * SECOND))
    assert passed <= limit + sum(gaps) * limit / (60 * SECOND) + 1e-6
