"""The Merkle tree and its proofs, against known vectors and a naive implementation."""

from __future__ import annotations

from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stentor.domains.provenance import merkle
from stentor.domains.provenance.merkle import TreeFrontier
from tests.requirements import requirement

# The leaves and roots of Certificate Transparency's own tests.
INPUTS = ["", "00", "10", "2021", "3031", "40414243", "5051525354555657", "606162636465666768696a6b6c6d6e6f"]
ROOTS = [
    "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
]


def leaves(count: int) -> list[bytes]:
    return [sha256(n.to_bytes(4, "big")).digest() for n in range(count)]


def naive_root(hashes: list[bytes]) -> bytes:
    """MTH as RFC 6962 defines it."""
    if not hashes:
        return sha256(b"").digest()
    if len(hashes) == 1:
        return hashes[0]
    k = 1
    while k * 2 < len(hashes):
        k *= 2
    return sha256(b"\x01" + naive_root(hashes[:k]) + naive_root(hashes[k:])).digest()


def grow(parts: list[int]) -> tuple[TreeFrontier, dict[tuple[int, int], bytes], list[bytes]]:
    """Grow a tree by these parts; return its frontier, all tiles and all leaves."""
    frontier, tiles, all_leaves, done = TreeFrontier(), dict[tuple[int, int], bytes](), leaves(sum(parts)), 0
    for count in parts:
        frontier, changed = frontier.append(all_leaves[done : done + count])
        done += count
        tiles |= {(level, at): hashes for level, at, hashes in changed}
    return frontier, tiles, all_leaves


def node_reader(tiles: dict[tuple[int, int], bytes]) -> merkle.NodeReader:
    def node(level: int, index: int) -> bytes:
        base, rest = divmod(level, merkle.TILE_HEIGHT)
        first = index << rest
        row = merkle.split_hashes(tiles[base, first // merkle.TILE_WIDTH])[first % merkle.TILE_WIDTH :][: 1 << rest]
        assert len(row) == 1 << rest
        return merkle.compute_root(row)

    return node


@requirement("provenance.merkle-tree")
def test_roots_match_the_known_vectors() -> None:
    hashes = [sha256(b"\0" + bytes.fromhex(text)).digest() for text in INPUTS]
    assert [merkle.compute_root(hashes[:n]).hex() for n in range(9)] == ROOTS
    assert [TreeFrontier().append(hashes[:n])[0].root().hex() for n in range(9)] == ROOTS


@requirement("provenance.merkle-tree")
@given(st.lists(st.integers(0, 700), max_size=6))
def test_tree_grown_in_parts_matches_the_naive_root(parts: list[int]) -> None:
    frontier, tiles, all_leaves = grow(parts)
    assert frontier.root() == naive_root(all_leaves) == merkle.compute_root(all_leaves)
    assert frontier.size == len(all_leaves)
    assert b"".join(tiles[0, at] for at in range(-(-len(all_leaves) // 256))) == b"".join(all_leaves)


def test_tree_with_three_tile_levels_matches_the_naive_root() -> None:
    frontier, tiles, all_leaves = grow([65_536, 1, 70_000])
    assert frontier.root() == naive_root(all_leaves) == merkle.subtree_hash(node_reader(tiles), 0, len(all_leaves))
    assert max(level for level, _ in tiles) == 2


@requirement("provenance.inclusion-and-consistency")
@given(st.integers(1, 1500), st.data())
def test_inclusion_proof_verifies_and_altered_proofs_do_not(size: int, data: st.DataObject) -> None:
    _, tiles, all_leaves = grow([1500])
    number = data.draw(st.integers(0, size - 1))
    path, root, leaf = (
        merkle.inclusion_proof(node_reader(tiles), number, size),
        naive_root(all_leaves[:size]),
        all_leaves[number],
    )
    assert merkle.verify_inclusion(leaf, number, size, path, root)
    assert not merkle.verify_inclusion(leaf, number, size, path[:-1], root) or not path
    assert not merkle.verify_inclusion(leaf, number, size, [*path, leaf], root)
    assert not merkle.verify_inclusion(
        all_leaves[number - 1] if number else sha256(b"").digest(), number, size, path, root
    )
    assert not merkle.verify_inclusion(leaf, size, size, path, root)
    assert not merkle.verify_inclusion(leaf, -1, size, path, root)
    other = data.draw(st.integers(0, size - 1).filter(lambda n: n != number)) if size > 1 else 1
    assert not merkle.verify_inclusion(leaf, other, size, path, root)
    for altered in altered_paths(data, path):
        assert not merkle.verify_inclusion(leaf, number, size, altered, root)


@requirement("provenance.inclusion-and-consistency")
@given(st.integers(1, 1500), st.data())
def test_consistency_proof_verifies_and_altered_proofs_do_not(new: int, data: st.DataObject) -> None:
    _, tiles, all_leaves = grow([1500])
    old = data.draw(st.integers(1, new))
    path = merkle.consistency_proof(node_reader(tiles), old, new)
    roots = naive_root(all_leaves[:old]), naive_root(all_leaves[:new])
    assert merkle.verify_consistency(old, new, *roots, path)
    assert not merkle.verify_consistency(old, new, roots[0], sha256(b"").digest(), path)
    assert not merkle.verify_consistency(old, new, sha256(b"").digest(), roots[1], path)
    assert not merkle.verify_consistency(old, new, *roots, [*path, all_leaves[0]])
    assert not merkle.verify_consistency(new + 1, new, *roots, path)
    assert not merkle.verify_consistency(0, new, *roots, path)
    for altered in altered_paths(data, path):
        assert not merkle.verify_consistency(old, new, *roots, altered)


def altered_paths(data: st.DataObject, path: list[bytes]) -> list[list[bytes]]:
    """Return the path with a flipped bit, a missing or cut hash, and with two hashes swapped."""
    if not path:
        return []
    index, bit = data.draw(st.integers(0, len(path) - 1)), data.draw(st.integers(0, 255))
    flipped = (int.from_bytes(path[index], "big") ^ 1 << bit).to_bytes(32, "big")
    paths = [
        [*path[:index], flipped, *path[index + 1 :]],
        path[:index] + path[index + 1 :],
        [*path[:index], path[index][:31], *path[index + 1 :]],
    ]
    return paths + ([[path[1], path[0], *path[2:]]] if len(path) > 1 else [])


@pytest.mark.parametrize("size", [0, 1])
def test_smallest_trees_have_empty_proofs(size: int) -> None:
    _, tiles, all_leaves = grow([1])
    assert merkle.subtree_hash(node_reader(tiles), 0, size) == naive_root(all_leaves[:size])
    assert merkle.inclusion_proof(node_reader(tiles), 0, 1) == []
    assert merkle.consistency_proof(node_reader(tiles), 1, 1) == []
