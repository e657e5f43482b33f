"""The moving picture of the README: `python -m tests.browser.recording` walks through the dashboard of `make demo`."""

from __future__ import annotations

import os
import pty
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont
from playwright.sync_api import Page

from tests.browser.chromium import browser
from tests.browser.conftest import Tab

TARGET = Path("docs/images/tour.webp")
VIEW, SCALED = {"width": 1280, "height": 800}, (960, 600)
SECONDS, CAPTION_HEIGHT, SETTLED = 2.6, 40, 1_000
MAX_BYTES = 2_000_000
_OUTPUT = re.compile(r"dashboard of this demo: .*?(http://\S+?)\s.*?key[^\n]*?\x1b?\S*?([A-Za-z0-9_-]{20,})", re.S)
_STYLES = re.compile(r"\x1b\[[0-9;]*m")


@contextmanager
def demo() -> Iterator[tuple[str, str]]:
    """The dashboard of `stentor demo` at a terminal, which goes on after the report: its address and the key."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "stentor", "demo"]
    environ = {**os.environ, "TERM": "dumb", "COLUMNS": "200", "NO_COLOR": "1"}
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environ)
    os.close(theirs)
    try:
        said = ""
        while "Ctrl-C ends it" not in said:
            said += os.read(ours, 65_536).decode(errors="replace")
        found = _OUTPUT.search(_STYLES.sub("", said))
        assert found, said[-2_000:]
        yield found[1], found[2]
    finally:
        process.terminate()
        process.wait()
        os.close(ours)


def scenes(page: Page) -> list[tuple[str, Callable[[], object]]]:
    """What is shown: a caption, and how to get there from the scene before."""

    def follow(selector: str) -> Callable[[], object]:
        return lambda: page.locator(selector).first.click()

    def go(path: str) -> Callable[[], object]:
        return lambda: page.goto(f"{page.url.partition('/')[0]}//{page.url.split('/')[2]}{path}")

    def scroll(pixels: int) -> Callable[[], object]:
        return lambda: page.mouse.wheel(0, pixels)

    return [
        ("What happens now, and what needs you", lambda: page.get_by_role("button", name="Hide").click()),
        ("Every task: who did it, how long it took, what it cost", go("/tasks?type=triage")),
        ("One task: what it asked, and where its time went", follow("td.title a")),
        ("Why this agent, term by term", scroll(560)),
        ("The agents: results, trust, and who is online", go("/agents")),
        ("What an agent may change about itself, a person decides", go("/governance?status=all")),
        ("The change, line by line", follow("tbody a, .updates a, main td a")),
        ("The memory is Markdown that you edit too", go("/memory")),
        ("And a log that proves who did what", go("/provenance")),
    ]


def record(address: str, key: str, path: str) -> list[Image.Image]:
    frames = []
    with browser(path) as opened:
        context = opened.new_context(viewport=VIEW, color_scheme="light")
        page = context.new_page()
        tab = Tab(page, address)
        page.goto(f"{address}/sign-in")
        page.get_by_label("key").fill(key)
        page.keyboard.press("Enter")
        page.wait_for_url(re.compile(r"/(\?.*)?$"))
        for caption, act in scenes(page):
            act()
            page.wait_for_timeout(SETTLED)
            frames.append(captioned(page.screenshot(), caption))
        assert not tab.errors
    return frames


def captioned(picture: bytes, caption: str) -> Image.Image:
    frame = Image.new("RGB", (SCALED[0], SCALED[1] + CAPTION_HEIGHT), "#1b1f2a")
    frame.paste(Image.open(BytesIO(picture)).convert("RGB").resize(SCALED, Image.Resampling.LANCZOS), (0, 0))
    draw, font = ImageDraw.Draw(frame), ImageFont.load_default(size=18)
    draw.text((SCALED[0] / 2, SCALED[1] + CAPTION_HEIGHT / 2), caption, "white", font, anchor="mm")
    return frame


def main() -> None:
    path = shutil.which("chromium")
    if path is None:
        sys.exit("chromium is not installed; on Debian: apt-get install chromium")
    with demo() as (address, key):
        first, *others = record(address, key, path)
    first.save(TARGET, save_all=True, append_images=others, duration=int(SECONDS * 1000), loop=0, quality=72, method=6)
    size = TARGET.stat().st_size
    print(f"{TARGET}: {len(others) + 1} frames, {size:,} bytes")  # noqa: T201 - the result
    if size > MAX_BYTES:
        sys.exit("It is too large for a README.")


if __name__ == "__main__":
    main()
