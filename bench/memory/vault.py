"""The headless vault server over many notes: its searches, and reads and writes beside them, over HTTP."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from statistics import median
from urllib.parse import urlencode

from bench.figures import Figure, Target, at_most, number, percentile
from bench.service import KEY, environment, rss_mb, stop
from bench.sizes import Scale, say

TITLE = "the headless vault server over many notes"
WORDS = 300
"""Of a note: 1.6 kB."""
LOGIC = "application/vnd.olrapi.jsonlogic+json"
Ask = Callable[[HTTPConnection], int]


class Vocabulary:
    """Made-up words, some of them much more frequent than others, as in a language."""

    def __init__(self, dice: random.Random) -> None:
        vowels, consonants = "aeiou", "bcdfghklmnprstvwz"
        self.words = [
            "".join(dice.choice(consonants) + dice.choice(vowels) for _ in range(dice.randint(2, 5)))
            for _ in range(20_000)
        ]
        self._weights = [1 / (rank + 10) for rank in range(len(self.words))]
        self._dice = dice

    def text(self) -> str:
        return " ".join(self._dice.choices(self.words, self._weights, k=WORDS))

    def word(self, first: int, last: int) -> str:
        """One of the ranks from `first` on; rank 0 is the most frequent."""
        return self.words[self._dice.randrange(first, last)]


def run(scale: Scale) -> list[Figure]:
    notes, dice = scale.pick(20_000, 200), random.Random(5)
    vocabulary = Vocabulary(dice)
    with scale.scratch() as folder:
        _fill(folder / "notes", notes, vocabulary, dice)
        started = time.perf_counter()
        with _serving(folder) as (process, http):
            ready = time.perf_counter() - started
            found = [_figure(scale, http, name, *row) for name, row in _asks(vocabulary, dice, notes).items()]
            room = Figure("resident memory", rss_mb(process.pid), "MB", f"after all of it, {notes:,} notes")
            return [*found, Figure("start", ready, "s", f"from the command to its first word, {notes:,} notes"), room]


def _fill(vault: Path, notes: int, vocabulary: Vocabulary, dice: random.Random) -> None:
    for i in range(notes):
        path = vault / f"{i % 200:03}" / f"{i:06}.md"
        path.parent.mkdir(parents=True, exist_ok=True)
        link = f"[[{dice.randrange(notes):06}]]"
        path.write_text(f"---\ntags: [t{i % 50}]\nrank: {i}\n---\n# Note {i}\n\n{vocabulary.text()} {link}\n")


@contextmanager
def _serving(folder: Path) -> Iterator[tuple[subprocess.Popen[str], HTTPConnection]]:
    command = [sys.executable, "-m", "stentor", "vault", str(folder / "notes"), "--data-dir", str(folder / "data")]
    command += ["--port", "0", "--no-tls", "--json"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**environment(), "SERVICE_VAULT_KEY": KEY}
    )
    assert process.stdout is not None
    try:
        address = json.loads(process.stdout.readline())["vault"].removeprefix("http://")
        http = HTTPConnection(address, timeout=120)
        yield process, http
        http.close()
    finally:
        stop(process)


def _send(http: HTTPConnection, method: str, path: str, body: bytes | None = None, kind: str = "text/markdown") -> int:
    """Bytes of the answer. Raises RuntimeError for anything but success."""
    http.request(method, path, body, {"Authorization": f"Bearer {KEY}", "Content-Type": kind})
    answer = http.getresponse()
    content = answer.read()
    if answer.status >= 300:
        raise RuntimeError(f"{method} {path}: {answer.status} {content.decode(errors='replace')[:300]}")
    return len(content)


def _asks(vocabulary: Vocabulary, dice: random.Random, notes: int) -> dict[str, tuple[Ask, Target | None, str]]:
    """Kind of request to a function that draws and sends one, its target, and what is drawn."""
    word = vocabulary.word

    def search(*words: str) -> Ask:
        return lambda http: _send(http, "POST", f"/search/simple/?{urlencode({'query': ' '.join(words)})}")

    def path() -> str:
        i = dice.randrange(notes)
        return f"/vault/{i % 200:03}/{i:06}.md"

    def logic(http: HTTPConnection) -> int:
        tag, least = f"t{dice.randrange(50)}", dice.randrange(notes)
        rule = {"and": [{"in": [tag, {"var": "tags"}]}, {">": [{"var": "frontmatter.rank"}, least]}]}
        return _send(http, "POST", "/search/", json.dumps(rule).encode(), LOGIC)

    def edit(http: HTTPConnection) -> int:
        order = {"targetType": "frontmatter", "target": "rank", "operation": "replace", "value": dice.randrange(notes)}
        return _send(http, "PATCH", path(), json.dumps(order).encode(), "application/json")

    return {
        "simple search": (lambda h: search(word(500, 20_000))(h), at_most(200), "a word of any but the 500 commonest"),
        "simple search, two words": (
            lambda h: search(word(100, 5_000), word(100, 5_000))(h),
            at_most(200),
            "words of the ranks from 100 to 5,000",
        ),
        "simple search, a common word": (
            lambda h: search(word(100, 500))(h),
            at_most(200),
            "a word of the ranks from 100 to 500, in a twentieth to a quarter of the notes",
        ),
        "simple search, nothing": (lambda h: search("q" + word(0, 20_000))(h), at_most(200), "a word of no note"),
        "JsonLogic": (logic, None, "a tag and a number in the frontmatter"),
        "read a note": (lambda h: _send(h, "GET", path()), None, "any note"),
        "patch a field": (edit, None, "any note"),
    }


def _figure(scale: Scale, http: HTTPConnection, name: str, ask: Ask, target: Target | None, drawn: str) -> Figure:
    count = scale.pick(200, 10)
    waits, sizes = [], []
    for _ in range(count + 3):
        started = time.perf_counter()
        sizes.append(ask(http))
        waits.append(1000 * (time.perf_counter() - started))
    waits = waits[3:]
    say(f"vault: {name}: p95 {percentile(waits, 0.95):.1f} ms")
    how = f"{count} requests one by one on one connection, {drawn}; {median(sizes) / 1000:,.0f} kB answered (median)"
    return Figure(f"{name} p95", percentile(waits, 0.95), "ms", how, target, f"p50 {number(median(waits))}")
