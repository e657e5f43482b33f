"""Between any two writes of the journal the service dies, its worker dies, or a commit has an unknown outcome.

STENTOR_JOURNAL_FAULTS=400 injects that many, one in each run, at every commit of random programs one after the other.
STENTOR_JOURNAL_MANY=10000 injects that many at random commits, many in each run.
"""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from stentor.core.db.postgres.driver import PostgresDriver
from stentor.core.db.sqlite.driver import SqliteDriver
from stentor.testing import FixedClock
from tests.databases import thorough
from tests.faults.checker import check
from tests.faults.journal.cases import Case, run_each_fault, run_random_faults
from tests.faults.journal.commits import Fault
from tests.faults.journal.installation import Installation
from tests.faults.journal.programs import Node
from tests.requirements import requirement

FAULTS = int(os.environ.get("STENTOR_JOURNAL_FAULTS", "400" if thorough() else "12"))
MANY = int(os.environ.get("STENTOR_JOURNAL_MANY", FAULTS))
SEED = int(os.environ.get("STENTOR_JOURNAL_SEED", "1"))
JOURNAL = "task_steps"
DIES = Fault(is_done=False, kills_worker=True)
pytestmark = pytest.mark.timeout(1200 + FAULTS + MANY)


@pytest.fixture
async def installation(
    driver: SqliteDriver | PostgresDriver, clock: FixedClock, tmp_path: Path
) -> AsyncIterator[Installation]:
    made = Installation(driver, clock, tmp_path)
    await made.start()
    yield made
    await made.close()
    assert check(driver.path if isinstance(driver, SqliteDriver) else driver.url) == []


@requirement("steps.faults")
async def test_a_fault_at_any_commit_changes_no_result_and_repeats_nothing(installation: Installation) -> None:
    count, seed = 0, SEED
    while count < FAULTS:
        injected, wrong = await run_each_fault(installation, seed, FAULTS - count)
        assert wrong == []
        count, seed = count + injected, seed + 1


async def test_the_checks_find_a_payment_that_is_no_effect(installation: Installation) -> None:
    program = [{"kind": "step", "id": "0"}, {"kind": "unprotected", "id": "1"}]
    assert "the effect 1 (unprotected) happened 2 times" in await run_everywhere(installation, program, DIES)


async def test_the_checks_find_a_step_that_was_recorded_and_is_lost(installation: Installation) -> None:
    program = [{"kind": "step", "id": "0"}, {"kind": "sleep", "id": "1"}]
    found = await run_everywhere(installation, program, Fault(is_done=False, is_lie=True))
    assert "the step 0 ran 2 times, and the worker died 0 times" in found


async def run_everywhere(installation: Installation, program: list[Node], fault: Fault) -> str:
    """Run a program with a fault at each commit of its journal; return what the checks find."""
    # Of all commits some come by the clock, of what agents are present for example, and would shift the numbers.
    first = Case(0, program, {}, JOURNAL)
    assert await first.run(installation) == []
    commits = range(1, first.commits + 1)
    return str([await Case(0, program, {commit: fault}, JOURNAL).run(installation) for commit in commits])


@pytest.mark.slow
@requirement("steps.faults")
async def test_many_faults_in_one_run_change_no_result_and_repeat_nothing(installation: Installation) -> None:
    seed, injected = SEED, installation.plan.injected
    while injected.total() < MANY:
        assert await run_random_faults(installation, seed) == []
        seed += 1
    sys.stdout.write(f"{injected.total()} faults in {seed - SEED} programs: {dict(injected.most_common())}\n")
