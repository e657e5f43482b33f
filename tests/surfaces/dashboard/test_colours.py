"""The colours of both themes: texts have a contrast of 4.5, and what a chart is made of has one of 3 (WCAG 2.2 AA)."""

from __future__ import annotations

import re

import pytest

from stentor.surfaces.dashboard.site.page import PACKAGE_DIR
from tests.requirements import requirement

TEXTS = ("ink", "soft", "faint", "accent", "good", "warn", "bad")
BADGES = ("accent", "good", "warn", "bad", "calm")


def themes() -> dict[str, dict[str, str]]:
    light, dark = (PACKAGE_DIR / "static/css/tokens.css").read_text().split('[data-theme="dark"]')
    colours = {
        name: dict(re.findall("--([a-z_-]+): (#[0-9a-f]{6});", part))
        for name, part in zip("ld", (light, dark), strict=True)
    }
    return {"light": colours["l"], "dark": colours["l"] | colours["d"]}


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    darker, lighter = sorted((luminance(one), luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


@requirement("dashboard.pages-in-a-browser")
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_texts_badges_and_charts_can_be_told_from_what_is_behind_them(theme: str) -> None:
    colours = themes()[theme]
    pairs = [(name, ground, 4.5) for name in TEXTS for ground in ("card", "ground")]
    pairs += [(name, f"{name}-soft", 4.5) for name in BADGES]
    drawn = [name for name in colours if name.startswith(("chart-", "term-"))]
    assert len(drawn) > 10
    pairs += [(name, "card", 3.0) for name in drawn]
    low = {(name, ground): round(contrast(colours[name], colours[ground]), 2) for name, ground, _ in pairs}
    assert [(pair, low[pair[:2]]) for pair in pairs if low[pair[:2]] < pair[2]] == []
