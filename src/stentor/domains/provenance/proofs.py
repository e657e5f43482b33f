"""Verifying proofs, as RFC 9162 does it (2.1.3.2 and 2.1.4.2): pure, and without the code that makes them."""

from __future__ import annotations

from collections.abc import Sequence

from stentor.domains.provenance.tree import HASH, inner


def includes(leaf: bytes, number: int, size: int, path: Sequence[bytes], root: bytes) -> bool:
    """Whether `path` proves that the leaf has this number (from 0) in the tree of this size and root."""
    if not 0 <= number < size or not _hashes([leaf, root, *path]):
        return False
    at, last, found = number, size - 1, leaf
    for sibling in path:
        if last == 0:
            return False
        if at & 1 or at == last:
            found = inner(sibling, found)
            while not at & 1 and at:
                at, last = at >> 1, last >> 1
        else:
            found = inner(found, sibling)
        at, last = at >> 1, last >> 1
    return last == 0 and found == root


def extends(old: int, new: int, old_root: bytes, new_root: bytes, path: Sequence[bytes]) -> bool:
    """Whether `path` proves that the tree of size `new` begins with that of size `old`, which is at least 1."""
    if not 0 < old <= new or not _hashes([old_root, new_root, *path]):
        return False
    if old == new:
        return not path and old_root == new_root
    steps = list(path) if old & (old - 1) else [old_root, *path]
    if not steps:
        return False
    at, last = old - 1, new - 1
    while at & 1:
        at, last = at >> 1, last >> 1
    first = second = steps[0]
    for sibling in steps[1:]:
        if last == 0:
            return False
        if at & 1 or at == last:
            first, second = inner(sibling, first), inner(sibling, second)
            while not at & 1 and at:
                at, last = at >> 1, last >> 1
        else:
            second = inner(second, sibling)
        at, last = at >> 1, last >> 1
    return last == 0 and first == old_root and second == new_root


def _hashes(values: list[bytes]) -> bool:
    return all(len(value) == HASH for value in values)
