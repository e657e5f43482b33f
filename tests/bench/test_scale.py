"""The model of scale: known answers, units, and that more load never makes a part emptier. Nothing is timed here."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
from bench.scale import model, report
from bench.scale.costs import kept
from bench.scale.installation import Installation
from bench.scale.plan import REMEDIES
from bench.scale.remedies import Remedy, stages
from bench.scale.simulate import Simulation, Times, Traffic, of_one_server

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "scale.md"
UNITS = model.values(kept.load())
NONE = dict.fromkeys(UNITS, 0.0)
SMALL = Installation(gateways=10, working=10, agents=1_000, tasks_per_hour=36_000, peak=1.0)


def utilisation(one: Installation) -> dict[str, float]:
    return {part.name: part.utilisation for part in model.parts(one, UNITS)}


@pytest.mark.parametrize(
    "more",
    [
        {"tasks_per_hour": 72_000.0},
        {"gateways": 20},
        {"gateways": 20, "working": 20},
        {"agents": 2_000},
        {"watched": 0.5},
        {"peak": 3.0},
    ],
    ids=lambda more: " and ".join(more),
)
def test_more_of_anything_never_empties_a_part(more: dict[str, Any]) -> None:
    before, after = utilisation(SMALL), utilisation(replace(SMALL, **more))
    shared_among_gateways = {"CPU of a process"} if "gateways" in more else set()
    assert {name for name in before if after[name] < before[name] - 1e-12} <= shared_among_gateways
    assert any(after[name] > before[name] for name in before)


def test_utilisation_is_demand_by_capacity_in_the_parts_own_unit() -> None:
    costs = {**NONE, "task_wal_bytes": 2e6, "commit_seconds": 0.001, "sequencer_event_cpu": 0.001}
    ten_a_second = replace(SMALL, machine=replace(SMALL.machine, wal_bytes=100e6))
    part = model.named(ten_a_second, costs, "WAL")
    assert (part.demand, part.capacity, part.unit) == (20.0, 100.0, "MB/s")
    assert part.utilisation == pytest.approx(0.2)


def test_connections_and_disk_are_counted_as_one_would_by_hand() -> None:
    costs = {**NONE, "connections": 6.0, "task_disk_bytes": 10_000.0, "commit_seconds": 0.001, "sequencer_event_cpu": 1}
    assert model.named(SMALL, costs, "connections").demand == 60
    a_month = 10 * 86_400 * 30 * 10_000 / 1e12  # ten a second
    assert model.named(SMALL, costs, "disk").demand == pytest.approx(a_month)


def test_a_hint_to_all_would_have_every_other_working_process_try_but_none_faster_than_it_commits() -> None:
    costs, told = {**NONE, "commit_seconds": 0.01}, replace(SMALL, told=1.0)
    assert model.claims_in_vain(told, costs) == pytest.approx(10 * 9)
    beside = replace(SMALL.machine, round_trip=0.0)
    busy = replace(told, tasks_per_hour=3_600_000, machine=beside)
    assert model.claims_in_vain(busy, costs) == pytest.approx(10 / 0.01)
    assert model.claims_in_vain(SMALL, costs) == 0


def test_a_process_hears_what_all_are_told_and_its_share_of_the_rest() -> None:
    costs = {**NONE, "task_commits": 3.0, "message_process_cpu": 1.0, "commit_seconds": 0.01}
    costs["sequencer_event_cpu"] = 1.0
    part = model.named(replace(SMALL, watched=0.5, stream_messages=7.0), costs, "CPU of a process")
    heard = next(load.demand for load in part.loads if load.cause == "messages of others")
    assert heard == pytest.approx(10 * 0.5 + 10 / 5 + 10 * 0.5 * (3 + 7) / 10)


def test_with_a_pooler_a_process_has_its_sessions_and_the_poolers_have_the_rest() -> None:
    costs = {**NONE, "connections": 5.0, "commit_seconds": 0.001, "sequencer_event_cpu": 1}
    assert model.named(replace(SMALL, pooled=True, pool=7.0), costs, "connections").demand == 10 * 2 + 7
    assert model.named(replace(SMALL, pooled=True, pool=7.0, nats=True), costs, "connections").demand == 10 + 7


def test_a_process_sends_at_most_a_hundred_payloads_a_second() -> None:
    costs = {**NONE, "task_commits": 3.0}
    renewals = 4 / 5
    assert model.notifies(replace(SMALL, watched=0.0, working=4), costs) == pytest.approx(10 * 0.6 + renewals)
    assert model.notifies(replace(SMALL, tasks_per_hour=3.6e9), costs) == pytest.approx(1_000)


def test_the_first_part_is_the_fullest_and_is_full_at_its_limit() -> None:
    fullest = model.first(SMALL, UNITS)
    assert fullest.utilisation == max(utilisation(SMALL).values())
    large = replace(SMALL, gateways=1_000, working=1_000, agents=100_000, tasks_per_hour=3.6e6)
    found = model.limit(large, UNITS)
    assert model.first(large.times(found * 0.95), UNITS).utilisation < 1
    assert model.first(large.times(found * 1.05), UNITS).utilisation > 1


def test_a_limit_of_one_that_grows_in_proportion_is_one_by_its_utilisation() -> None:
    part = model.named(report.TARGET, UNITS, "WAL")
    assert model.limit(report.TARGET, UNITS, "WAL") == pytest.approx(1 / part.utilisation, rel=0.01)


def test_tenants_parted_between_databases_leave_each_its_share() -> None:
    four = replace(SMALL, gateways=40, tasks_per_hour=144_000, agents=4_000, databases=4).part
    assert (four.gateways, four.agents, four.rate, four.databases) == (10, 1_000, 10.0, 1)
    assert replace(SMALL, databases=4, tenants=1).part == replace(SMALL, tenants=1)  # one tenant cannot be parted


def test_no_remedy_makes_the_installation_carry_less() -> None:
    found = [stage.limit for stage in stages(report.TARGET, UNITS, REMEDIES)]
    assert all(after >= before * 0.999 for before, after in pairwise(found))
    assert found[-1] >= 1
    nothing = Remedy("nothing", "settings", "WAL", lambda one: one)
    assert [s.limit for s in stages(SMALL, UNITS, (nothing,))] == [model.limit(SMALL, UNITS)] * 2


@pytest.mark.slow
@pytest.mark.parametrize("load", [0.3, 0.6, 0.8])
def test_the_simulation_of_one_core_waits_as_an_m_d_1_queue(load: float) -> None:
    service = 0.001
    traffic = Traffic(load / service, 40.0, seed=7)
    answer = Simulation(traffic, Times((service, 0.0, 0.0)), gateways=20_000, cores=1).run()
    waited = mean(answer.submits) - service
    assert waited == pytest.approx(of_one_server(load, service), rel=0.1)


def test_many_cores_without_a_queue_take_their_own_time_and_no_more() -> None:
    times = Times((0.002, 0.002, 0.004), gateway=0.001, flush=0.003, speed=0.5)
    answer = Simulation(Traffic(5, 100.0), times, gateways=5_000, cores=64).run()
    assert answer.figures()["submit p50"] == pytest.approx(0.001 + 0.004 + 0.003)
    assert answer.figures()["waiting p50"] == pytest.approx(0.004 + 0.003)
    assert answer.finished == len(answer.submits) == len(answer.waits) > 400


def test_units_that_come_together_share_a_transaction() -> None:
    times = Times((0.0001, 0.0, 0.0), flush=0.02)
    alone = Simulation(Traffic(500, 10.0), times, gateways=5_000, cores=8).run()
    shared = Simulation(Traffic(500, 10.0), times, gateways=1, cores=8).run()
    assert alone.transactions > 0.95 * 3 * len(alone.submits)
    assert shared.transactions <= math.ceil(10.5 / 0.02)
    assert shared.finished == alone.finished


def test_the_same_seed_gives_the_same_answer_and_another_one_does_not() -> None:
    def answer(seed: int) -> dict[str, float]:
        traffic = Traffic(200, 5.0, peak=2.0, burst=4.0, seed=seed)
        return Simulation(traffic, Times((0.001, 0.001, 0.002), hint=0.01, work=0.1), 20, 1).run().figures()

    assert answer(1) == answer(1) != answer(2)


def test_bursts_and_peaks_keep_the_mean_they_are_given() -> None:
    flat = Traffic(1_000, 60.0, burst=5.0, seed=3).arrivals()
    assert len(flat) == pytest.approx(60_000, rel=0.03)
    swinging = Traffic(1_000, 60.0, peak=2.0, seed=3).arrivals()
    assert len(swinging) == pytest.approx(90_000, rel=0.03)
    assert sum(20 < at < 40 for at in swinging) > 1.2 * sum(at < 20 for at in swinging)
    assert flat == sorted(flat)


def test_the_report_has_a_figure_for_each_cost_each_part_and_each_remedy() -> None:
    costs = kept.load()
    found = report.figures(costs, seconds=2.0)
    names = [figure.name for figure in found]
    assert len(names) == len(set(names))
    assert sum(name.startswith("carries: ") for name in names) == len(REMEDIES) + 1
    assert sum(name.startswith("as it is: ") for name in names) == len(model.parts(SMALL, UNITS))
    assert any(name.startswith("simulated") for name in names)
    assert all(figure.unit and figure.method for figure in found)


def test_the_kept_costs_say_how_each_was_measured() -> None:
    for name, cost in kept.load().items():
        assert cost.value >= 0, name
        assert cost.unit, name
        assert cost.method, name
    assert json.loads(kept.KEPT.read_text())


def test_the_page_has_the_tables_that_the_model_makes_of_the_kept_costs() -> None:
    text = PAGE.read_text("utf-8")
    assert [table for table in report.page(report.TARGET, UNITS).split("\n\n") if table.strip() not in text] == []


def test_the_published_figures_are_those_of_the_kept_costs() -> None:
    published = (ROOT / "bench" / "README.md").read_text("utf-8")
    rows = [" | ".join(figure.cells()) for figure in report.figures(kept.load(), seconds=1.0)]
    modelled = [row for row in rows if not row.startswith("simulated")]
    assert [row for row in modelled if row not in published] == []
