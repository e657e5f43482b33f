"""Vectors with two bytes for each number give the products of the vectors themselves."""

from __future__ import annotations

import numpy as np
import pytest

from stentor.domains.memory.index.model import SearchFilters
from stentor.domains.memory.index.sqlite import vector_matrix
from stentor.domains.memory.index.sqlite.vector_matrix import BLOCK_ROWS, PackedVectors, VectorMatrix
from tests.requirements import requirement

DIMENSIONS = 384
CLOSE = 3e-5
"""Of vectors with few dimensions; with 384 it is 0.00001."""
DICE = np.random.default_rng(7)


def units(count: int, dimensions: int = DIMENSIONS) -> vector_matrix.Vector:
    vectors: vector_matrix.Vector = DICE.normal(size=(count, dimensions)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors


@pytest.mark.parametrize("count", [1, BLOCK_ROWS - 1, BLOCK_ROWS, 2 * BLOCK_ROWS + 5])
def test_products_are_those_of_the_vectors(count: int) -> None:
    vectors, query = units(count), units(1)[0]
    packed = PackedVectors(DIMENSIONS)
    packed.set(range(count), vectors)
    assert packed.multiply(query, count) == pytest.approx(vectors @ query, abs=1e-5)
    assert packed.multiply(vectors[0], count)[0] == pytest.approx(1, abs=1e-6)  # float32
    rows = [count - 1, 0, count // 2]
    assert packed.multiply_rows(query, rows) == pytest.approx(vectors[rows] @ query, abs=CLOSE)


def test_vectors_of_any_size_and_zeros_are_kept() -> None:
    packed, vectors = PackedVectors(4), np.array([[0, 0, 0, 0], [1e-9, -2e-9, 0, 0], [5, -300, 0.25, 0]], np.float32)
    packed.set([2, 0, 1], vectors)
    for query in np.eye(4, dtype=np.float32):
        assert packed.multiply(query, 3) == pytest.approx((vectors @ query)[[1, 2, 0]], rel=2e-2, abs=1e-12)
    assert packed.multiply_rows(query, []).tolist() == []


@requirement("memory.semantic-search")
@pytest.mark.parametrize("limit", [1, 3, 50, 1000])
def test_the_nearest_documents_are_those_of_a_full_sort(limit: int) -> None:
    """Documents of one to forty chunks, some removed and replaced, some alike."""
    matrix, documents = VectorMatrix(16), {}
    for doc_id in [*range(300), *range(0, 300, 7)]:
        documents[doc_id] = units(40 if doc_id % 50 == 0 else 1 + doc_id % 3, 16)
        matrix.upsert(doc_id, documents[doc_id], None, 1)
    for doc_id in range(0, 300, 11):
        matrix.delete(doc_id)
        del documents[doc_id]
    matrix.upsert(1000, documents[1], None, 1)
    documents[1000] = documents[1]
    query = documents[150][3]
    best = {doc_id: float((vectors @ query).max()) for doc_id, vectors in documents.items()}
    hits, total = matrix.nearest(query, limit, SearchFilters())
    assert total == len(documents)
    assert [hit.similarity for hit in hits] == pytest.approx(sorted(best.values(), reverse=True)[:limit], abs=CLOSE)
    for hit in hits:
        assert hit.similarity == pytest.approx(best[hit.doc_id], abs=CLOSE)
        assert hit.similarity == pytest.approx(float(documents[hit.doc_id][hit.ordinal] @ query), abs=CLOSE)
    least = sorted(best.values())[-20]
    hits, total = matrix.nearest(query, limit, SearchFilters(similarity_min=least - 1e-4), list(documents)[:250])
    wanted = {doc_id for doc_id in list(documents)[:250] if best[doc_id] >= least - 1e-4}
    assert (total, {hit.doc_id for hit in hits} <= wanted, len(hits)) == (len(wanted), True, min(limit, len(wanted)))
    assert matrix.similarities(query, [150, 1000, 11, 9999]) == {
        150: pytest.approx(best[150], abs=CLOSE),
        1000: pytest.approx(best[1000], abs=CLOSE),
    }
    assert matrix.similarities(query, []) == {}


def test_documents_that_are_added_together_are_as_those_that_are_added_one_by_one() -> None:
    vectors = units(9)
    owners, weights = [3, 3, 5, 8, 8, 8, 9, 11, 11], {3: 0.5, 9: -1.0}
    chunks = [
        vector_matrix.ChunkVector(owner, weights.get(owner), owner * 10, vector)
        for owner, vector in zip(owners, vectors, strict=True)
    ]
    together, one_by_one = VectorMatrix(DIMENSIONS), VectorMatrix(DIMENSIONS)
    for matrix in (together, one_by_one):
        matrix.upsert(1, units(2), None, 0)
        matrix.delete(1)  # leaves free rows
    together.add(chunks[:6])
    together.add([])
    together.add(chunks[6:])
    for owner in dict.fromkeys(owners):
        own = [chunk for chunk in chunks if chunk.doc_id == owner]
        one_by_one.upsert(owner, np.stack([chunk.vector for chunk in own]), own[0].weight, own[0].created_at)
    filters = [SearchFilters(), SearchFilters(weight_min=0.0), SearchFilters(created_after=60)]
    for query in vectors:
        assert together.similarities(query, owners) == one_by_one.similarities(query, owners)
        for each in filters:
            assert together.nearest(query, 4, each) == one_by_one.nearest(query, 4, each)
