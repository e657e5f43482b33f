"""The code keeps to its own rules: lint, format, types, layers, and sizes."""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from statistics import median

import pytest

from tests import ahead

ROOT = Path(__file__).parents[1]
SOURCES = sorted(
    path
    for folder in (ROOT / "src", ROOT / "packages")
    for path in folder.rglob("*.py")
    if path.parent.name != "generated"
)
MEDIAN_FUNCTION, MEDIAN_FILE, LONGEST_FILE = 10, 250, 450
LARGEST_FOLDER = 12
FOLDERS_OF_ANY_SIZE = {"src/stentor/core/migrations/versions"}
"""Alembic reads all versions from one folder."""


@pytest.mark.parametrize("command", ahead.CHECKS.values(), ids=ahead.CHECKS)
def test_the_code_passes(command: list[str]) -> None:
    done = ahead.run(command)
    assert done.returncode == 0, done.stdout + done.stderr


@cache
def text_of(path: Path) -> str:
    return path.read_text()


def function_lengths(text: str) -> Iterator[int]:
    """Lines of every function and method, however deep, told by their indentation: parsing all takes seventy times as
    long.
    """
    begun: list[tuple[int, int]] = []  # indentation and first line of the functions around a line
    last = 0
    for number, line in enumerate(text.splitlines(), 1):
        code = line.lstrip()
        if not code:
            continue
        indentation = len(line) - len(code)
        while begun and indentation <= begun[-1][0] and code[0] not in ")]}":
            yield last - begun.pop()[1] + 1
        if code.startswith(("def ", "async def ")):
            begun.append((indentation, number))
        last = number
    yield from (last - first + 1 for _, first in begun)


def test_functions_are_short() -> None:
    assert median(length for path in SOURCES for length in function_lengths(text_of(path))) <= MEDIAN_FUNCTION


def test_files_are_short() -> None:
    lines = {path: len(text_of(path).splitlines()) for path in SOURCES}
    assert median(lines.values()) <= MEDIAN_FILE
    assert [path.name for path, count in lines.items() if count > LONGEST_FILE] == []


def test_folders_have_few_modules() -> None:
    modules = Counter(path.parent for path in SOURCES if path.name != "__init__.py")
    large = {folder.relative_to(ROOT).as_posix() for folder, count in modules.items() if count > LARGEST_FOLDER}
    assert large == FOLDERS_OF_ANY_SIZE


SQL_MODULES = re.compile(r"(^|_)(store|queries)\.py$")
SQL_CALL = re.compile(r"(?<![\w.])Sql(\.insert)?\(")
SQL_FOLDERS = ("stentor/core/", "stentor/domains/memory/index/", "stentor/domains/tasks/search/")
"""The database layer itself, and the search indexes, whose modules are their storage engines."""


def test_sql_is_in_the_stores_and_queries_of_the_domain_that_owns_the_tables() -> None:
    outside = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in SOURCES
        if not SQL_MODULES.search(path.name) and not any(folder in path.as_posix() for folder in SQL_FOLDERS)
        for number, line in enumerate(text_of(path).splitlines(), 1)
        if SQL_CALL.search(line)
    ]
    assert outside == []


def test_surfaces_have_no_sql() -> None:
    surfaces = [path for path in SOURCES if "stentor/surfaces/" in path.as_posix()]
    assert [path.name for path in surfaces if re.search(r"\bSql\b|\.rows\(|tx\.run\(", text_of(path))] == []


def test_the_documented_order_of_the_domains_is_the_one_that_is_checked() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    checked = next(contract["layers"] for contract in contracts if contract["name"] == "domain order")
    section = (ROOT / "docs" / "architecture.md").read_text().split("\n## The domains\n")[1].split("\n## ")[0]
    documented = re.findall(r"^    (.+)$", section, re.MULTILINE)
    assert [set(re.findall(r"\w+", line)) for line in documented] == [set(re.findall(r"\w+", row)) for row in checked]
