"""The code keeps to its own rules: lint, format, types, layers, and sizes."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import sysconfig
import tomllib
from functools import cache
from pathlib import Path
from statistics import median

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = sorted(
    path
    for folder in (ROOT / "src", ROOT / "packages")
    for path in folder.rglob("*.py")
    if path.parent.name != "generated"
)
LINT_IMPORTS = str(Path(sysconfig.get_path("scripts")) / "lint-imports")
CHECKS = {
    "ruff": [sys.executable, "-m", "ruff", "check", "--no-cache", "."],
    "format": [sys.executable, "-m", "ruff", "format", "--no-cache", "--check", "."],
    "pyrefly": [sys.executable, "-m", "pyrefly", "check", "--summary=none"],
    "imports": [LINT_IMPORTS, "--no-cache"],
}
MEDIAN_FUNCTION, MEDIAN_FILE, LONGEST_FILE = 10, 250, 450


@pytest.mark.parametrize("command", CHECKS.values(), ids=CHECKS)
def test_the_code_passes(command: list[str]) -> None:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@cache
def nodes() -> list[tuple[Path, ast.FunctionDef | ast.AsyncFunctionDef | ast.Call]]:
    """Every function, method and call in the sources."""
    found = [(path, node) for path in SOURCES for node in ast.walk(ast.parse(path.read_text()))]
    return [(path, node) for path, node in found if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Call)]


@pytest.mark.together("sources")
def test_functions_are_short() -> None:
    lines = [(n.end_lineno or n.lineno) - n.lineno + 1 for _, n in nodes() if not isinstance(n, ast.Call)]
    assert median(lines) <= MEDIAN_FUNCTION


def test_files_are_short() -> None:
    lines = {path: len(path.read_text().splitlines()) for path in SOURCES}
    assert median(lines.values()) <= MEDIAN_FILE
    assert [path.name for path, count in lines.items() if count > LONGEST_FILE] == []


SQL_MODULES = re.compile(r"(^|_)(store|queries)\.py$")
SQL_FOLDERS = ("stentor/core/", "stentor/domains/memory/index/", "stentor/domains/tasks/search/")
"""The database layer itself, and the search indexes, whose modules are their storage engines."""


@pytest.mark.together("sources")
def test_sql_is_in_the_stores_and_queries_of_the_domain_that_owns_the_tables() -> None:
    outside = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path, node in nodes()
        if not SQL_MODULES.search(path.name) and not any(folder in path.as_posix() for folder in SQL_FOLDERS)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Sql"
    ]
    assert outside == []


def test_surfaces_have_no_sql() -> None:
    surfaces = [path for path in SOURCES if "stentor/surfaces/" in path.as_posix()]
    assert [path.name for path in surfaces if re.search(r"\bSql\b|\.rows\(|tx\.run\(", path.read_text())] == []


def test_the_documented_order_of_the_domains_is_the_one_that_is_checked() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    checked = next(contract["layers"] for contract in contracts if contract["name"] == "domain order")
    section = (ROOT / "docs" / "architecture.md").read_text().split("\n## The domains\n")[1].split("\n## ")[0]
    documented = re.findall(r"^    (.+)$", section, re.MULTILINE)
    assert [set(re.findall(r"\w+", line)) for line in documented] == [set(re.findall(r"\w+", row)) for row in checked]
