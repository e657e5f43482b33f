"""Contents are stored in fewer bytes where they can be, and come back unchanged."""

from __future__ import annotations

import os
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stentor.core.errors import CorruptRecord
from stentor.core.formats.deflate import MAX_BYTES, MIN_BYTES, deflate, inflate


@given(st.binary(max_size=60), st.integers(1, 100))
def test_what_is_deflated_comes_back(part: bytes, times: int) -> None:
    content = part * times
    smaller = deflate(content)
    assert smaller is None or (inflate(smaller, "it") == content and len(smaller) < len(content))


def test_what_would_not_get_smaller_or_take_long_stays_as_it_is() -> None:
    assert deflate(b"a" * (MIN_BYTES - 1)) is None
    assert deflate(b"a" * (MAX_BYTES + 1)) is None
    assert deflate(os.urandom(1_000)) is None
    longest = deflate(b"a" * MAX_BYTES)
    assert longest is not None
    assert inflate(longest, "it") == b"a" * MAX_BYTES


TOO_LONG = zlib.compress(b"a" * (MAX_BYTES + 2))
"""More than is ever stored so, in a thousand bytes: somebody else wrote it."""


@pytest.mark.parametrize(
    "damaged",
    [b"", b"no", (deflate(b"a" * 1_000) or b"")[:-1], TOO_LONG],
    ids=["empty", "other", "cut off", "too long"],
)
def test_damage_is_told(damaged: bytes) -> None:
    with pytest.raises(CorruptRecord, match="The value is damaged"):
        inflate(damaged, "The value")
