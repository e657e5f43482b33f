"""The Merkle tree and its proofs, against known vectors and an implementation of one's own."""

from __future__ import annotations

from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stentor.domains.provenance import merkle
from stentor.domains.provenance.merkle import TreeFrontier
from tests.requirements import requirement

# The leaves and roots of the tests of Certificate Transparency.
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


def naive(hashes: list[bytes]) -> bytes:
    """MTH of RFC 6962, word by word."""
    if not hashes:
        return sha256(b"").digest()
    if len(hashes) == 1:
        return hashes[0]
    k = 1
    while k * 2 < len(hashes):
        k *= 2
    return sha256(b"\x01" + naive(hashes[:k]) + naive(hashes[k:])).digest()


def grown(parts: list[int]) -> tuple[TreeFrontier, dict[tuple[int, int], bytes], list[bytes]]:
    """An edge that grew by these parts, all tiles, all leaves."""
    edge, tiles, every, done = TreeFrontier(), dict[tuple[int, int], bytes](), leaves(sum(parts)), 0
    for count in parts:
        edge, changed = edge.append(every[done : done + count])
        done += count
        tiles |= {(level, at): hashes for level, at, hashes in changed}
    return edge, tiles, every


def node_of(tiles: dict[tuple[int, int], bytes]) -> merkle.NodeReader:
    def node(level: int, index: int) -> bytes:
        base, rest = divmod(level, merkle.TILE_HEIGHT)
        first = index << rest
        row = merkle.split_hashes(tiles[base, first // merkle.TILE_WIDTH])[first % merkle.TILE_WIDTH :][: 1 << rest]
        assert len(row) == 1 << rest
        return merkle.compute_root(row)

    return node


@requirement("provenance.merkle-tree")
def test_the_roots_are_those_of_the_known_vectors() -> None:
    hashes = [sha256(b"\0" + bytes.fromhex(text)).digest() for text in INPUTS]
    assert [merkle.compute_root(hashes[:n]).hex() for n in range(9)] == ROOTS
    assert [TreeFrontier().append(hashes[:n])[0].root().hex() for n in range(9)] == ROOTS


@requirement("provenance.merkle-tree")
@given(st.lists(st.integers(0, 700), max_size=6))
def test_a_tree_that_grows_in_parts_has_the_root_of_the_definition(parts: list[int]) -> None:
    edge, tiles, every = grown(parts)
    assert edge.root() == naive(every) == merkle.compute_root(every)
    assert edge.size == len(every)
    assert b"".join(tiles[0, at] for at in range(-(-len(every) // 256))) == b"".join(every)


def test_a_tree_of_three_levels_has_the_root_of_the_definition() -> None:
    edge, tiles, every = grown([65_536, 1, 70_000])
    assert edge.root() == naive(every) == merkle.subtree_hash(node_of(tiles), 0, len(every))
    assert max(level for level, _ in tiles) == 2


@requirement("provenance.inclusion-and-consistency")
@given(st.integers(1, 1500), st.data())
def test_every_inclusion_proof_verifies_and_no_altered_one_does(size: int, data: st.DataObject) -> None:
    _, tiles, every = grown([1500])
    number = data.draw(st.integers(0, size - 1))
    path, root, leaf = merkle.inclusion_proof(node_of(tiles), number, size), naive(every[:size]), every[number]
    assert merkle.verify_inclusion(leaf, number, size, path, root)
    assert not merkle.verify_inclusion(leaf, number, size, path[:-1], root) or not path
    assert not merkle.verify_inclusion(leaf, number, size, [*path, leaf], root)
    assert not merkle.verify_inclusion(every[number - 1] if number else sha256(b"").digest(), number, size, path, root)
    assert not merkle.verify_inclusion(leaf, size, size, path, root)
    assert not merkle.verify_inclusion(leaf, -1, size, path, root)
    other = data.draw(st.integers(0, size - 1).filter(lambda n: n != number)) if size > 1 else 1
    assert not merkle.verify_inclusion(leaf, other, size, path, root)
    for wrong in altered(data, path):
        assert not merkle.verify_inclusion(leaf, number, size, wrong, root)


@requirement("provenance.inclusion-and-consistency")
@given(st.integers(1, 1500), st.data())
def test_every_consistency_proof_verifies_and_no_altered_one_does(new: int, data: st.DataObject) -> None:
    _, tiles, every = grown([1500])
    old = data.draw(st.integers(1, new))
    path = merkle.consistency_proof(node_of(tiles), old, new)
    roots = naive(every[:old]), naive(every[:new])
    assert merkle.verify_consistency(old, new, *roots, path)
    assert not merkle.verify_consistency(old, new, roots[0], sha256(b"").digest(), path)
    assert not merkle.verify_consistency(old, new, sha256(b"").digest(), roots[1], path)
    assert not merkle.verify_consistency(old, new, *roots, [*path, every[0]])
    assert not merkle.verify_consistency(new + 1, new, *roots, path)
    assert not merkle.verify_consistency(0, new, *roots, path)
    for wrong in altered(data, path):
        assert not merkle.verify_consistency(old, new, *roots, wrong)


def altered(data: st.DataObject, path: list[bytes]) -> list[list[bytes]]:
    """The path with one bit of it turned, cut, or with two hashes exchanged."""
    if not path:
        return []
    at, bit = data.draw(st.integers(0, len(path) - 1)), data.draw(st.integers(0, 255))
    turned = (int.from_bytes(path[at], "big") ^ 1 << bit).to_bytes(32, "big")
    found = [
        [*path[:at], turned, *path[at + 1 :]],
        path[:at] + path[at + 1 :],
        [*path[:at], path[at][:31], *path[at + 1 :]],
    ]
    return found + ([[path[1], path[0], *path[2:]]] if len(path) > 1 else [])


@pytest.mark.parametrize("size", [0, 1])
def test_the_smallest_trees_have_no_path(size: int) -> None:
    _, tiles, every = grown([1])
    assert merkle.subtree_hash(node_of(tiles), 0, size) == naive(every[:size])
    assert merkle.inclusion_proof(node_of(tiles), 0, 1) == []
    assert merkle.consistency_proof(node_of(tiles), 1, 1) == []
