"""Outages of all agents at a task type, in the records that routing has in memory."""

from __future__ import annotations

import pytest

from stentor.domains.learning.model import Weight, apply_grade, apply_outcome, initial_weight
from stentor.domains.learning.view import LearningView
from tests.requirements import requirement


class Process:
    """A process with its own view of a shared database."""

    def __init__(self, database: dict[str, Weight]) -> None:
        self.database = database
        self.view = LearningView()
        self.poll()

    def poll(self) -> None:
        self.view._apply_changes([("default", weight) for weight in self.database.values()], set())

    def end(self, agent: str, results: str) -> None:
        """The agent ends a task for each letter: S succeeds, F fails."""
        for letter in results:
            now = 1 + max((weight.updated_at for weight in self.database.values()), default=0)
            stored = self.database.get(agent) or initial_weight(agent, "work", now)
            success = letter == "S"
            record, progress = self.view.records("default", "work").before_outcome(stored, success=success)
            self._put(
                apply_outcome(record, success=success, performance=1.0, duration_ms=1, now=now, progress=progress)
            )

    def grade(self, agent: str, grade: float, sample: int | None = None) -> None:
        """Grade the agent's outcome of this number, without one the newest that its record has."""
        stored = self.database[agent]
        record, _ = self.view.records("default", "work").before_outcome(stored, success=False)
        self._put(apply_grade(record, sample=sample or record.samples, was=1.0, grade=grade, now=stored.updated_at))

    def results(self, agent: str) -> str:
        return self.view.records("default", "work").weights_by_agent[agent].recent

    def _put(self, weight: Weight) -> None:
        self.database[weight.agent_id] = weight
        self.view.put("default", weight)


def suffer_an_outage(process: Process) -> None:
    process.end("good", "S" * 20)
    process.end("other", "FSS")
    process.end("good", "F" * 60)
    process.end("other", "FF")


@requirement("routing.outage-of-all")
def test_after_an_outage_of_all_the_records_of_before_count_again() -> None:
    process = Process({})
    suffer_an_outage(process)
    process.end("other", "S")
    assert (process.results("good"), process.results("other")) == ("S" * 20, "FSSS")
    assert process.view.records("default", "work").progress.changed_tick == 0
    assert process.view.recent_by_agent["good"].outcomes == 16
    process.poll()
    assert process.results("good") == "S" * 20, "the database still has the failures"
    process.end("good", "F")
    assert process.database["good"].recent == "S" * 20 + "F"


@requirement("routing.outage-of-all")
def test_failures_of_one_agent_are_no_outage() -> None:
    process = Process({})
    process.end("good", "S" * 20)
    process.end("other", "SSF")
    process.end("good", "F" * 20)
    process.end("other", "S")
    assert process.results("good") == "S" * 20 + "F" * 20


@requirement("routing.outage-of-all")
def test_a_grade_after_an_outage_counts() -> None:
    process = Process({})
    suffer_an_outage(process)
    process.end("other", "S")
    process.grade("good", 0.5)
    weight = process.database["good"]
    assert (weight.recent, weight.rewards) == ("S" * 20, "ff" * 19 + "80")
    assert process.results("good") == "S" * 20


@requirement("routing.outage-of-all")
def test_a_late_grade_after_an_outage_takes_the_place_of_no_failure_and_of_no_other_grade() -> None:
    process = Process({})
    process.end("good", "S" * 6)
    process.grade("good", 0.8)
    process.end("good", "F" + "S" * 12)
    process.end("other", "SSS")
    process.end("good", "F" * 12)
    process.end("other", "FF")
    process.end("other", "S")
    process.grade("good", 0.5, sample=18)
    process.grade("good", 0.5, sample=19)
    assert process.database["good"].rewards == "ff" * 5 + "cc" + "00" + "ff" * 10 + "80" * 2


@requirement("routing.outage-of-all")
def test_what_another_process_saw_succeed_just_before_an_outage_counts_again() -> None:
    first = Process({})
    first.end("good", "SS")
    first.end("other", "SS")
    second = Process(first.database)
    first.end("good", "S" * 18 + "F" * 12)
    first.end("other", "FF")
    second.poll()
    second.end("other", "S")
    assert second.results("good") == "S" * 20


@requirement("routing.outage-of-all")
def test_every_process_notices_an_outage() -> None:
    first = Process({})
    first.end("good", "S" * 20)
    first.end("other", "FSS")
    second = Process(first.database)
    first.end("good", "F" * 12)
    second.poll()
    second.end("other", "FF")
    first.poll()
    first.end("other", "S")
    second.poll()
    assert (first.results("good"), second.results("good")) == ("S" * 20, "S" * 20)
    second.end("good", "S")
    first.poll()
    assert first.results("good") == "S" * 21


@requirement("routing.outage-of-all")
def test_a_process_that_starts_in_an_outage_notices_it() -> None:
    before = Process({})
    before.end("other", "SS")
    before.end("poor", "SF")
    before.end("good", "S" * 20)
    before.end("good", "F" * 10)
    before.end("other", "FF")
    process = Process(before.database)
    process.end("other", "S")
    assert (process.results("good"), process.results("other"), process.results("poor")) == ("S" * 20, "SSS", "SF")


@requirement("routing.outage-of-all")
def test_a_process_that_starts_takes_no_broken_agents_for_an_outage() -> None:
    before = Process({})
    before.end("good", "S" * 20)
    before.end("good", "F" * 20)
    before.end("other", "S" * 5)
    before.end("third", "SF")
    process = Process(before.database)
    process.end("other", "S")
    assert process.results("good") == "S" * 20 + "F" * 20


def fail_from_the_start(process: Process) -> None:
    for agent in ("good", "other", "good", "other", "good"):
        process.end(agent, "FF")


@requirement("routing.outage-at-the-start")
def test_failures_before_any_success_are_forgiven_once_an_agent_shows_that_they_were_an_outage() -> None:
    process = Process({})
    fail_from_the_start(process)
    process.end("other", "SSS")
    assert process.results("good") == "F" * 6, "four failures may yet be chance"
    process.end("good", "F")
    process.end("other", "S")
    assert (process.results("good"), process.results("other")) == ("F", "SSSS")
    process.poll()
    assert process.results("good") == "F", "the database still has the failures"
    process.end("good", "S")
    assert process.database["good"].recent == "FS"


@requirement("routing.outage-at-the-start")
def test_a_later_outage_that_ends_with_the_one_at_the_start_stays_forgiven() -> None:
    process = Process({})
    fail_from_the_start(process)
    process.end("other", "SSS" + "F" * 20)
    process.end("good", "FF")
    process.end("other", "S")
    assert (process.results("good"), process.results("other")) == ("", "SSSS")
    process.poll()
    assert process.results("good") == "", "the database still has the failures"


@requirement("routing.outage-at-the-start")
def test_who_fails_from_the_start_beside_an_agent_that_never_did_is_not_forgiven() -> None:
    process = Process({})
    fail_from_the_start(process)
    process.end("third", "S" * 50)
    assert (process.results("good"), process.results("other")) == ("F" * 6, "F" * 4)


@requirement("routing.outage-at-the-start")
def test_failures_of_one_agent_before_any_success_are_not_forgiven() -> None:
    process = Process({})
    process.end("good", "F" * 8)
    process.end("other", "F" + "S" * 20)
    process.end("good", "S" * 20)
    assert process.results("good") == "F" * 8 + "S" * 20


@requirement("routing.outage-at-the-start")
def test_a_process_that_starts_in_an_outage_at_the_start_forgives_it_and_later_ones_do_not_count() -> None:
    before = Process({})
    fail_from_the_start(before)
    process = Process(before.database)
    process.end("other", "S" * 12)
    assert process.results("good") == ""
    later = Process(process.database)
    for agent in ("third", "fourth"):
        later.end(agent, "F" * 4)
    later.end("third", "S" * 20)
    assert (later.results("fourth"), later.results("third")) == ("F" * 4, "F" * 4 + "S" * 20)


@requirement("routing.outage-at-the-start")
@pytest.mark.parametrize("successes", [1, 2, 3, 4, 12, 49])
def test_a_process_that_starts_after_an_outage_at_the_start_forgives_it(successes: int) -> None:
    before = Process({})
    fail_from_the_start(before)
    before.end("other", "S" * successes)
    process = Process(before.database)
    process.end("other", "S" * 4)
    assert (process.results("good"), process.results("other").strip("S")) == ("", "")


@requirement("routing.outage-at-the-start")
def test_a_process_that_starts_forgives_those_that_were_not_tried_since_the_outage_at_the_start() -> None:
    before = Process({})
    for agent in ("good", "other", "third", "fourth"):
        before.end(agent, "FFFF")
    before.end("other", "S" * 6)
    before.end("third", "F")
    before.end("fourth", "S")
    process = Process(before.database)
    process.end("other", "S")
    assert [process.results(agent) for agent in ("good", "third", "fourth")] == ["", "F", "S"]


@requirement("routing.outage-at-the-start")
def test_processes_that_each_saw_a_part_of_an_outage_at_the_start_forgive_all_of_it() -> None:
    first = Process({})
    first.end("third", "F")
    second = Process(first.database)
    for process, agent in ((first, "good"), (second, "good"), (first, "other"), (second, "other")):
        process.end(agent, "FFF")
    first.end("other", "S" * 4)
    assert first.results("good") != "F" * 6, "what it knows"
    for process in (first, second, first, second):
        process.poll()
        process.end("other", "S")
    assert (first.results("good"), second.results("good")) == ("", "")


@requirement("routing.outage-at-the-start")
def test_a_process_that_starts_forgives_no_broken_agents() -> None:
    before = Process({})
    for agent in ("broken", "worse"):
        before.end(agent, "FFF")
        before.end("good", "S" * 3)
    before.end("late", "FS")
    process = Process(before.database)
    process.end("good", "S" * 20)
    process.end("late", "S" * 40)
    assert [process.results(agent) for agent in ("broken", "worse")] == ["FFF", "FFF"]


def pause(process: Process, agent: str) -> int | None:
    """After how many outcomes of others the agent is tried again."""
    records = process.view.records("default", "work")
    weight = records.weights_by_agent[agent]
    return next((age for age in range(5_000) if records.own_outages.is_retry_due(weight, age)), None)


@requirement("routing.own-outage")
def test_an_agent_is_tried_again_the_later_the_longer_it_fails() -> None:
    process = Process({})
    process.end("good", "S" * 20 + "FF")
    assert pause(process, "good") is None, "two failures may be chance"
    process.end("good", "F" * 8)
    assert pause(process, "good") == 32, "all of them are of one batch"
    for expected in (126, 507):
        process.end("other", "S" * 32)
        process.end("good", "F")
        assert pause(process, "good") == expected
        process.end("other", "S" * (expected - 32))


@requirement("routing.own-outage")
def test_another_outage_soon_after_one_prolongs_it_and_a_later_one_does_not() -> None:
    process = Process({})
    process.end("good", "S" * 40 + "FFFF" + "S" * 4)
    process.end("other", "S" * 200)
    process.end("good", "FFFF")
    assert pause(process, "good") == 3 * (3 + 4 + 200 + 4)
    process.end("good", "S" * 51 + "FFFF")
    assert pause(process, "good") == 32


@requirement("routing.own-outage")
def test_a_process_that_starts_in_an_outage_tries_the_agent_again_and_then_more_rarely() -> None:
    first = Process({})
    first.end("good", "S" * 20 + "FFFF")
    second = Process(first.database)
    assert pause(second, "good") == 32
    second.end("other", "S" * 32)
    second.end("good", "F")
    assert pause(second, "good") == 32
    second.end("other", "S" * 32)
    second.end("good", "F")
    assert pause(second, "good") == 99
