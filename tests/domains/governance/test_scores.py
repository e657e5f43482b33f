"""Computed trust scores: weights, missing metrics, and metrics from the service's own records."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stentor.core.errors import InvalidRequest
from stentor.domains.governance.model import TrustNotComputable
from stentor.domains.governance.trust_formula import COMPONENT_WEIGHTS, TrustMetrics, compute_trust
from tests.domains.governance.conftest import GovernanceClient
from tests.domains.governance.test_updates import UNKNOWN_ID, error_of
from tests.requirements import requirement

ALL_METRICS = {
    "successful_executions": 90,
    "total_executions": 100,
    "recent_violation_count": 2,
    "coverage_ratio": 0.8,
    "passed_lints": True,
    "no_dead_code": False,
    "approved_updates": 3,
    "total_update_attempts": 4,
    "downtime_hours": 10.0,
    "total_hours": 100.0,
}


@requirement("governance.trust-weights", "governance.trust-computed")
async def test_trust_score_is_the_weighted_sum_of_its_components(governance: GovernanceClient) -> None:
    agent = await governance.world.register()
    response = (await governance.post(f"agents/{agent}/trust", {"metrics": ALL_METRICS, "persist": False})).json()
    assert set(response) == {"agent_id", "trust_score", "persisted", "reason", "breakdown"}
    breakdown = response["breakdown"]
    assert breakdown["weights"] == {
        "success_rate": 0.35,
        "security": 0.25,
        "code_quality": 0.2,
        "audit": 0.15,
        "uptime": 0.05,
    }
    assert breakdown["components"] == pytest.approx(
        {"success_rate": 0.9, "security": 0.8, "code_quality": 0.6, "audit": 0.75, "uptime": 0.9}
    )
    assert response["trust_score"] == pytest.approx(0.35 * 0.9 + 0.25 * 0.8 + 0.2 * 0.6 + 0.15 * 0.75 + 0.05 * 0.9)
    assert sum(breakdown["contributions"].values()) == pytest.approx(response["trust_score"])
    assert (breakdown["missing"], response["persisted"], response["agent_id"]) == ([], False, agent)
    assert (await governance.agent(agent))["trust_score"] is None, "persist=False stores nothing"


@requirement("governance.trust-weights")
@pytest.mark.parametrize(("violations", "security"), [(0, 1.0), (3, 0.7), (10, 0.0), (99, 0.0)])
def test_each_violation_lowers_security_by_a_tenth(violations: int, security: float) -> None:
    assert compute_trust(TrustMetrics(recent_violation_count=violations)).score == pytest.approx(security)


@requirement("governance.trust-missing-metrics")
def test_missing_metrics_are_left_out_and_weights_rescaled() -> None:
    trust = compute_trust(TrustMetrics(successful_executions=1, total_executions=2, recent_violation_count=0))
    assert trust.weights == pytest.approx({"success_rate": 0.35 / 0.6, "security": 0.25 / 0.6})
    assert trust.score == pytest.approx((0.35 * 0.5 + 0.25) / 0.6)
    assert trust.missing == ("code_quality", "audit", "uptime")


@requirement("governance.trust-missing-metrics")
@pytest.mark.parametrize(
    "metrics",
    [{}, {"successful_executions": 5}, {"successful_executions": 0, "total_executions": 0}, {"total_hours": 5.0}],
)
def test_trust_without_metrics_cannot_be_computed(metrics: dict[str, Any]) -> None:
    with pytest.raises(TrustNotComputable):
        compute_trust(TrustMetrics(**metrics))


@requirement("governance.trust-missing-metrics")
async def test_trust_of_an_agent_without_records_returns_422(governance: GovernanceClient) -> None:
    agent = await governance.world.register()
    bodies: list[dict[str, Any]] = [
        {},
        {"metrics": {}},
        {"metrics": {"total_executions": 0, "successful_executions": 0}},
    ]
    for body in bodies:
        response = await governance.post(f"agents/{agent}/trust", body)
        assert error_of(response) == (422, "TRUST_NOT_COMPUTABLE")
        assert set(response.json()["error"]["details"]["missing"]) == set(COMPONENT_WEIGHTS)
    assert (await governance.agent(agent))["trust_score"] is None
    assert error_of(await governance.post(f"agents/{UNKNOWN_ID}/trust", {"metrics": ALL_METRICS})) == (
        404,
        "NOT_FOUND",
    )


def test_count_above_its_total_is_rejected() -> None:
    for part, total in (
        ("successful_executions", "total_executions"),
        ("approved_updates", "total_update_attempts"),
        ("downtime_hours", "total_hours"),
    ):
        with pytest.raises(InvalidRequest, match=part):
            compute_trust(TrustMetrics(**{part: 2, total: 1}))


@requirement("governance.trust-metrics-and-persist")
async def test_trust_without_metrics_uses_the_services_own_records(governance: GovernanceClient) -> None:
    agent = await governance.world.register()
    for ok in (True, True, True, False):
        await governance.world.do(agent, ok=ok)
    await governance.world.admin.post(
        f"/api/v1/registry/agents/{agent}/authorize", json={"tool": "rm", "operation": "run"}
    )
    rejected = await governance.propose(agent)
    await governance.post(f"updates/{rejected['update_id']}/reject", {}, "SECOND")
    await governance.approve(await governance.propose(agent))
    await governance.propose(agent)
    response = (await governance.post(f"agents/{agent}/trust")).json()
    breakdown = response["breakdown"]
    assert breakdown["components"] == pytest.approx({"success_rate": 0.75, "security": 0.9, "audit": 0.5})
    assert breakdown["missing"] == ["code_quality", "uptime"]
    assert response["persisted"] is True
    assert (await governance.agent(agent))["trust_score"] == response["trust_score"]
    report = (await governance.world.admin.get(f"/api/v1/trust/{agent}")).json()["data"]
    assert report["score"] == response["trust_score"]


SHARES = st.one_of(st.none(), st.floats(0, 1))
COUNTS = st.one_of(st.none(), st.integers(0, 50))


@given(st.builds(TrustMetrics, COUNTS, st.just(50), COUNTS, SHARES, SHARES, SHARES, COUNTS, st.just(50)))
def test_score_lies_between_worst_and_best_component(metrics: TrustMetrics) -> None:
    try:
        trust = compute_trust(metrics)
    except TrustNotComputable:
        return
    assert min(trust.components.values()) - 1e-9 <= trust.score <= max(trust.components.values()) + 1e-9
    assert 0 <= trust.score <= 1
    assert sum(trust.weights.values()) == pytest.approx(1)
    assert {*trust.components, *trust.missing} == set(COMPONENT_WEIGHTS)
