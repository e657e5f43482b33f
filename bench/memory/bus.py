"""The memory bus over a vault of many notes: writes, reads, searches, and how far the indexes are behind."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from bench.figures import Figure, Target, at_most, number, percentile
from bench.service import Client, Service, serving
from bench.sizes import Scale, say
from bench.tasks.throughput import load

TITLE = "the memory bus over many notes"
WORDS = 60
"""Of a note: one chunk."""
DISTINCT = 5_000
"""Different notes at most: a larger vault repeats them under other names, because each text takes 25 ms to embed."""
BASE = "/api/v1/memory"
PATIENCE = 3600
Texts = Callable[[], str]


def run(scale: Scale) -> list[Figure]:
    return [figure for notes in scale.pick((2_000, 20_000, 100_000), (50, 200)) for figure in _of(scale, notes)]


def _of(scale: Scale, notes: int) -> list[Figure]:
    dice = random.Random(notes)
    with scale.scratch() as folder:
        texts = _texts(dice)
        _fill(folder / "data" / "vault", notes, texts)
        with serving(folder / "data") as service, service.connect() as client:
            started = time.perf_counter()
            _until_indexed(client, notes)
            indexed = time.perf_counter() - started
            say(f"memory: {notes:,} notes indexed with their vectors in {indexed:.0f} s")
            found = _figures(scale, service, client, notes, texts, dice)
            found += _lags(scale, client, folder / "data" / "vault", notes)
            rate = Figure(
                f"{notes:,} notes: indexed", notes / indexed, "/s", "files found at a start, words and vectors"
            )
            room = Figure(f"{notes:,} notes: resident memory", service.rss_mb(), "MB", "after all of it", at_most(500))
            return [*found, rate, room]


def _texts(dice: random.Random) -> Texts:
    """Notes of made-up words, some of them much more frequent than others, as in a language."""
    vowels, consonants = "aeiou", "bcdfghklmnprstvwz"
    words = [
        "".join(dice.choice(consonants) + dice.choice(vowels) for _ in range(dice.randint(1, 4))) for _ in range(8_000)
    ]
    weights = [1 / (rank + 10) for rank in range(len(words))]
    return lambda: " ".join(dice.choices(words, weights, k=WORDS))


def _fill(vault: Path, notes: int, texts: Texts) -> None:
    bodies = [f"# Note {i}\n\n{texts()}\n" for i in range(min(notes, DISTINCT))]
    for i in range(notes):
        path = vault / f"{i % 200:03}" / f"{i:06}.md"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"---\ntags: [t{i % 50}]\n---\n{bodies[i % DISTINCT]}")


def _until_indexed(client: Client, notes: int) -> None:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        health = client.get(f"{BASE}/health")
        vectors = health["components"]["vector_store"]
        if vectors["status"] != "healthy":
            raise RuntimeError(f"no vectors: {vectors['detail']}")
        if health["stats"]["total_documents"] >= notes and vectors["detail"].startswith("responds"):
            return
        time.sleep(0.2)
    raise RuntimeError("the notes were not indexed in time")


def _figures(
    scale: Scale, service: Service, client: Client, notes: int, texts: Texts, dice: random.Random
) -> list[Figure]:
    count = scale.pick(300, 20)

    def read() -> None:
        i = dice.randrange(notes)
        client.get(f"{BASE}/read/exact?path={i % 200:03}/{i:06}.md")

    def words() -> None:
        _post(client, "search/keyword", terms=texts().split()[:2], match_mode="any", limit=20)

    def meaning() -> None:
        _post(client, "search/semantic", query=" ".join(texts().split()[:10]), top_k=10)

    def both() -> None:
        _post(client, "search/hybrid", query=" ".join(texts().split()[:10]), limit=10)

    def write() -> None:
        _write(client, f"new/{dice.randrange(10**9)}.md", texts())

    one = f"{count} requests one by one on one connection"
    most = 80 if notes > 20_000 else 50
    return [
        _figure(notes, "exact read", [_timed(read) for _ in range(count)], one, at_most(5)),
        _figure(notes, "keyword search", [_timed(words) for _ in range(count)], f"{one}, two words", at_most(20)),
        _figure(notes, "semantic search", [_timed(meaning) for _ in range(count)], f"{one}, ten words", at_most(25)),
        _figure(notes, "hybrid search", [_timed(both) for _ in range(count)], f"{one}, ten words", at_most(most)),
        _figure(notes, "write, 1 client", [_timed(write) for _ in range(count)], f"{one}, new notes", at_most(20)),
        _figure(notes, "write, 32 clients", _crowd(scale, service), "32 connections at once, new notes", at_most(100)),
    ]


def _crowd(scale: Scale, service: Service) -> list[float]:
    return list(load(service, "notes", scale.pick(1_600, 96), 32)["latencies_ms"])


def _lags(scale: Scale, client: Client, vault: Path, notes: int) -> list[Figure]:
    """From the answer of a write, or the rename of an edit, until a search by meaning finds it."""
    _until_indexed(client, 0)
    count = scale.pick(40, 4)

    def by_bus(i: int) -> None:
        _write(client, f"lag/bus-{i}.md", _unique("bus", i))

    def by_hand(i: int) -> None:
        aside = vault / f".aside-{i}"
        aside.write_text(_unique("hand", i))
        aside.rename(vault / f"hand-{i}.md")

    ways = [("bus", by_bus, "a write through the bus"), ("hand", by_hand, "an edit in the folder")]
    figures = []
    for kind, do, words in ways:
        waits = [_lag(client, do, kind, i) for i in range(count)]
        figures.append(
            _figure(
                notes,
                f"sync lag, {words}",
                waits,
                f"{count} one-chunk notes, searched in turn until found",
                at_most(300),
            )
        )
    return figures


def _lag(client: Client, do: Callable[[int], None], kind: str, i: int) -> float:
    do(i)
    started = time.perf_counter()
    while not any(f"{kind}-{i}.md" in path for path in _nearest(client, _unique(kind, i))):
        time.sleep(0.002)
    return 1000 * (time.perf_counter() - started)


def _nearest(client: Client, query: str) -> list[str]:
    return [match["path"] for match in _post(client, "search/semantic", query=query, top_k=3)["matches"]]


def _unique(kind: str, i: int) -> str:
    return f"The {kind} harbour number {i} lies {i * 7} miles beyond the {i * 13}th lighthouse."


def _figure(notes: int, name: str, waits: list[float], how: str, target: Target | None) -> Figure:
    p95 = percentile(waits, 0.95)
    say(f"memory: {notes:,} notes: {name}: p95 {p95:.1f} ms")
    return Figure(
        f"{notes:,} notes: {name} p95",
        p95,
        "ms",
        how,
        target,
        f"p50 {number(median(waits))}, p99 {number(percentile(waits, 0.99))}",
    )


def _write(client: Client, path: str, content: str) -> None:
    _post(client, "write", operation="write", document={"path": path, "content": content})


def _post(client: Client, route: str, **body: Any) -> Any:
    return json.loads(client.send("POST", f"{BASE}/{route}", json.dumps(body).encode()))


def _timed(do: Callable[[], None]) -> float:
    started = time.perf_counter()
    do()
    return 1000 * (time.perf_counter() - started)
