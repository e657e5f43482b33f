"""Prints figures of the code base's shape: `make house`. They are for people, who may look at how they move; no test
holds them.

Counted is the product: every Python file under `src/` and `packages/*/src/` without
generated code and migrations. Lines include
blank ones, comments and docstrings. A function's length is from its `def` to its last line.
"""

from __future__ import annotations

import ast
import io
import re
import statistics
import sys
import tokenize
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCES = (ROOT / "src", *ROOT.glob("packages/*/src"))
LEFT_OUT = ("/generated/", "/migrations/versions/")
FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef
SHORT_FILE = 50
SHORT_MODULE = 60
LARGE_FOLDER = 12


@dataclass(frozen=True)
class SourceFile:
    path: Path
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @property
    def module(self) -> str:
        [root] = (folder for folder in SOURCES if folder in self.path.parents)
        parts = self.path.relative_to(root).with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    @property
    def is_package(self) -> bool:
        return self.path.name == "__init__.py"

    @property
    def lines(self) -> int:
        return len(self.text.splitlines())

    @cached_property
    def functions(self) -> list[FUNCTIONS]:
        return [node for node in ast.walk(self.tree) if isinstance(node, FUNCTIONS)]

    @property
    def comment_lines(self) -> int:
        """Comments that say something: not `# noqa` and `# type:`."""
        tokens = tokenize.generate_tokens(io.StringIO(self.text).readline)
        comments = (token.string for token in tokens if token.type == tokenize.COMMENT)
        return sum(not re.match(r"#\s*(noqa|type:|pragma)", comment) or " - " in comment for comment in comments)

    def imported(self) -> Iterator[str]:
        """Names of modules, and of what may be modules."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                yield node.module
                yield from (f"{node.module}.{alias.name}" for alias in node.names)
            elif isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)


def main() -> None:
    files = [SourceFile(path, path.read_text()) for path in sorted(_paths())]
    width = max(len(label) for label, _ in FIGURES)
    for label, measure in FIGURES:
        sys.stdout.write(f"{label:{width}}  {measure(files)}\n")


def _paths() -> Iterable[Path]:
    paths = (path for folder in SOURCES for path in folder.rglob("*.py"))
    return (path for path in paths if not any(part in path.as_posix() for part in LEFT_OUT))


def total_lines(files: list[SourceFile]) -> str:
    return f"{sum(file.lines for file in files):,}"


def short_files(files: list[SourceFile]) -> int:
    return sum(file.lines < SHORT_FILE and not file.is_package for file in files)


def single_importer_modules(files: list[SourceFile]) -> int:
    importers: Counter[str] = Counter()
    for file in files:
        importers.update(set(file.imported()))
    return sum(importers[file.module] == 1 and file.lines < SHORT_MODULE and not file.is_package for file in files)


def large_folders(files: list[SourceFile]) -> int:
    modules = Counter(file.path.parent for file in files if not file.is_package)
    return sum(count > LARGE_FOLDER for count in modules.values())


def untyped_dicts(files: list[SourceFile]) -> int:
    return sum(len(re.findall(r"\bdict\[str, Any\]", file.text)) for file in files)


def opaque_objects(files: list[SourceFile]) -> int:
    return sum(len(re.findall(r"\bJsonObject\b", file.text)) - _imports_json_object(file) for file in files)


def _imports_json_object(file: SourceFile) -> int:
    return len(re.findall(r"^from .* import .*\bJsonObject\b", file.text, re.M))


def late_imports(files: list[SourceFile]) -> int:
    found: set[tuple[Path, int]] = set()
    for file in files:
        for function in file.functions:
            nodes = (node for node in ast.walk(function) if isinstance(node, ast.Import | ast.ImportFrom))
            found |= {(file.path, node.lineno) for node in nodes}
    return len(found)


def repeated_class_names(files: list[SourceFile]) -> int:
    names = Counter(node.name for file in files for node in ast.walk(file.tree) if isinstance(node, ast.ClassDef))
    return sum(count > 1 for count in names.values())


def comment_share(files: list[SourceFile]) -> str:
    return f"{100 * sum(file.comment_lines for file in files) / sum(file.lines for file in files):.1f}"


def function_lengths(files: list[SourceFile]) -> str:
    lengths = sorted((node.end_lineno or 0) - node.lineno + 1 for file in files for node in file.functions)
    return f"{statistics.median(lengths):.0f}, {lengths[int(len(lengths) * 0.99)]}"


FIGURES: list[tuple[str, Callable[[list[SourceFile]], object]]] = [
    ("Python lines", total_lines),
    ("Python files", len),
    (f"  under {SHORT_FILE} lines, without __init__.py", short_files),
    (f"modules with one importer and under {SHORT_MODULE} lines", single_importer_modules),
    (f"folders with more than {LARGE_FOLDER} modules", large_folders),
    ("dict[str, Any]", untyped_dicts),
    ("  as JsonObject (opaque, named)", opaque_objects),
    ("imports inside functions", late_imports),
    ("class names used more than once", repeated_class_names),
    ("lines of comment in 100", comment_share),
    ("lines of a function: median, p99", function_lengths),
]

if __name__ == "__main__":
    main()
