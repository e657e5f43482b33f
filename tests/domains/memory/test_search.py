"""Keyword search, edits in the folder, and the index that can be lost. On both databases."""

from __future__ import annotations

import shutil
import sys
import threading
import time
import unicodedata
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import psycopg
import pytest

from stentor.core.db.postgres.driver import PostgresDriver
from stentor.core.db.sqlite.driver import SqliteDriver
from stentor.domains.memory.text import excerpts, tokenizer
from stentor.domains.memory.text.excerpts import (
    PassageSource,
    make_excerpt,
    question_terms,
    rank_passages,
    term_coverage,
)
from stentor.domains.monitoring import service as monitoring
from stentor_vault.notes.model import VaultUnavailable
from tests.conftest import MakeWorld
from tests.domains.memory.conftest import Notes
from tests.requirements import requirement


@requirement("memory.keyword-search")
async def test_matches_are_the_best_first_with_the_hit_in_the_excerpt(notes: Notes) -> None:
    filler = "words of no account. " * 40
    await notes.write("title.md", f"# Deployment\n\n{filler}")
    await notes.write("body.md", f"# Other\n\n{filler} We were deploying it. {filler}")
    for i in range(5):
        await notes.write(f"none{i}.md", filler)
    answer = (await notes.post("search/keyword", terms=["deployed"], fields=["title", "content"], limit=20)).json()
    assert [match["path"] for match in answer["matches"]] == ["title.md", "body.md"]
    assert answer["total_matches"] == 2
    assert answer["search_latency_ms"] > 0
    first, second = answer["matches"]
    assert (first["title"], second["title"]) == ("Deployment", "Other")
    assert first["relevance_score"] > second["relevance_score"] > 0
    assert "We were deploying it." in second["excerpt"]
    assert len(second["excerpt"]) < 240


@requirement("memory.keyword-search")
async def test_the_limit_caps_the_matches_and_not_the_total(notes: Notes) -> None:
    for i in range(5):
        await notes.write(f"{i}.md", "same word")
    answer = (await notes.post("search/keyword", terms=["word"], limit=2)).json()
    assert (len(answer["matches"]), answer["total_matches"]) == (2, 5)


@requirement("memory.keyword-fields-and-mode")
async def test_only_the_fields_that_are_named_are_looked_in(notes: Notes) -> None:
    await notes.write("t.md", "# apple\n", frontmatter={"tags": ["pear"]})
    await notes.write("c.md", "apple pear\n", frontmatter={"title": "Other", "tags": "plum, cherry"})
    assert await notes.found("apple", fields=["title"]) == ["t.md"]
    assert await notes.found("pear", fields=["tags"]) == ["t.md"]
    assert await notes.found("cherry", fields=["tags"]) == ["c.md"]
    assert sorted(await notes.found("apple", fields=["content"])) == ["c.md", "t.md"]
    assert await notes.found("pear", fields=["title", "content"]) == ["c.md"]


@requirement("memory.file-name-searched")
async def test_a_note_is_found_by_its_file_name_also_if_it_has_another_title(notes: Notes) -> None:
    await notes.write("meetings/2026-03-14 budget.md", "# Review\n\nLess travel.\n")
    await notes.write("meetings/2026-03-15.md", "---\ntitle: Budget\n---\nThe day after 2026-03-13.\n")
    assert await notes.found("2026-03-14") == ["meetings/2026-03-14 budget.md"]
    assert await notes.found("2026-03-15", fields=["title"]) == ["meetings/2026-03-15.md"]
    assert await notes.found("meetings") == []


@requirement("memory.keyword-fields-and-mode")
async def test_all_wants_every_term_and_any_wants_one(notes: Notes) -> None:
    await notes.write("both.md", "red blue")
    await notes.write("one.md", "red")
    assert await notes.found("red", "blue", match_mode="all") == ["both.md"]
    assert sorted(await notes.found("red", "blue", match_mode="any")) == ["both.md", "one.md"]
    assert await notes.found("red", "green", match_mode="all") == []


@requirement("memory.keyword-fields-and-mode")
async def test_any_ignores_words_that_nearly_every_note_has_unless_there_are_no_others(notes: Notes) -> None:
    await notes.write("fox.md", "the fox and its den")
    await notes.write("sea.md", "the sea")
    assert await notes.found("where", "is", "the", "fox", match_mode="any") == ["fox.md"]
    assert sorted(await notes.found("the", match_mode="any")) == ["fox.md", "sea.md"]
    assert await notes.found("the", "fox", match_mode="all") == ["fox.md"]
    assert sorted(await notes.found("the sea", "fox", match_mode="any")) == ["fox.md", "sea.md"]  # a phrase is meant


async def test_an_excerpt_shows_the_words_that_were_looked_for_and_not_those_that_were_ignored(notes: Notes) -> None:
    await notes.write("a.md", "When it is there, the sea is calm. " * 20 + "A fox has a den. " + "Birds sing. " * 40)
    (match,) = (await notes.post("search/keyword", terms=["where", "is", "the", "fox"])).json()["matches"]
    assert "fox" in match["excerpt"]


@requirement("memory.keyword-search")
async def test_a_few_words_are_not_better_than_a_sentence_because_they_are_few(notes: Notes) -> None:
    sentence = "Ann said that the kiln in the shed behind the school was repaired last Friday by her brother."
    await notes.write("long.md", f"{sentence} The kiln works.")
    await notes.write("short.md", "The kiln!")
    await notes.write("other.md", "Nothing of it. " * 60)
    assert await notes.found("kiln") == ["long.md", "short.md"]
    assert await notes.found("\ue000") == []


@requirement("memory.long-notes-found")
async def test_a_long_note_with_all_words_is_before_a_short_one_with_one_of_them(notes: Notes) -> None:
    pages = "The office opens at nine and everybody signs in. " * 300
    await notes.write("handbook.md", f"{pages}\n\nThe sprinkler valve key hangs behind the green door.\n\n{pages}")
    await notes.write("short.md", "The key is lost.")
    for n in range(30):
        await notes.write(f"{n}.md", f"Minutes of the meeting {n} about the harbour.")
    words = ["sprinkler", "valve", "key", "hangs", "green", "door"]
    assert await notes.found(*words, match_mode="any") == ["handbook.md", "short.md"]


@pytest.mark.parametrize(
    "body",
    [
        {"terms": []},
        {"terms": "x"},
        {"terms": [""]},
        {"terms": ["x"], "fields": ["body"]},
        {"terms": ["x"], "fields": []},
        {"terms": ["x"], "match_mode": "some"},
        {"terms": ["x"], "limit": 0},
        {"terms": ["x"], "limit": "1"},
    ],
    ids=str,
)
@requirement("memory.keyword-fields-and-mode")
async def test_other_values_are_400(notes: Notes, body: dict[str, Any]) -> None:
    assert (await notes.post("search/keyword", **body)).status_code == 400


@pytest.mark.parametrize(
    ("term", "text"),
    [
        ("deploying", "the deployment"),
        ("Größe", "die groesse? nein: GRÖSSE"),
        ("resume", "my résumé"),
        ("naïve", "a NAIVE plan"),
        ("日本語", "これは日本語です"),
        ("한국", "대한국어"),
        ("two words", "exactly Two Words here"),
        ("C3PO", "about c3po"),
        ("Tromso", "a week in Tromsø"),
        ("Łódź", "the train to Lodz"),
        ("oeuvre", "son œuvre"),
        ("hello", "say 𝐇𝐞𝐥𝐥𝐨"),
        ("𝐇𝐞𝐥𝐥𝐨", "say 𝐇𝐞𝐥𝐥𝐨"),
        ("watcher", "see VaultWatcher"),
        ("check changes", "self.checkChanges()"),
        ("http response", "then getHTTPResponseCode"),
        ("user", "the userIDs"),
        ("checkChanges", "self.checkChanges()"),
        ("1.2.3", "since v1.2.3"),
        ("v1.2.3", "since v1.2.3"),
        ("v1.2.3", "since 1.2.3"),
        ("(V1.2.3-rc1)?", "since 1.2.3-rc1"),
        ("v1", "since v1.2.3"),
        ("1.2.3-rc1", "since V1.2.3-rc1"),
        ("C++ style", "our c++ style"),
        ("C++", "用C++编程"),
        ("email", "send an E-mail"),
        ("e-mail", "send an email"),
        ("e-mails", "send an e-mail"),
        ("wifi", "the Wi-Fi of the office"),
        ("covid19", "a test for Covid\u201119"),
        ("maxRetries", "set max_retries to 3"),
        ("1234567", "costs 1,234,567.89 euros"),
        ("1,234,567", "costs 1234567 euros"),
        ("1,234,567", "costs 1,234,567 euros"),
        ("1234567", "kostet 1.234.567 Euro"),
        ("1234567", "co\u00fbte 1\u202f234\u202f567 euros"),
        ("go", "we went there"),
        ("bought", "to buy a house"),
        ("mouse", "three mice"),
        ("analysis", "all analyses"),
        ("pdf", "two PDFs"),
        ("pdfs", "two PDFs"),
        ("\u0645\u062d\u0645\u062f", "\u0645\u064f\u062d\u064e\u0645\u0651\u064e\u062f"),
        ("\u05e9\u05b8\u05c1\u05dc\u05d5\u05b9\u05dd", "\u05e9\u05dc\u05d5\u05dd"),
    ],
)
async def test_a_word_is_found_in_its_other_forms(notes: Notes, term: str, text: str) -> None:
    await notes.write("a.md", text)
    await notes.write("b.md", "nothing of it")
    assert await notes.found(term) == ["a.md"]


@requirement("memory.names-in-code")
async def test_names_of_languages_are_words_of_their_own(notes: Notes) -> None:
    for name, text in {
        "c": "Plain C, i++ and [[C#Files]]\n\n## C ##\n",
        "cpp": "C++ (as C++17) here",
        "csharp": "Use C#.",
        "fsharp": "F# too",
    }.items():
        await notes.write(f"{name}.md", text, frontmatter={"title": "Style"})
    found = [await notes.found(term, fields=["content"]) for term in ("C", "C++", "C#", "f#", "i")]
    assert found == [["c.md"], ["cpp.md"], ["csharp.md"], ["fsharp.md"], ["c.md"]]


@requirement("memory.names-in-code")
async def test_the_parts_of_a_name_come_between_no_other_words_and_only_if_the_text_lacks_them(notes: Notes) -> None:
    await notes.write("a.md", "red fooBar blue", frontmatter={"title": "VaultWatcher"})
    assert await notes.found("red fooBar blue") == await notes.found("vault", fields=["title"]) == ["a.md"]
    assert tokenizer.join_terms("fooBar of a foo and a fooBaz") == "foobar of a foo and a foobaz foo bar foo baz"
    assert tokenizer.join_terms("The fooBar of a foo: bar, URLs") == "the foobar of a foo bar url"
    blob = "aGVsbG8gV29ybGQ"
    assert tokenizer.join_terms(blob) == blob.lower()


@requirement("memory.names-in-code")
def test_other_spellings_are_terms_once_and_only_of_words_and_numbers() -> None:
    other = {
        "2024-03-01 to 2024-03-09": "2024 03 01 to 2024 03 09 march",
        "e-mail, E-Mails and email": "e mail e mail and email",
        "2,500 and 2,500": "2 500 and 2 500 2500",
        "1.234 192.168.100.20 1,23 12345,678 v1,234 1,234,56": "1 234 192 168 100 20 1 23 12345 678 v1 234 1 234 56",
        "12,345.678": "12 345 678 12345",
        "123e4567-e89b-12d3-a456-426614174000": "123e4567 e89b 12d3 a456 426614174000",
        "a-title-in-an-url and --dry-run": "a titl in an url and dri run",
        "2024-13-01 12024-03-01 2024-03-011": "2024 13 01 12024 03 01 2024 03 011",
    }
    assert {text: tokenizer.join_terms(text) for text in other} == other
    # Words of a phrase keep their neighbours.
    assert tokenizer.tokenize_query("an e-mail") == ["an", "e", "mail"]


@requirement("memory.possessives")
@pytest.mark.parametrize("mark", ["'", "\u2019"])
async def test_a_name_in_the_possessive_and_a_contraction_are_the_name_and_the_word(notes: Notes, mark: str) -> None:
    await notes.write("a.md", "Ann: Her name is Luna.")
    await notes.write("b.md", "What is Ben to say? He can do it.")
    await notes.write("c.md", f"We{mark}ll visit Cleo{mark}s house")
    assert await notes.found(f"Ann{mark}s") == ["a.md"]
    assert await notes.found("we") == await notes.found("Cleo house") == await notes.found(f"CLEO{mark}S") == ["c.md"]
    for word in (f"What{mark}s", f"I{mark}m", f"didn{mark}t", f"can{mark}t,"):
        assert await notes.found("Luna", word, match_mode="any") == ["a.md"]
    found = (await notes.post("search/hybrid", query=f"what{mark}s Ann{mark}s pet{mark}s name")).json()["matches"]
    assert found[0]["path"] == "a.md"
    assert tokenizer.tokenize("rock'n'roll 's' x' o'brien's 90's it's'") == "rock n roll s x o brien 90 it".split()


@requirement("memory.compounds")
async def test_the_words_of_a_compound_are_words_of_a_hybrid_query(notes: Notes) -> None:
    await notes.write("a.md", "a client asks the server")
    await notes.write("b.md", "none of it: 05, 6, ray, 2023 and 08 of IL")
    for query, paths in {"client/server": ["a.md"], "server-side": ["a.md"], "X-ray IL-6 2023-05-08": []}.items():
        found = (await notes.post("search/hybrid", query=query)).json()["matches"]
        assert [match["path"] for match in found] == paths


@requirement("memory.dates")
@pytest.mark.parametrize(
    "asked",
    [
        *("2024-03-01", "1 March 2024", "the 1st of March, 2024", "Mar. 1, 2024", "2024/03/01", "01.03.2024"),
        *("1.3.2024", "1-Mar-2024", "1. March 2024"),
    ],
)
async def test_a_date_is_found_in_each_of_its_forms(notes: Notes, asked: str) -> None:
    right = {"iso.md": "2024-03-01", "day.md": "1 March 2024", "month.md": "March 1, 2024", "dots.md": "01.03.2024"}
    other = {"a.md": "2024-01-03", "b.md": "3 January 2024", "c.md": "March 11, 2024", "d.md": "03.01.2024"}
    for path, date in (right | other).items():
        await notes.write(path, f"On {date} the boiler was inspected.")
    question = f"What was inspected on {asked}?"
    found = (await notes.post("search/hybrid", query=question)).json()["matches"]
    assert {match["path"] for match in found[:4]} == right.keys()
    assert set((await notes.found(*question.split(), match_mode="any"))[:4]) == right.keys()


@requirement("memory.dates")
def test_only_dates_that_have_one_meaning_are_found_in_their_other_forms() -> None:
    september = ["2024-09-01", "1 september 2024", "september 1 2024", "01.09.2024"]
    for text in ("Sept. 1, 2024", "1 sept 2024", "1st of September, 2024?"):
        assert tokenizer.find_dates(text) == september
    assert tokenizer.find_dates("13/03/2024")[0] == tokenizer.find_dates("03/13/2024")[0] == "2024-03-13"
    for text in ("03/01/2024", "1.12.2023.4", "10.0.2024", "x-2024-03-01", "2024/03-01"):
        assert tokenizer.find_dates(text) == []


@requirement("memory.dates")
@pytest.mark.parametrize("asked", ["1 Augu\u017ft 2024", "APR\u0130L 1, 2024", "1 apr\u0131l 2024"])
async def test_a_month_with_a_letter_that_is_like_an_ascii_letter_is_no_date(notes: Notes, asked: str) -> None:
    await notes.write("a.md", f"inspected on {asked}")
    found = await notes.post("search/hybrid", query=f"inspected on {asked}")
    assert [match["path"] for match in found.json()["matches"]] == ["a.md"]
    assert await notes.found("inspected", *asked.split(), match_mode="any") == ["a.md"]


@requirement("memory.long-questions")
async def test_of_a_very_long_question_the_words_of_its_phrases_count_alone(notes: Notes) -> None:
    await notes.write("a.md", "of IL alone")
    await notes.write("b.md", "nothing of it, and the")
    for pasted, paths in {40: [], 70: ["a.md"]}.items():
        query = " ".join(f"word{i}" for i in range(pasted)) + ' "and the IL-6"'
        found = (await notes.post("search/hybrid", query=query)).json()["matches"]
        assert [match["path"] for match in found if match["keyword_score"]] == paths


@requirement("memory.quoted-phrases")
@pytest.mark.parametrize(
    "query", ['"quick brown fox"', "where is the “quick brown fox”", "where „was the „quick brown fox“"]
)
async def test_a_phrase_in_quotes_is_before_its_words_in_another_order(notes: Notes, query: str) -> None:
    await notes.write("a.md", "The brown quick fox is lazy.")
    await notes.write("b.md", "The quick brown fox is lazy.")
    for i in range(5):
        await notes.write(f"none{i}.md", "words of no account")
    for asked, paths in {
        query: ["b.md", "a.md"],
        query.strip('"').translate({8220: "", 8221: "", 8222: ""}): ["a.md", "b.md"],
    }.items():
        found = (await notes.post("search/hybrid", query=asked)).json()["matches"]
        assert [match["path"] for match in found] == paths


@pytest.mark.parametrize(
    ("query", "text", "marked"),
    [
        ("deploying", "The Deployment: redeploy, deploy_it", ["Deployment", "deploy"]),
        ("Größe", "die groesse? GRÖSSE oder Größe", ["GRÖSSE", "Größe"]),
        ("сердце", "Моё Сердце", ["Сердце"]),
        ("日本", "これは日本語です", ["日", "本"]),
        ("schopfer", "Der Scho\u0308pfer sprach", ["Scho\u0308pfer"]),
        ("watching C++", "Class VaultWatch, in C++ not C", ["VaultWatch", "C++"]),
        ("", "nothing", []),
    ],
)
def test_the_words_of_a_query_are_marked_in_their_other_forms(query: str, text: str, marked: list[str]) -> None:
    spans = tokenizer.find_spans(text, frozenset(tokenizer.tokenize(query)))
    assert [text[start:end] for start, end in spans] == marked


@requirement("memory.names-in-code")
@pytest.mark.parametrize(
    ("query", "text", "marked"),
    [
        ("email", "Send an e-mail.", "e-mail"),
        ("e-mail", "Send an email.", "email"),
        ("e-mail", "Send an E-mail.", "E-mail"),
        ("covid19 covid", "A test for Covid-19.", "Covid-19"),
        ("1234567", "It costs 1,234,567 euros.", "1,234,567"),
        ("1,234,567", "It costs 1234567 euros.", "1234567"),
        ("march", "They met on 2024-03-01.", "2024-03-01"),
        ("v1.2", "Since 1.2 only.", "1.2"),
        ("1.2", "Since v1.2 only.", "v1.2"),
        ("vault watcher", "A VaultWatcher runs.", "VaultWatcher"),
        ("go", "They went there.", "went"),
        ("eat", "The cat ate it.", "ate"),
    ],
)
async def test_another_spelling_is_in_the_excerpt_marked_and_in_the_passages(
    notes: Notes, query: str, text: str, marked: str
) -> None:
    await notes.write("a.md", f"{'Other things. ' * 100}\n\n{text}\n\n{'Many more. ' * 100}")
    (match,) = (await notes.post("search/keyword", terms=query.split())).json()["matches"]
    assert text in match["excerpt"]
    spans = tokenizer.find_spans(text, tokenizer.query_terms(query.split()))
    assert text[spans[0][0] : spans[-1][1]] == marked
    source = PassageSource("a.md", "a", f"Nothing of it.\n\n{text}", 1.0)
    (passage,) = rank_passages([source], query, 3)
    assert (passage.text, term_coverage([passage], query)) == (text, 1.0)


@requirement("memory.questions-without-spaces")
@pytest.mark.parametrize(
    ("question", "text"),
    [
        ("数据库什么时候备份", "我们每天晚上两点备份数据库"),
        ("次の会議はいつですか", "会議は金曜日です"),
        ("데이터베이스를 백업하나요", "매일 데이터베이스 백업"),
        ("PostgreSQL数据库什么时候备份？", "备份"),
    ],
)
async def test_a_question_in_a_script_without_spaces_finds_notes_with_a_word_of_it(
    notes: Notes, question: str, text: str
) -> None:
    await notes.write("a.md", text)
    await notes.write("b.md", "金木水火土 nothing of it")
    found = (await notes.post("search/hybrid", query=question)).json()
    assert ([match["path"] for match in found["matches"]], found["total_matches"]) == (["a.md"], 1)
    assert await notes.found(question) == []  # a term is a phrase


def test_the_words_of_a_question_with_spaces_are_as_they_stand_and_few_pairs_are_made() -> None:
    question = "How is the naïve 日本 plan\n(v2)?"
    assert tokenizer.split_words(question) == question.split()
    assert len(tokenizer.split_words("数据库" * 3_000)) == tokenizer.MAX_PAIRED_CHARS - 1


@pytest.mark.parametrize("query", ["how are backups made", "made made backup"])
def test_an_excerpt_is_of_the_passage_that_has_most_words_of_the_query(query: str) -> None:
    answer = "Backups are made nightly with restic."
    text = f"This handbook says how our things are made.\n\n{'Other. ' * 1400}\n\n## Safety\n\n{answer} Made so."
    terms = frozenset(tokenizer.tokenize(" ".join(tokenizer.drop_stop_words(query.split()))))
    assert answer in make_excerpt(text, terms)
    # Of several that have all the same words, the first one.
    assert make_excerpt(text, frozenset({"made"})).startswith("This handbook")


def test_an_excerpt_for_a_query_of_thousands_of_words_takes_no_longer_than_the_text() -> None:
    terms = frozenset(f"w{number}x" for number in range(5000))
    text = " ".join(f"w{number}" for number in range(100_000))
    begun_at = time.process_time()
    assert make_excerpt(f"{text} w7x", terms).endswith("w99999 w7x")
    assert time.process_time() - begun_at < 60


def test_no_word_far_after_the_first_hit_is_compared_for_an_excerpt(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[str] = []
    normalize = tokenizer.normalize_word
    monkeypatch.setattr(tokenizer, "normalize_word", lambda word: compared.append(word) or normalize(word))
    text = f"{'quiet ' * 10_000}zebra"
    assert make_excerpt(f"zebra {text}", frozenset({"zebra", "quagga"})).startswith("zebra quiet")
    assert len(compared) < 5000
    assert make_excerpt(f"{text} quagga", frozenset({"zebra", "quagga", "quoll"})).endswith("quiet zebra quagga")


@pytest.mark.parametrize("database", ["sqlite"])
async def test_excerpts_of_long_notes_are_made_beside_the_event_loop(
    notes: Notes, monkeypatch: pytest.MonkeyPatch
) -> None:
    await notes.write("long.md", f"# Zebra\n\n{'quiet ' * 10_000}")
    await notes.write("short.md", "a quagga\n")
    threads: list[threading.Thread] = []
    find_hit = excerpts._find_best_hit

    def find_best_hit(*args: Any) -> Any:
        threads.append(threading.current_thread())
        return find_hit(*args)

    monkeypatch.setattr(excerpts, "_find_best_hit", find_best_hit)
    searches: dict[str, dict[str, Any]] = {"keyword": {"terms": ["zebra"]}, "hybrid": {"query": "zebra"}}
    for mode, asked in searches.items():
        assert (await notes.post(f"search/{mode}", **asked)).json()["matches"][0]["path"] == "long.md"
    assert await notes.found("quagga") == ["short.md"]
    assert [thread is threading.current_thread() for thread in threads] == [False, False, True]


@pytest.mark.parametrize("text", ["Der Schöpfer sprach", "がくせい", "한국어 is Korean", "x\u030cyz", "日\u0301x"])
def test_decomposed_text_has_the_same_terms(text: str) -> None:
    decomposed = unicodedata.normalize("NFD", text)
    assert tokenizer.tokenize(decomposed) == tokenizer.tokenize(text)
    assert "" not in tokenizer.tokenize(text)
    assert question_terms(decomposed) == question_terms(text)


def test_words_have_their_terms_also_if_threads_stem_at_once() -> None:
    words = [
        f"{a}{b}{end}"
        for a in ("de", "mo", "in")
        for b in ("ploy", "register", "connect", "hotel", "nation")
        for end in ("", "s", "ing", "ed", "ation", "fulness", "ally")
    ]
    stem = tokenizer._normalize_short.__wrapped__
    alone = [stem(word) for word in words]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            at_once = [pool.submit(lambda: [stem(word) for word in words]) for _ in range(4)]
            assert [each.result() for each in at_once] == [alone] * 4
    finally:
        sys.setswitchinterval(interval)


def test_a_long_run_of_accents_is_read_in_linear_time() -> None:
    """In quadratic time it would take minutes."""
    text = "a" + "\u0315\u0300" * 400_000 + " end"
    assert tokenizer.tokenize(text) == ["a", "end"]
    assert [term for _, _, term in tokenizer.iter_hits(text, frozenset(("a", "end")))] == ["a", "end"]


def test_a_word_of_more_than_64_characters_is_its_own_term_and_not_kept_in_memory() -> None:
    assert tokenizer.tokenize("xab" * 20 + "ing") == ["xab" * 20]
    size = tokenizer._normalize_short.cache_info().currsize
    assert tokenizer.tokenize("XAB" * 21 + "ING") == ["xab" * 21 + "ing"]
    assert tokenizer._normalize_short.cache_info().currsize == size


async def test_syntax_in_a_term_is_text(notes: Notes) -> None:
    await notes.write("a.md", 'apple OR "pear" NEAR(x) title:')
    for term in ('"', "*", "(", "AND", "title:apple", "apple*", 'x" OR "y', "NEAR(", "-", "{title}:", "'", "\\", "%"):
        answer = await notes.post("search/keyword", terms=[term])
        assert answer.status_code == 200, (term, answer.text)
    assert await notes.found("!!!") == []
    assert await notes.found("!!!", "apple", match_mode="all") == ["a.md"]


async def test_an_edit_in_the_folder_is_found_and_so_is_a_deletion_and_a_rename(notes: Notes) -> None:
    (notes.root / "deep" / "er").mkdir(parents=True)
    note = notes.root / "deep" / "er" / "human.md"
    note.write_text("quixotic")
    await notes.until_found("quixotic", ["deep/er/human.md"])
    note.write_text("prosaic")
    await notes.until_found("prosaic", ["deep/er/human.md"])
    assert await notes.found("quixotic") == []
    (notes.root / "deep").rename(notes.root / "moved")
    await notes.until_found("prosaic", ["moved/er/human.md"])
    note = notes.root / "moved" / "er" / "human.md"
    note.unlink()
    await notes.until_found("prosaic", [])


async def test_a_whole_folder_that_comes_or_goes_is_noticed(notes: Notes, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    for i in range(3):
        (outside / f"{i}.md").write_text("arrived")
    outside.rename(notes.root / "in")
    await notes.until_found("arrived", ["in/0.md", "in/1.md", "in/2.md"])
    shutil.rmtree(notes.root / "in")
    await notes.until_found("arrived", [])


def lose(notes: Notes, *, damaged: bool) -> None:
    """The index is deleted, or is nothing that this version could use."""
    driver = notes.world.kernel.infra.db.driver
    if isinstance(driver, SqliteDriver):
        file = notes.root.parent / "index" / "memory.db"
        file.write_bytes(b"garbage" * 1000) if damaged else file.unlink()
        return
    assert isinstance(driver, PostgresDriver)
    strange = "update stentor_index.facts set value = 99 where name = 'version'"
    with psycopg.connect(driver.url, autocommit=True) as admin:
        admin.execute(strange if damaged else "drop schema stentor_index cascade")


@requirement("memory.data-folder")
async def test_an_index_that_was_deleted_or_damaged_comes_back(make_world: MakeWorld, tmp_path: Path) -> None:
    first = Notes(await make_world(SERVICE_MEMORY="1"), tmp_path / "vault")
    await first.write("a.md", "remembered")
    await first.world.memory.stop()
    for damaged in (False, True):
        lose(first, damaged=damaged)
        again = Notes(await make_world(SERVICE_MEMORY="1"), tmp_path / "vault")
        await again.until_found("remembered", ["a.md"])
        await again.world.memory.stop()


@requirement("memory.health")
async def test_health_counts_the_documents_once(notes: Notes, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = notes.world.kernel.memory
    assert memory is not None
    counted = AsyncMock(side_effect=memory.default.index.totals)
    monkeypatch.setattr(memory.default.index, "totals", counted)
    assert (await notes.world.admin.get("/api/v1/memory/health")).json()["stats"]["total_documents"] == 0
    assert counted.await_count == 1


@requirement("memory.health", "memory.without-model-degraded")
async def test_health_tells_each_part_and_the_figures(notes: Notes) -> None:
    await notes.write("a.md", "x" * 1000)
    await notes.read("a.md")
    await notes.read("a.md")
    body = (await notes.world.admin.get("/api/v1/memory/health")).json()
    assert body["status"] == "degraded"
    assert set(body["components"]) == {"obsidian", "vector_store"}
    for part in body["components"].values():
        assert part["latency_ms"] > 0
        assert part["sync_lag_ms"] >= 0
    assert body["components"]["obsidian"]["status"] == "healthy"
    assert body["components"]["vector_store"]["status"] == "degraded"
    assert body["stats"]["total_documents"] == 1
    assert body["stats"]["total_size_mb"] == 0.001
    assert body["stats"]["cache_hit_ratio"] == 0.5
    assert body["stats"]["last_sync"].endswith("Z")


async def test_a_vault_that_is_gone_is_unhealthy_and_its_routes_503_until_it_is_back(
    notes: Notes, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Else an alert's check of the moment before would still count.
    monkeypatch.setattr(monitoring, "CACHE_SECONDS", 0)
    await notes.write("a.md", "one")
    aside = notes.root.rename(notes.root.with_name("aside"))
    for answer in (await notes.write("a.md", "two"), await notes.read("a.md")):
        assert answer.status_code == 503
        assert str(notes.root) not in answer.text, "a path of the machine"
    body = (await notes.world.admin.get("/api/v1/memory/health")).json()
    assert (body["status"], body["components"]["obsidian"]["status"]) == ("unhealthy", "unhealthy")
    assert (await notes.world.admin.get("/api/v1/health/detailed")).status_code == 503
    aside.rename(notes.root)
    assert await notes.content("a.md") == "one"
    assert await notes.found("one") == ["a.md"]


@requirement("memory.missing-folder-at-start")
async def test_a_start_without_the_folder_of_known_notes_creates_none_and_forgets_nothing(
    make_world: MakeWorld, tmp_path: Path
) -> None:
    root, team = tmp_path / "drive", tmp_path / "team"
    settings = {"SERVICE_MEMORY": "1", "SERVICE_VAULT_DIR": str(root), "SERVICE_VAULTS": f"team={team}"}
    first = Notes(await make_world(**settings), root)
    await first.write("a.md", "remembered")
    document = {"path": "b.md", "content": "shared"}
    assert (await first.post("write", operation="write", vault="team", document=document)).status_code == 200
    await first.world.memory.stop()
    aside = [folder.rename(folder.with_name(f"{folder.name} aside")) for folder in (root, team)]
    again = Notes(await make_world(**settings), root)
    assert (await again.read("a.md")).status_code == 503
    for vault in again.world.memory.vaults:
        with pytest.raises(VaultUnavailable):
            await vault.indexer.reconcile()
    assert not root.exists()
    assert not team.exists()
    assert await again.found("remembered") == ["a.md"]
    assert await again.found("shared", vault="team") == ["b.md"]
    for folder, away in zip((root, team), aside, strict=True):
        away.rename(folder)
    assert await again.content("a.md") == "remembered"
