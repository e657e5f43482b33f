"""The figures of retrieval are right, and the bench runs on a small set in both forms of judgements."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from bench.memory import pythondocs, retrieval
from bench.memory.retrieval import measure, ndcg, read_judgements, recall, reciprocal_rank

DOCUMENTS = [
    {"_id": "d1", "title": "Cats", "text": "The kitten sat on the rug and purred."},
    {"_id": "d2", "title": "Deployment", "text": "The server is rolled out to the customers every Friday."},
    {"_id": "d3", "title": "", "text": "Boil the carrots with salt and a little thyme."},
]
QUERIES = [
    {"_id": "q1", "text": "young cat"},
    {"_id": "q2", "text": "cooking vegetables"},
    {"_id": "q3", "text": "unjudged"},
]


def test_the_figures_are_those_of_the_definitions() -> None:
    grades = {"a": 2, "b": 1}
    assert ndcg(["a", "b"], grades) == 1.0
    assert ndcg(["b", "a"], grades) == pytest.approx((1 + 2 / 1.58496) / (2 + 1 / 1.58496), abs=1e-4)
    assert ndcg(["x", "y"], grades) == 0.0
    assert ndcg([*"0123456789", "a"], grades) == 0.0
    assert recall(["x", "a"], grades) == 0.5
    assert recall([], grades) == 0.0
    assert reciprocal_rank(["x", "b", "a"], grades) == 0.5
    assert reciprocal_rank(["x"], grades) == 0.0


async def test_plain_bm25_finds_nothing_for_a_question_without_words(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text("\n".join(map(json.dumps, DOCUMENTS)))
    ask = retrieval.open_bm25(corpus, {row["_id"]: f"{row['_id']}.md" for row in DOCUMENTS})
    assert await ask('"kitten" OR (sat*') == ["d1.md"]
    assert await ask("???") == []


@pytest.mark.slow
async def test_a_small_set_is_measured_in_both_forms_of_judgements(tmp_path: Path, model_cache: Path) -> None:
    assert model_cache.is_dir()  # the model is there
    corpus, queries = tmp_path / "corpus.jsonl", tmp_path / "queries.jsonl"
    corpus.write_text("\n".join(map(json.dumps, DOCUMENTS)))
    queries.write_text("\n".join(map(json.dumps, QUERIES)))
    beir, trec = tmp_path / "beir.tsv", tmp_path / "trec.qrels"
    beir.write_text("query-id\tcorpus-id\tscore\nq1\td1\t1\nq1\td2\t0\nq2\td3\t2\n")
    trec.write_text("q1 0 d1 1\nq1 0 d2 0\nq2 0 d3 2\n")
    assert read_judgements(beir) == read_judgements(trec) == {"q1": {"d1": 1}, "q2": {"d3": 2}}
    figures = await measure(corpus, queries, beir)
    assert (
        figures["semantic"]
        == figures["hybrid"]
        == {"ndcg": 1.0, "recall": 1.0, "found5": 1.0, "mrr": 1.0, "queries": 2}
    )
    assert figures["keyword"]["ndcg"] == figures["BM25"]["ndcg"] == 0.5


def test_the_questions_about_python_name_pages_that_are_read(tmp_path: Path) -> None:
    questions = pythondocs.read_questions()
    assert len({question for question, _ in questions}) == len(questions) == 103
    for page in {page for _, answers in questions for page in answers}:
        file = tmp_path / f"{page}.rst.txt"
        file.parent.mkdir(exist_ok=True)
        file.write_text(
            ".. _label:\n\n:mod:`zipfile` --- Archives\n=======\n\nSee :class:`~zipfile.ZipFile` and :ref:`it <x>`.\n"
        )
    pages = pythondocs.read_pages(tmp_path)
    assert {page for _, answers in questions for page in answers} == set(pages)
    assert pages["library/zipfile"] == {
        "title": "zipfile --- Archives",
        "text": "\n\nSee zipfile.ZipFile and it.\n",
    }
