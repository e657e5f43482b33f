"""A tree that is read once from left to right, tile by tile, and knows its root at every size it passes."""

from __future__ import annotations

from stentor.domains.provenance import tree


class Fold:
    def __init__(self) -> None:
        self.size = 0
        self.tiles: list[bytes] = []
        """Roots of the full tiles of leaves."""
        self._stack: list[tuple[int, bytes]] = []

    def copy(self) -> Fold:
        made = Fold()
        made.size, made.tiles, made._stack = self.size, self.tiles[:], self._stack[:]
        return made

    def root(self, more: list[bytes]) -> bytes:
        """The root with some more leaves, a full tile at most."""
        found = tree.root_of(more) if more else None
        for _, left in reversed(self._stack):
            found = left if found is None else tree.inner(left, found)
        return found or tree.EMPTY_ROOT

    def add(self, hashes: list[bytes]) -> None:
        """A full tile."""
        found, height = tree.root_of(hashes), 0
        self.tiles.append(found)
        self.size += len(hashes)
        while self._stack and self._stack[-1][0] == height:
            found, height = tree.inner(self._stack.pop()[1], found), height + 1
        self._stack.append((height, found))

    def upper_tiles(self) -> dict[tuple[int, int], bytes]:
        """What the tiles above those of leaves must be."""
        found: dict[tuple[int, int], bytes] = {}
        level, row = 1, self.tiles
        while row:
            chunks = [row[at : at + tree.WIDTH] for at in range(0, len(row), tree.WIDTH)]
            found |= {(level, at): b"".join(chunk) for at, chunk in enumerate(chunks)}
            level, row = level + 1, [tree.root_of(chunk) for chunk in chunks if len(chunk) == tree.WIDTH]
        return found
