"""The canonical bytes of an event match the reference implementation of RFC 8785."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from stentor.core.runlog import EVENT_COLUMNS, encode_event_row, leaf_hash
from tests.requirements import requirement

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
NUMBER = st.integers(-(2**53) + 1, 2**53 - 1)
ROWS = st.tuples(
    TEXT, TEXT, st.none() | TEXT, st.none() | TEXT, st.none() | TEXT, NUMBER, TEXT, TEXT, TEXT, st.none() | NUMBER, TEXT
)


@requirement("provenance.merkle-tree")
@given(ROWS)
def test_event_encoding_matches_rfc_8785(row: tuple[Any, ...]) -> None:
    expected = rfc8785.dumps(dict(zip(EVENT_COLUMNS, row, strict=True)))
    assert encode_event_row(row) == expected
    assert leaf_hash(row) == hashlib.sha256(b"\0" + expected).digest()


@requirement("provenance.merkle-tree")
def test_every_character_is_encoded_as_in_rfc_8785() -> None:
    all_characters = "".join(chr(code) for code in range(0x11_0000) if not 0xD800 <= code < 0xE000)
    row = ("id", all_characters, None, None, None, 0, "", "", "", None, json.dumps({"a": all_characters[:300]}))
    assert encode_event_row(row) == rfc8785.dumps(dict(zip(EVENT_COLUMNS, row, strict=True)))
