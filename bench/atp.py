"""The codec of ATP messages: how many are read and written a second, in process."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

from bench.figures import Figure, at_least, spread
from bench.sizes import Scale
from stentor.core import jsontext
from stentor.domains.atp import checks, jsonform, template
from stentor.domains.atp.text import format_message, parse

TITLE = "the ATP codec"


def run(scale: Scale) -> list[Figure]:
    form = template.example()
    message = jsonform.read(form)
    text, coded = format_message(message), jsontext.encode(form)
    rounds, count = scale.pick(scale.rounds, 3), scale.pick(100_000, 5_000)

    def measured(call: Callable[[], object]) -> list[float]:
        return [_per_second(call, count) for _ in range(rounds)]

    read, written = measured(lambda: parse(text)), measured(lambda: format_message(message))
    whole = measured(lambda: checks.body_of(jsonform.read(jsontext.decode(coded))))
    how = f"six tags and a body of {len(message.content)} characters, {rounds * count:,} times"
    return [
        Figure("parsed", median(read), "/s", f"wire form to message: {how}", at_least(50_000), spread(read)),
        Figure("formatted", median(written), "/s", f"message to wire form: {how}", None, spread(written)),
        Figure("checked", median(whole), "/s", "JSON bytes to message and body, as `send` does", None, spread(whole)),
    ]


def _per_second(call: Callable[[], object], count: int) -> float:
    started = time.perf_counter()
    for _ in range(count):
        call()
    return count / (time.perf_counter() - started)
