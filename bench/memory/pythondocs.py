"""`python -m bench.memory.pythondocs PAGES SET`: a public set for `bench.memory.retrieval`, about Python 3.11.

PAGES is the folder `_sources` of Debian's package `python3.11-doc`: one document for each page of the library
reference, the how-tos and the FAQ. The questions were written before any search was tried on them, by someone who
knows Python and looked only at the names of the pages; each names the pages that answer it. Writes corpus.jsonl,
queries.jsonl and qrels.tsv to the folder SET.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path

FOLDERS = ("library", "howto", "faq")
QUESTIONS = Path(__file__).parent / "python-docs.tsv"
"""A question and the pages that answer it, separated by a tab and commas."""
SUFFIX = ".rst.txt"
_ROLE = re.compile(r":[a-z:]+:`[!~]?([^`<]+?)(?:\s*<[^`>]*>)?`")
_UNDERLINE = re.compile(r"(?m)^ *(?P<title>\S.*)\n[=*#-]{3,}$")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.memory.pythondocs", description="Write a public set.")
    parser.add_argument("pages", type=Path, help="the folder _sources of the package python3.11-doc")
    parser.add_argument("set", type=Path, help="the folder for the three files")
    options = parser.parse_args()
    pages = read_pages(options.pages)
    questions = read_questions()
    options.set.mkdir(parents=True, exist_ok=True)
    _write_lines(options.set / "corpus.jsonl", [{"_id": page, **text} for page, text in pages.items()])
    _write_lines(options.set / "queries.jsonl", [{"_id": f"q{n}", "text": q} for n, (q, _) in enumerate(questions)])
    judged = [f"q{n}\t{page}\t1\n" for n, (_, answers) in enumerate(questions) for page in answers if page in pages]
    (options.set / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(judged))
    print(f"{len(pages)} pages, {len(questions)} questions, {len(judged)} answers in {options.set}")


def read_questions() -> list[tuple[str, list[str]]]:
    """Return the questions, each with the pages that answer it."""
    rows = [line.split("\t") for line in QUESTIONS.read_text().splitlines()]
    return [(question, answers.split(",")) for question, answers in rows]


def read_pages(folder: Path) -> dict[str, dict[str, str]]:
    """Return the title and the text of each page by its name (`library/zipfile`), without Sphinx's roles."""
    return {
        f"{part}/{file.name.removesuffix(SUFFIX)}": _split_title(_ROLE.sub(r"\1", file.read_text()))
        for part in FOLDERS
        for file in sorted((folder / part).glob(f"*{SUFFIX}"))
    }


def _split_title(text: str) -> dict[str, str]:
    heading = _UNDERLINE.search(text)
    return (
        {"title": heading["title"].strip(), "text": text[heading.end() :]} if heading else {"title": "", "text": text}
    )


def _write_lines(file: Path, rows: list[dict[str, str]]) -> None:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


if __name__ == "__main__":
    main()
