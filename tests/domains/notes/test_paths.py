"""Paths that a vault accepts, and those that it refuses in every spelling."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stentor_vault.notes import paths
from stentor_vault.notes.paths import InvalidPath

REFUSED = [
    "",
    "/",
    "/etc/passwd",
    "..",
    "../x.md",
    "a/../../x.md",
    "a/./b.md",
    "a//b.md",
    "a/",
    "a\\b.md",
    "..\\x.md",
    "a\0b.md",
    "a\nb.md",
    "a\x7f.md",
    ".obsidian/app.json",
    "a/.git/config",
    ".hidden.md",
    "\ud800.md",
    "x" * 256,
    "ä" * 128,
    "a/" * 600 + "b.md",
]


UNPORTABLE = [
    *["C:", "c:x.md", "CON", "con.md", "Lpt1.txt", "nul.tar.gz", "COM¹.md", "end.", "end "],
    *["a?.md", 'a".md', "a|b.md", "a<b>.md", "a*.md"],
]


@pytest.mark.parametrize("name", UNPORTABLE)
def test_a_name_that_some_system_cannot_have_is_taken_but_not_for_new_notes(name: str) -> None:
    assert paths.normalize_path(f"a/{name}/b.md") == f"a/{name}/b.md"
    assert paths.find_portability_problem(name) is not None


@pytest.mark.parametrize("path", REFUSED)
def test_what_no_vault_may_hold_is_refused_with_a_reason(path: str) -> None:
    with pytest.raises(InvalidPath) as error:
        paths.normalize_path(path)
    assert error.value.status == 400
    error.value.message.encode()  # shows no half character


def test_a_path_that_is_too_long_only_in_nfc_is_refused_too() -> None:
    path = "/".join(["\u0958" * 42] * 23)
    assert (len(path), len(unicodedata.normalize("NFC", path))) == (988, 1954)
    assert not paths.is_valid_path(path)


@pytest.mark.parametrize(
    "path", ["a.md", "a/b c.md", "ä/日本語.md", "console.md", "a..b.md", "x" * 255, "100%.md", "%2e%2e.md"]
)
def test_what_every_system_can_hold_is_taken_as_it_is(path: str) -> None:
    assert paths.normalize_path(path) == path
    assert not any(map(paths.find_portability_problem, path.split("/")))


def test_decomposed_letters_are_composed() -> None:
    assert paths.normalize_path(unicodedata.normalize("NFD", "Übung/é.md")) == "Übung/é.md"


def test_the_root_is_a_folder_and_a_slash_at_its_end_is_allowed() -> None:
    assert [paths.normalize_folder(text) for text in ("", "/", "a/", "a/b")] == ["", "", "a", "a/b"]


@given(st.text(max_size=40))
def test_whatever_is_taken_stays_beneath_the_root(path: str) -> None:
    try:
        cleaned = paths.normalize_path(path)
    except InvalidPath:
        return
    assert paths.normalize_path(cleaned) == cleaned
    assert not cleaned.startswith("/")
    assert all(part not in ("", ".", "..") for part in cleaned.split("/"))
    assert "\0" not in cleaned
