"""Between any two writes of the journal the service dies, its worker dies, or a commit has an unknown outcome.

STENTOR_JOURNAL_FAULTS=10000 injects that many, one after the other, at every commit of random programs.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from stentor.core.db.driver import Driver
from stentor.testing import FixedClock
from tests.databases import thorough
from tests.faults.journal.cases import Case, run_each_fault, run_random_faults
from tests.faults.journal.commits import Fault
from tests.faults.journal.installation import Installation

FAULTS = int(os.environ.get("STENTOR_JOURNAL_FAULTS", "2000" if thorough() else "150"))
SEED = int(os.environ.get("STENTOR_JOURNAL_SEED", "1"))
pytestmark = pytest.mark.timeout(300 + FAULTS)


@pytest.fixture
async def installation(driver: Driver, clock: FixedClock, tmp_path: Path) -> AsyncIterator[Installation]:
    made = Installation(driver, clock, tmp_path)
    await made.start()
    yield made
    await made.close()


async def test_a_fault_at_any_commit_changes_no_result_and_repeats_nothing(installation: Installation) -> None:
    count, seed = 0, SEED
    while count < FAULTS:
        injected, wrong = await run_each_fault(installation, seed)
        assert wrong == []
        count, seed = count + injected, seed + 1


async def test_many_faults_in_one_run_change_no_result_and_repeat_nothing(installation: Installation) -> None:
    for seed in range(SEED, SEED + FAULTS // 10):
        assert await run_random_faults(installation, seed) == []
