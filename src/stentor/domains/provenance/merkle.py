"""The Merkle tree of RFC 6962 over hashes of leaves, kept in tiles of 256: pure.

A tile of level 0 holds the hashes of leaves, one of level n + 1 the roots of full tiles of level n; so any part of the
tree is computed from a few tiles.

Verifying proofs, as RFC 9162 does it (2.1.3.2 and 2.1.4.2): pure, and without the code that makes them.

A tree that is read once from left to right, tile by tile, and knows its root at every size it passes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256

TILE_WIDTH = 256
"""Hashes of a full tile."""
TILE_HEIGHT = 8
HASH_BYTES = 32
FULL_TILE_BYTES = TILE_WIDTH * HASH_BYTES
EMPTY_ROOT = sha256(b"").digest()

NodeReader = Callable[[int, int], bytes]
"""The hash of a complete subtree of 2^level leaves that begins at leaf index * 2^level: `node(level, index)`."""


def hash_children(left: bytes, right: bytes) -> bytes:
    """The hash of a node over its two children."""
    return sha256(b"\1" + left + right).digest()


def compute_root(hashes: Sequence[bytes]) -> bytes:
    """The root over the hashes of leaves, without anything that is stored."""
    if not hashes:
        return EMPTY_ROOT
    row = list(hashes)
    while len(row) > 1:
        above = [sha256(b"\1" + row[at] + row[at + 1]).digest() for at in range(0, len(row) - 1, 2)]
        row = above + row[-1:] if len(row) % 2 else above
    return row[0]


def split_hashes(hashes: bytes) -> list[bytes]:
    """The hashes that stand one after the other."""
    return [hashes[at : at + HASH_BYTES] for at in range(0, len(hashes), HASH_BYTES)]


def largest_power_of_two_below(size: int) -> int:
    """The largest power of two below `size`, which is at least 2."""
    return 1 << (size - 1).bit_length() - 1


def subtree_hash(node: NodeReader, start: int, end: int) -> bytes:
    """The hash over leaves `start` to `end`; `start` is where a subtree of that size may begin."""
    size = end - start
    if size == 0:
        return EMPTY_ROOT
    if size & (size - 1) == 0:
        return node(size.bit_length() - 1, start // size)
    middle = start + largest_power_of_two_below(size)
    return hash_children(subtree_hash(node, start, middle), subtree_hash(node, middle, end))


def inclusion_proof(node: NodeReader, number: int, size: int) -> list[bytes]:
    """PATH(number, D[size]) of RFC 6962, the sibling next to the leaf first. `number` is below `size`."""
    found: list[bytes] = []
    start, end = 0, size
    while end - start > 1:
        middle = start + largest_power_of_two_below(end - start)
        if number < middle:
            found.append(subtree_hash(node, middle, end))
            end = middle
        else:
            found.append(subtree_hash(node, start, middle))
            start = middle
    return found[::-1]


def consistency_proof(node: NodeReader, old: int, new: int) -> list[bytes]:
    """PROOF(old, D[new]) of RFC 6962; 0 < old <= new."""
    found: list[bytes] = []
    start, end, whole = 0, new, True
    while old < end:
        middle = start + largest_power_of_two_below(end - start)
        if old <= middle:
            found.append(subtree_hash(node, middle, end))
            end = middle
        else:
            found.append(subtree_hash(node, start, middle))
            start, whole = middle, False
    if not whole:
        found.append(subtree_hash(node, start, end))
    return found[::-1]


@dataclass(frozen=True)
class TreeFrontier:
    """The right edge of a tree: its size, and of each level the hashes of the tile that is not full."""

    size: int = 0
    partial_tiles: tuple[bytes, ...] = ()

    def append(self, leaves: Sequence[bytes]) -> tuple[TreeFrontier, list[tuple[int, int, bytes]]]:
        """The edge with more leaves, and the tiles that changed: level, position, hashes."""
        changed: list[tuple[int, int, bytes]] = []
        edges: list[bytes] = []
        fresh, size, level = list(leaves), self.size, 0
        while fresh or level < len(self.partial_tiles):
            before = self.partial_tiles[level] if level < len(self.partial_tiles) else b""
            tiles = list(_split_tiles(before + b"".join(fresh)))
            first = (size >> TILE_HEIGHT * level) // TILE_WIDTH
            if fresh:
                changed += [(level, first + at, tile) for at, tile in enumerate(tiles)]
            full = [tile for tile in tiles if len(tile) == FULL_TILE_BYTES]
            edges.append(tiles[-1] if len(full) < len(tiles) else b"")
            fresh, level = [compute_root(split_hashes(tile)) for tile in full], level + 1
        return TreeFrontier(self.size + len(leaves), tuple(edges)), changed

    def root(self) -> bytes:
        """The root of the whole tree."""
        found: bytes | None = None
        for hashes in self.partial_tiles:
            row = split_hashes(hashes)
            if found is not None:
                row.append(found)
            if row:
                found = compute_root(row)  # the last one may be of a smaller subtree: the shape is the same
        return found or EMPTY_ROOT


def _split_tiles(hashes: bytes) -> Iterator[bytes]:
    for at in range(0, len(hashes), FULL_TILE_BYTES):
        yield hashes[at : at + FULL_TILE_BYTES]


def verify_inclusion(leaf: bytes, number: int, size: int, path: Sequence[bytes], root: bytes) -> bool:
    """Whether `path` proves that the leaf has this number (from 0) in the tree of this size and root."""
    if not 0 <= number < size or not _are_hashes([leaf, root, *path]):
        return False
    at, last, found = number, size - 1, leaf
    for sibling in path:
        if last == 0:
            return False
        if at & 1 or at == last:
            found = hash_children(sibling, found)
            while not at & 1 and at:
                at, last = at >> 1, last >> 1
        else:
            found = hash_children(found, sibling)
        at, last = at >> 1, last >> 1
    return last == 0 and found == root


def verify_consistency(old: int, new: int, old_root: bytes, new_root: bytes, path: Sequence[bytes]) -> bool:
    """Whether `path` proves that the tree of size `new` begins with that of size `old`, which is at least 1."""
    if not 0 < old <= new or not _are_hashes([old_root, new_root, *path]):
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
            first, second = hash_children(sibling, first), hash_children(sibling, second)
            while not at & 1 and at:
                at, last = at >> 1, last >> 1
        else:
            second = hash_children(second, sibling)
        at, last = at >> 1, last >> 1
    return last == 0 and first == old_root and second == new_root


def _are_hashes(values: list[bytes]) -> bool:
    return all(len(value) == HASH_BYTES for value in values)


class StreamingTree:
    def __init__(self) -> None:
        self.size = 0
        self.tile_roots: list[bytes] = []
        """Roots of the full tiles of leaves."""
        self._stack: list[tuple[int, bytes]] = []

    def copy(self) -> StreamingTree:
        made = StreamingTree()
        made.size, made.tile_roots, made._stack = self.size, self.tile_roots[:], self._stack[:]
        return made

    def root(self, more: list[bytes]) -> bytes:
        """The root with some more leaves, a full tile at most."""
        found = compute_root(more) if more else None
        for _, left in reversed(self._stack):
            found = left if found is None else hash_children(left, found)
        return found or EMPTY_ROOT

    def append_tile(self, hashes: list[bytes]) -> None:
        """A full tile."""
        found, height = compute_root(hashes), 0
        self.tile_roots.append(found)
        self.size += len(hashes)
        while self._stack and self._stack[-1][0] == height:
            found, height = hash_children(self._stack.pop()[1], found), height + 1
        self._stack.append((height, found))

    def upper_tiles(self) -> dict[tuple[int, int], bytes]:
        """What the tiles above those of leaves must be."""
        found: dict[tuple[int, int], bytes] = {}
        level, row = 1, self.tile_roots
        while row:
            chunks = [row[at : at + TILE_WIDTH] for at in range(0, len(row), TILE_WIDTH)]
            found |= {(level, at): b"".join(chunk) for at, chunk in enumerate(chunks)}
            level, row = level + 1, [compute_root(chunk) for chunk in chunks if len(chunk) == TILE_WIDTH]
        return found
