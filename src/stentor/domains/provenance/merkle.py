"""The Merkle tree of RFC 6962 over leaf hashes, in tiles of 256 hashes: building, proofs and their verification. Pure.

A tile of level 0 has the hashes of leaves, a tile of level n + 1 the roots of full tiles of level n, so any part of the
tree is computed from a few tiles. The verification of proofs (RFC 9162, 2.1.3.2 and 2.1.4.2) shares no code with their
generation. `leaf_hash` is in `stentor.core.runlog`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256

TILE_WIDTH = 256
"""Number of hashes in a full tile."""
TILE_HEIGHT = 8
HASH_BYTES = 32
FULL_TILE_BYTES = TILE_WIDTH * HASH_BYTES
EMPTY_ROOT = sha256(b"").digest()

NodeReader = Callable[[int, int], bytes]
"""`node(level, index)`: the hash of the complete subtree of 2^level leaves that begins at leaf index * 2^level."""


def hash_children(left: bytes, right: bytes) -> bytes:
    """Return the hash of an inner node."""
    return sha256(b"\1" + left + right).digest()


def compute_root(hashes: Sequence[bytes]) -> bytes:
    """Return the root over leaf hashes."""
    if not hashes:
        return EMPTY_ROOT
    row = list(hashes)
    while len(row) > 1:
        # hash_children inlined: this loop hashes every event.
        above = [sha256(b"\1" + row[at] + row[at + 1]).digest() for at in range(0, len(row) - 1, 2)]
        row = above + row[-1:] if len(row) % 2 else above
    return row[0]


def split_hashes(hashes: bytes) -> list[bytes]:
    """Split concatenated hashes, such as the bytes of a tile."""
    return [hashes[at : at + HASH_BYTES] for at in range(0, len(hashes), HASH_BYTES)]


def largest_power_of_two_below(size: int) -> int:
    """Return the largest power of two below `size`, which is at least 2."""
    # In Python the subtraction comes before the shift.
    return 1 << (size - 1).bit_length() - 1


def subtree_hash(node: NodeReader, start: int, end: int) -> bytes:
    """Return the hash over leaves `start` to before `end`; `start` must be aligned to a subtree of that size."""
    size = end - start
    if size == 0:
        return EMPTY_ROOT
    if size & (size - 1) == 0:
        return node(size.bit_length() - 1, start // size)
    middle = start + largest_power_of_two_below(size)
    return hash_children(subtree_hash(node, start, middle), subtree_hash(node, middle, end))


def inclusion_proof(node: NodeReader, number: int, size: int) -> list[bytes]:
    """Return PATH(number, D[size]) of RFC 6962, the sibling of the leaf first. `number` is below `size`."""
    path: list[bytes] = []
    start, end = 0, size
    while end - start > 1:
        middle = start + largest_power_of_two_below(end - start)
        if number < middle:
            path.append(subtree_hash(node, middle, end))
            end = middle
        else:
            path.append(subtree_hash(node, start, middle))
            start = middle
    return path[::-1]


def consistency_proof(node: NodeReader, old: int, new: int) -> list[bytes]:
    """Return PROOF(old, D[new]) of RFC 6962; 0 < old <= new."""
    path: list[bytes] = []
    start, end = 0, new
    while old < end:
        middle = start + largest_power_of_two_below(end - start)
        if old <= middle:
            path.append(subtree_hash(node, middle, end))
            end = middle
        else:
            path.append(subtree_hash(node, start, middle))
            start = middle
    # From leaf 0 on, the last subtree is the whole old tree, whose root the verifier has.
    if start > 0:
        path.append(subtree_hash(node, start, end))
    return path[::-1]


@dataclass(frozen=True)
class TreeFrontier:
    """The right edge of a tree: its size, and for each level the hashes of the tile that is not full (may be empty)."""

    size: int = 0
    partial_tiles: tuple[bytes, ...] = ()

    def append(self, leaves: Sequence[bytes]) -> tuple[TreeFrontier, list[tuple[int, int, bytes]]]:
        """Return the frontier with more leaves, and the tiles that changed: level, position, hashes."""
        changed: list[tuple[int, int, bytes]] = []
        partial_tiles: list[bytes] = []
        new_hashes, level = list(leaves), 0
        while new_hashes or level < len(self.partial_tiles):
            before = self.partial_tiles[level] if level < len(self.partial_tiles) else b""
            hashes = before + b"".join(new_hashes)
            tiles = [hashes[at : at + FULL_TILE_BYTES] for at in range(0, len(hashes), FULL_TILE_BYTES)]
            # A hash of this level covers 256 to the power of `level` leaves; only full ones are in its tiles.
            first = (self.size >> TILE_HEIGHT * level) // TILE_WIDTH
            if new_hashes:
                changed += [(level, first + at, tile) for at, tile in enumerate(tiles)]
            full = [tile for tile in tiles if len(tile) == FULL_TILE_BYTES]
            partial_tiles.append(tiles[-1] if len(full) < len(tiles) else b"")
            new_hashes, level = [compute_root(split_hashes(tile)) for tile in full], level + 1
        return TreeFrontier(self.size + len(leaves), tuple(partial_tiles)), changed

    def root(self) -> bytes:
        """Return the root of the whole tree."""
        root: bytes | None = None
        for hashes in self.partial_tiles:
            row = split_hashes(hashes)
            if root is not None:
                row.append(root)
            if row:
                root = compute_root(row)  # the last hash may be of a smaller subtree: the shape is the same
        return root or EMPTY_ROOT


def verify_inclusion(leaf: bytes, number: int, size: int, path: Sequence[bytes], root: bytes) -> bool:
    """Check that `path` proves that the leaf has this number (from 0) in the tree of this size and root."""
    if not 0 <= number < size or not _are_hashes([leaf, root, *path]):
        return False
    at, last, computed = number, size - 1, leaf
    for sibling in path:
        if last == 0:
            return False
        if at & 1 or at == last:
            computed = hash_children(sibling, computed)
            while not at & 1 and at:
                at, last = at >> 1, last >> 1
        else:
            computed = hash_children(computed, sibling)
        at, last = at >> 1, last >> 1
    return last == 0 and computed == root


def verify_consistency(old: int, new: int, old_root: bytes, new_root: bytes, path: Sequence[bytes]) -> bool:
    """Check that `path` proves that the tree of size `new` begins with the tree of size `old`, which is at least 1."""
    if not 0 < old <= new or not _are_hashes([old_root, new_root, *path]):
        return False
    if old == new:
        return not path and old_root == new_root
    # An old tree of 2^n leaves is a subtree of the new one, so proofs leave its root out.
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
    """A tree that is built from left to right, tile by tile, and knows its root at every size on the way."""

    def __init__(self) -> None:
        self.size = 0
        self.tile_roots: list[bytes] = []
        """Roots of the full tiles of leaves."""
        self._stack: list[tuple[int, bytes]] = []
        """Height and hash of the complete subtrees so far, from left to right."""

    def copy(self) -> StreamingTree:
        copy = StreamingTree()
        copy.size, copy.tile_roots, copy._stack = self.size, self.tile_roots[:], self._stack[:]
        return copy

    def root(self, more: list[bytes]) -> bytes:
        """Return the root with some more leaves, at most a full tile of them."""
        root = compute_root(more) if more else None
        for _, left in reversed(self._stack):
            root = left if root is None else hash_children(left, root)
        return root or EMPTY_ROOT

    def append_tile(self, hashes: list[bytes]) -> None:
        """Append the leaf hashes of a full tile."""
        subtree, height = compute_root(hashes), 0
        self.tile_roots.append(subtree)
        self.size += len(hashes)
        while self._stack and self._stack[-1][0] == height:
            subtree, height = hash_children(self._stack.pop()[1], subtree), height + 1
        self._stack.append((height, subtree))

    def upper_tiles(self) -> dict[tuple[int, int], bytes]:
        """Return what the tiles above level 0 must be, by level and position."""
        tiles: dict[tuple[int, int], bytes] = {}
        level, row = 1, self.tile_roots
        while row:
            chunks = [row[at : at + TILE_WIDTH] for at in range(0, len(row), TILE_WIDTH)]
            tiles |= {(level, at): b"".join(chunk) for at, chunk in enumerate(chunks)}
            level, row = level + 1, [compute_root(chunk) for chunk in chunks if len(chunk) == TILE_WIDTH]
        return tiles
