"""`python -m bench.memory.retrieval CORPUS QUERIES JUDGEMENTS`: how well the searches, and BM25, find on a given set.

The figures are means over the queries: nDCG@10, recall@10, the share with a right document among the first five
(found@5), and the reciprocal rank of the first right one among ten (MRR@10). BM25 is that of SQLite's FTS5 with its
stemmer, over title and text.

CORPUS and QUERIES are lines of JSON as BEIR has them (`_id`, `title`, `text`; also `path`, the note's, for pieces of a
conversation: without it no note stands beside another); JUDGEMENTS is BEIR's table
(`query-id corpus-id score`, with a heading) or TREC's (`query 0 document grade`). The documents become notes of a
vault, and the service's own search is asked, in process.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import re
import sqlite3
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.sizes import say
from stentor.auth.principal import Principal
from stentor.bootstrap.kernel import build
from stentor.bootstrap.parts.memory import Memory
from stentor.bootstrap.storage import open_driver
from stentor.core import migrations, settings
from stentor.core.clock import SystemClock
from stentor.core.db import Database
from stentor.domains.memory.index.model import SEARCH_FIELDS, SearchFilters
from stentor.domains.memory.model import MemoryCaller

DEPTH = 10
ASKING = MemoryCaller(Principal("bench", "admin", frozenset(("admin",))))
Judgements = Mapping[str, Mapping[str, int]]
Ask = Callable[[str], Awaitable[list[str]]]


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.memory.retrieval", description="Measure the quality of search."
    )
    for name, text in (("corpus", "documents"), ("queries", "questions"), ("judgements", "which document answers")):
        parser.add_argument(name, type=Path, help=text)
    parser.add_argument("--json", action="store_true", help="one JSON object")
    options = parser.parse_args()
    figures = asyncio.run(measure(options.corpus, options.queries, options.judgements))
    if options.json:
        print(json.dumps(figures))
    else:
        for mode, found in figures.items():
            print(
                f"{mode:9} nDCG@10 {found['ndcg']:.4f}   recall@10 {found['recall']:.4f}   "
                f"found@5 {found['found5']:.4f}   MRR@10 {found['mrr']:.4f}   {found['queries']} queries"
            )


async def measure(corpus: Path, queries: Path, judgements: Path) -> dict[str, dict[str, float]]:
    """Mode to its figures, means over the queries that have judgements."""
    judged = read_judgements(judgements)
    asked = {row["_id"]: str(row["text"]) for row in _lines(queries) if row["_id"] in judged}
    with tempfile.TemporaryDirectory(prefix="stentor-bench-") as folder:
        names = _write(corpus, Path(folder) / "vault")
        memory, database = _open(Path(folder))
        try:
            await _index(memory)
            modes = _modes(memory) | {"BM25": open_bm25(corpus, {document: path for path, document in names.items()})}
            return {mode: await _score(ask, asked, judged, names) for mode, ask in modes.items()}
        finally:
            await memory.stop()
            await asyncio.to_thread(database.close)


def read_judgements(path: Path) -> dict[str, dict[str, int]]:
    """Query to its documents and their grades; grades of 0 and below are left out."""
    found: dict[str, dict[str, int]] = {}
    for line in path.read_text().splitlines():
        parts = line.split()
        if len(parts) < 3 or not parts[-1].lstrip("-").isdigit():
            continue  # a heading
        query, document, grade = parts[0], parts[-2], int(parts[-1])
        if grade > 0:
            found.setdefault(query, {})[document] = grade
    return found


def ndcg(ranked: Sequence[str], grades: Mapping[str, int], depth: int = DEPTH) -> float:
    """Discounted gain of the first `depth`, as a share of the best that could be; the gain is the grade."""
    gain = sum(grades.get(one, 0) / math.log2(place + 2) for place, one in enumerate(ranked[:depth]))
    best = sum(
        grade / math.log2(place + 2) for place, grade in enumerate(sorted(grades.values(), reverse=True)[:depth])
    )
    return gain / best if best else 0.0


def recall(ranked: Sequence[str], grades: Mapping[str, int], depth: int = DEPTH) -> float:
    return len(set(ranked[:depth]) & set(grades)) / len(grades) if grades else 0.0


def reciprocal_rank(ranked: Sequence[str], grades: Mapping[str, int]) -> float:
    """One divided by the place of the first right document, 0 without one."""
    return next((1 / (place + 1) for place, one in enumerate(ranked) if one in grades), 0.0)


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    with path.open() as file:
        for line in file:
            if line.strip():
                row = json.loads(line)
                yield {**row, "_id": str(row["_id"])}


def _write(corpus: Path, vault: Path) -> dict[str, str]:
    """A note for each document; the note's path to the document's id."""
    names: dict[str, str] = {}
    for number, row in enumerate(_lines(corpus)):
        path = f"{number % 256:02x}/{number}.md" if row.get("path") is None else str(row["path"])
        names[path] = row["_id"]
        title = " ".join(str(row.get("title") or "").split())
        file = vault / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text((f"# {title}\n\n" if title else "") + str(row["text"]) + "\n")
    return names


def _open(folder: Path) -> tuple[Memory, Database]:
    chosen = settings.load({}, {"SERVICE_DATA_DIR": folder})
    driver = open_driver(chosen)
    migrations.upgrade(driver)
    database = Database(driver)
    kernel = build(chosen, database, SystemClock())
    assert kernel.memory is not None
    return kernel.memory, database


async def _index(memory: Memory) -> None:
    started = time.perf_counter()
    notes = await memory.default.indexer.reconcile()
    say(f"retrieval: {notes:,} documents by word, {time.perf_counter() - started:.0f} s")
    made = await memory.default.embeddings.embed_pending()
    say(f"retrieval: {made:,} documents by meaning, {time.perf_counter() - started:.0f} s")


def _modes(memory: Memory) -> dict[str, Ask]:
    async def by_word(query: str) -> list[str]:
        found, _ = await memory.default.search.keyword(ASKING, query.split(), SEARCH_FIELDS, "any", DEPTH)
        return [match.path for match in found]

    async def by_meaning(query: str) -> list[str]:
        found, _ = await memory.default.search.semantic(ASKING, query, None, DEPTH, SearchFilters())
        return [match.path for match in found]

    async def by_both(query: str) -> list[str]:
        found, _ = await memory.default.search.hybrid(ASKING, query, DEPTH, SearchFilters())
        return [match.path for match in found]

    return {"keyword": by_word, "semantic": by_meaning, "hybrid": by_both}


def open_bm25(corpus: Path, paths: Mapping[str, str]) -> Ask:
    """Return plain BM25 over the documents, whose paths are by their ids: any word of the query, none ignored."""
    index = sqlite3.connect(":memory:")
    index.execute("create virtual table documents using fts5 (title, text, path unindexed, tokenize = 'porter')")
    rows = [(str(row.get("title") or ""), str(row["text"]), paths[row["_id"]]) for row in _lines(corpus)]
    index.executemany("insert into documents values (?, ?, ?)", rows)

    async def ask(query: str) -> list[str]:
        match = " OR ".join(f'"{word}"' for word in re.findall(r"\w+", query))
        if not match:
            return []
        found = index.execute(
            "select path from documents where documents match ? order by rank limit ?", (match, DEPTH)
        )
        return [path for (path,) in found]

    return ask


async def _score(ask: Ask, asked: Mapping[str, str], judged: Judgements, names: Mapping[str, str]) -> dict[str, float]:
    totals = {"ndcg": 0.0, "recall": 0.0, "found5": 0.0, "mrr": 0.0}
    for query, text in asked.items():
        ranked, grades = [names[path] for path in await ask(text)], judged[query]
        totals["ndcg"] += ndcg(ranked, grades)
        totals["recall"] += recall(ranked, grades)
        totals["found5"] += bool(set(ranked[:5]) & set(grades))
        totals["mrr"] += reciprocal_rank(ranked, grades)
    count = max(1, len(asked))
    return {**{name: total / count for name, total in totals.items()}, "queries": len(asked)}


if __name__ == "__main__":
    main()
