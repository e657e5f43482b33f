"""Rows of a horizontal bar chart: the largest ones, and one for all others."""

from __future__ import annotations

import msgspec

MAX_BARS = 8


class Bar(msgspec.Struct, frozen=True):
    """What a model, a key or an agent cost. `calls` is None if it is not known, `filter` selects its calls.

    `share` is the part of the total in percent, and the length of the bar.
    """

    name: str
    dollars: float
    tokens: int
    calls: int | None = None
    filter: dict[str, str] = {}
    share: float = 0


def rank(
    bars: list[Bar], count: int | None = None, dollars: float | None = None, tokens: int | None = None
) -> list[Bar]:
    """Return the largest bars by cost, then by tokens, and a last one for the others.

    `count`, `dollars` and `tokens` are those of all, if `bars` are not all. Where nothing has a price, tokens make the
    length.
    """
    bars = sorted(bars, key=lambda bar: (-bar.dollars, -bar.tokens, bar.name))
    total = Bar(
        "",
        sum(bar.dollars for bar in bars) if dollars is None else dollars,
        sum(bar.tokens for bar in bars) if tokens is None else tokens,
    )
    shown, omitted = bars[:MAX_BARS], (len(bars) if count is None else count) - MAX_BARS
    if omitted > 0:
        calls = None if any(bar.calls is None for bar in bars) else sum(bar.calls or 0 for bar in bars[MAX_BARS:])
        rest_dollars = max(0.0, total.dollars - sum(bar.dollars for bar in shown))
        rest_tokens = max(0, total.tokens - sum(bar.tokens for bar in shown))
        shown = [*shown, Bar(f"{omitted} other{'s' if omitted > 1 else ''}", rest_dollars, rest_tokens, calls)]

    def size(bar: Bar) -> float:
        return bar.dollars if total.dollars else bar.tokens

    whole = size(total) or 1
    return [msgspec.structs.replace(bar, share=100 * size(bar) / whole) for bar in shown]
