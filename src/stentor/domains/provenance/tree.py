"""The Merkle tree of RFC 6962 over hashes of leaves, kept in tiles of 256: pure.

A tile of level 0 holds the hashes of leaves, one of level n + 1 the roots of full tiles of level n; so any part of the
tree is computed from a few tiles.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256

WIDTH = 256
"""Hashes of a full tile."""
BITS = 8
HASH = 32
FULL = WIDTH * HASH
EMPTY_ROOT = sha256(b"").digest()

Node = Callable[[int, int], bytes]
"""The hash of a complete subtree of 2^level leaves that begins at leaf index * 2^level: `node(level, index)`."""


def inner(left: bytes, right: bytes) -> bytes:
    """The hash of a node over its two children."""
    return sha256(b"\1" + left + right).digest()


def root_of(hashes: Sequence[bytes]) -> bytes:
    """The root over the hashes of leaves, without anything that is stored."""
    if not hashes:
        return EMPTY_ROOT
    row = list(hashes)
    while len(row) > 1:
        above = [sha256(b"\1" + row[at] + row[at + 1]).digest() for at in range(0, len(row) - 1, 2)]
        row = above + row[-1:] if len(row) % 2 else above
    return row[0]


def split(hashes: bytes) -> list[bytes]:
    """The hashes that stand one after the other."""
    return [hashes[at : at + HASH] for at in range(0, len(hashes), HASH)]


def largest_power(size: int) -> int:
    """The largest power of two below `size`, which is at least 2."""
    return 1 << (size - 1).bit_length() - 1


def subtree(node: Node, start: int, end: int) -> bytes:
    """The hash over leaves `start` to `end`; `start` is where a subtree of that size may begin."""
    size = end - start
    if size == 0:
        return EMPTY_ROOT
    if size & (size - 1) == 0:
        return node(size.bit_length() - 1, start // size)
    middle = start + largest_power(size)
    return inner(subtree(node, start, middle), subtree(node, middle, end))


def inclusion_path(node: Node, number: int, size: int) -> list[bytes]:
    """PATH(number, D[size]) of RFC 6962, the sibling next to the leaf first. `number` is below `size`."""
    found: list[bytes] = []
    start, end = 0, size
    while end - start > 1:
        middle = start + largest_power(end - start)
        if number < middle:
            found.append(subtree(node, middle, end))
            end = middle
        else:
            found.append(subtree(node, start, middle))
            start = middle
    return found[::-1]


def consistency_path(node: Node, old: int, new: int) -> list[bytes]:
    """PROOF(old, D[new]) of RFC 6962; 0 < old <= new."""
    found: list[bytes] = []
    start, end, whole = 0, new, True
    while old < end:
        middle = start + largest_power(end - start)
        if old <= middle:
            found.append(subtree(node, middle, end))
            end = middle
        else:
            found.append(subtree(node, start, middle))
            start, whole = middle, False
    if not whole:
        found.append(subtree(node, start, end))
    return found[::-1]


@dataclass(frozen=True)
class Edge:
    """The right edge of a tree: its size, and of each level the hashes of the tile that is not full."""

    size: int = 0
    open: tuple[bytes, ...] = ()

    def grow(self, leaves: Sequence[bytes]) -> tuple[Edge, list[tuple[int, int, bytes]]]:
        """The edge with more leaves, and the tiles that changed: level, position, hashes."""
        changed: list[tuple[int, int, bytes]] = []
        edges: list[bytes] = []
        fresh, size, level = list(leaves), self.size, 0
        while fresh or level < len(self.open):
            before = self.open[level] if level < len(self.open) else b""
            tiles = list(_tiles(before + b"".join(fresh)))
            first = (size >> BITS * level) // WIDTH
            if fresh:
                changed += [(level, first + at, tile) for at, tile in enumerate(tiles)]
            full = [tile for tile in tiles if len(tile) == FULL]
            edges.append(tiles[-1] if len(full) < len(tiles) else b"")
            fresh, level = [root_of(split(tile)) for tile in full], level + 1
        return Edge(self.size + len(leaves), tuple(edges)), changed

    def root(self) -> bytes:
        """The root of the whole tree."""
        found: bytes | None = None
        for hashes in self.open:
            row = split(hashes)
            if found is not None:
                row.append(found)
            if row:
                found = root_of(row)  # the last one may be of a smaller subtree: the shape is the same
        return found or EMPTY_ROOT


def _tiles(hashes: bytes) -> Iterator[bytes]:
    for at in range(0, len(hashes), FULL):
        yield hashes[at : at + FULL]
