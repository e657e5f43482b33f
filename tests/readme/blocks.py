"""The fenced code blocks of a page, and the output of the demo in docs/demo.md."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from tests import ahead

ROOT = Path(__file__).parents[2]
README, DEMO_PAGE = ROOT / "README.md", ROOT / "docs" / "demo.md"
_FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    language: str
    text: str


def blocks(page: Path = README) -> list[Block]:
    """In their order."""
    return [Block(*match.groups()) for match in _FENCE.finditer(page.read_text("utf-8"))]


def demo_output() -> str:
    """What `stentor demo` prints on standard output, without the padding at the ends of lines."""
    done = ahead.run(ahead.DEMO)
    if done.returncode:
        raise AssertionError(f"the demo ended with {done.returncode}: {done.stderr}")
    return "".join(line.rstrip() + "\n" for line in done.stdout.splitlines())


def refresh() -> None:
    """Put what the demo prints now onto its page."""
    (shown,) = blocks(DEMO_PAGE)
    DEMO_PAGE.write_text(DEMO_PAGE.read_text("utf-8").replace(shown.text, demo_output()), "utf-8")


if __name__ == "__main__":
    refresh()
