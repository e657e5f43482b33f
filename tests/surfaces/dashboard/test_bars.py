"""Bar charts: the largest first, and one bar for all others."""

from __future__ import annotations

from stentor.surfaces.dashboard.pages.models.models import MAX_BARS, CostBar, rank_bars


def test_the_largest_come_first_and_the_others_are_one_bar() -> None:
    bars = rank_bars([CostBar(f"m{n}", float(n), 10 * n, 1) for n in range(1, 13)])
    assert [bar.name for bar in bars] == ["m12", "m11", "m10", "m9", "m8", "m7", "m6", "m5", "4 others"]
    others = bars[-1]
    assert (others.dollars, others.tokens, others.calls) == (10.0, 100, 4)
    assert (round(bars[0].share, 1), round(sum(bar.share for bar in bars))) == (15.4, 100)


def test_others_are_counted_that_were_not_read() -> None:
    bars = rank_bars([CostBar(f"k{n}", 1.0, 1) for n in range(MAX_BARS)], count=500, dollars=20.0, tokens=1_000)
    assert (bars[-1].name, bars[-1].dollars, bars[-1].tokens, bars[-1].calls) == ("492 others", 12.0, 992, None)


def test_without_prices_tokens_make_the_length() -> None:
    assert [(bar.name, bar.share) for bar in rank_bars([CostBar("a", 0, 5), CostBar("b", 0, 15)])] == [
        ("b", 75),
        ("a", 25),
    ]
    assert rank_bars([]) == []
    assert rank_bars([CostBar("a", 0, 0)])[0].share == 0
