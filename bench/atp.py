"""The codec of ATP messages: how many are read and written a second, in process."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

from bench.figures import Figure, at_least, spread
from bench.sizes import Scale
from stentor.core import jsontext
from stentor.domains.atp import bodies, json_format
from stentor.domains.atp.text_format import format_message, parse_message

TITLE = "the ATP codec"


def run(scale: Scale) -> list[Figure]:
    form = json_format.example_message()
    message = json_format.read_json_message(form)
    text, coded = format_message(message), jsontext.encode(form)
    rounds, count = scale.pick(scale.rounds, 3), scale.pick(100_000, 5_000)

    def measured(call: Callable[[], object]) -> list[float]:
        return [_per_second(call, count) for _ in range(rounds)]

    read, written = measured(lambda: parse_message(text)), measured(lambda: format_message(message))
    whole = measured(lambda: bodies.parse_body(json_format.read_json_message(jsontext.decode(coded))))
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
