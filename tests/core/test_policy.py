"""The policy file: what it can say, how it fails, and that it never allows what the built-in rules refuse."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stentor.bootstrap.parts import agents as agents_part
from stentor.bootstrap.parts.agents import routing_policy_check
from stentor.core.security import policy
from stentor.core.security.policy import ACTION_TYPES, EXAMPLE_AGENT, PolicyEntity, PolicyInvalid, PolicySet
from stentor.domains.registry import authorization as agent_policy
from stentor.domains.registry.model import Agent, AllowedNetwork, AllowedTool, Runtime, SandboxWhitelist
from stentor.domains.routing import model as routing
from stentor.domains.routing.candidates import AgentCandidate
from stentor.domains.routing.model import RoutingPolicy, RoutingRequest
from stentor.domains.routing.track_record import TrackRecord
from tests import forkserver
from tests.requirements import requirement

LOW_TRUST = """
// Agents that lost trust get no deployments.
@id("low trust")
forbid (principal, action == Action::"route", resource == TaskType::"deploy")
unless { context has trust && context.trust.greaterThanOrEqual(decimal("0.8")) };
"""
FORBID = 'forbid (principal, action == Action::"route", resource)'
AGENT = PolicyEntity("Agent", "a", EXAMPLE_AGENT)


def route(rules: PolicySet, task_type: str = "deploy", trust: float | None = 0.9) -> policy.PolicyDecision:
    context = {"required_capabilities": ("a",), "preferred": False, "trust": trust}
    return rules.authorize("route", AGENT, PolicyEntity("TaskType", task_type), context, validate_schema=True)


@requirement("policy.forbid-refuses")
def test_a_forbid_refuses_what_it_names_and_nothing_else() -> None:
    rules = PolicySet(LOW_TRUST)
    assert route(rules, trust=0.8).allowed
    assert route(rules, "other", None).allowed
    for trust in (0.7999999, 0.0, None):
        ruling = route(rules, trust=trust)
        assert (ruling.allowed, ruling.reasons) == (False, ("low trust",))


@requirement("policy.forbid-refuses")
def test_a_policy_without_a_name_is_called_by_its_line() -> None:
    assert route(PolicySet('\n\nforbid (principal, action == Action::"route", resource);')).reasons == ("line 3",)


@requirement("policy.permits-are-a-list")
def test_a_permit_for_an_action_makes_it_a_list_of_what_is_allowed() -> None:
    rules = PolicySet('permit (principal, action == Action::"route", resource == TaskType::"sum");')
    assert route(rules, "sum").allowed
    assert not route(rules, "deploy").allowed
    tool = rules.authorize(
        "use_tool", AGENT, PolicyEntity("Tool", "files"), {"operation": "read"}, validate_schema=True
    )
    assert tool.allowed, "it says nothing about tools"
    assert (rules.covers_action("route"), rules.covers_action("use_tool")) == (True, False)
    everything = PolicySet("permit (principal, action, resource);")
    assert all(everything.covers_action(action) for action in ACTION_TYPES)


@requirement("policy.refuses-to-start")
@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("permit (principal, action, resource);\n\nforbid (principal action, resource);", "line 3"),
        ('permit (principal, action, resource);\n// "x;\nforbid (', "line 3"),
        ('forbid (principal, action == Action::"route", resource) when { context.trusty == 1 };', "trusty"),
        (
            'forbid (principal, action == Action::"route", resource) when { context.trust.lessThan(decimal("1.0")) };',
            "trust",
        ),
        ('forbid (principal, action == Action::"rout", resource);', "rout"),
        ('forbid (principal == Agnt::"a", action, resource);', "Agnt"),
        ('\nforbid (principal, action == Action::"route", resource) when { principal.name > 1 };', "line 2"),
        (
            f"{FORBID} when {{ context has trsut && context.trsut > 1 }};",
            "line 1: the schema has no context.trsut for route",
        ),
        (f"{FORBID} unless {{ principal has name && resource has name }};", "no resource.name for route"),
        (f"{FORBID} when {{ [context has path].contains(true) }};", "no context.path for route"),
        (f"{FORBID} when {{ action has trust }};", "no action.trust for route"),
        (
            "\nforbid (principal, action, resource) when { context has rout };",
            "line 2: .* propose_update, route, use_tool",
        ),
        ("permit (principal == ?principal, action, resource);", "templates"),
        ("nonsense", "line 1"),
        ("permit", "line 1"),
        ("permit (principal, action, resource); \0", "line 1"),
        ('@id("a" forbid (principal, action, resource);', "line 1"),
    ],
)
def test_a_file_that_is_no_policy_is_refused_with_line_and_reason(text: str, says: str) -> None:
    with pytest.raises(PolicyInvalid, match=says):
        PolicySet(text, "rules.cedar")


def test_what_one_of_the_actions_of_a_policy_has_may_be_tested_for() -> None:
    in_all = 'context has host && context.host == "a" || context has breaking || principal has composite'
    assert PolicySet(f"forbid (principal, action, resource) when {{ {in_all} }};").covers_action("route")


@requirement("policy.refuses-to-start")
@pytest.mark.parametrize("content", [None, b"\xff\xfe", b"forbid (principal, action\n, nothing);"])
def test_the_service_does_not_start_with_it(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "rules.cedar"
    if content is not None:
        file.write_bytes(content)
    environ = {
        "SERVICE_POLICY_FILE": str(file),
        "MCP_API_KEY": "a-key-7c1e-of-some-length",
        "PATH": "",
        "SERVICE_GATEWAY_PORT": "0",
    }
    done = forkserver.run_text(["serve", "--data-dir", str(tmp_path / "data")], environ)
    assert done.returncode != 0
    assert "rules.cedar" in done.stderr
    assert "Traceback" not in done.stderr


@requirement("policy.evaluation-error-denies")
@pytest.mark.parametrize("context", [{}, {"required_capabilities": 5}, {"required_capabilities": [1]}])
def test_what_cannot_be_evaluated_is_refused(context: dict[str, Any]) -> None:
    rules = PolicySet(
        'forbid (principal, action == Action::"route", resource) when { context.required_capabilities.contains("x") };'
    )
    ruling = rules.authorize("route", AGENT, PolicyEntity("TaskType", "x"), context)
    assert ruling.allowed is (context == {"required_capabilities": [1]})
    assert ruling.allowed or ruling.reasons
    assert not rules.authorize(
        "route", AGENT, PolicyEntity("TaskType", "x"), {"required_capabilities": [object()]}
    ).allowed


@requirement("policy.evaluation-error-denies")
def test_a_number_that_overflows_refuses() -> None:
    rules = PolicySet(
        'forbid (principal, action == Action::"propose_update", resource) '
        "when { context.lines_changed * 9000000000000000000 == 1 };"
    )
    context = {"update_type": "x", "tier": 1, "lines_changed": 9, "files_modified": [], "patched_fields": []}
    ruling = rules.authorize("propose_update", PolicyEntity("Principal", "p"), AGENT, context, validate_schema=True)
    assert not ruling.allowed


@requirement("policy.without-a-file")
def test_without_a_policy_file_the_engine_is_not_even_imported() -> None:
    code = "import sys, stentor.bootstrap.kernel, stentor.cli.main; sys.exit('cedarpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=200).returncode == 0


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("", []),
        ("// nothing; here\n", []),
        ("a;b;\nc;", [1, 1, 2]),
        ('a "x;\\";" ;\nb;', [1, 2]),
        ("\n\na // ;\n;", [3]),
        ("a; rest", [1, 1]),
        ('"never ends;', [1]),
    ],
)
def test_policies_are_told_apart_by_semicolons_outside_of_texts_and_comments(text: str, lines: list[int]) -> None:
    assert [statement.line for statement in policy.split_policies(text)] == lines


def agent(**fields: Any) -> Agent:
    known: dict[str, Any] = {
        "agent_id": "a",
        "tenant": "default",
        "name": "ann",
        "capabilities": ("sum",),
        "alignment_score": 0.5,
        "accuracy_score": 0.5,
        "efficiency_score": 0.5,
        "trust_tier": "auto",
        "status": "active",
        "runtime": Runtime(),
        "sandbox_whitelist": SandboxWhitelist((AllowedTool("files", ("a/*",), ("read",)),), AllowedNetwork()),
        "key_name": None,
        "violation_count": 0,
        "status_reason": None,
        "created_at": 0,
        "updated_at": 0,
    }
    return Agent(**{**known, **fields})


SCOPES = ["action", 'action == Action::"route"', 'action in [Action::"route", Action::"use_tool"]']
CONDITIONS = [
    "",
    ' when { principal.capabilities.contains("sum") }',
    ' unless { principal.status == "active" }',
    ' when { context has trust && context.trust.lessThan(decimal("0.5")) }',
]


@st.composite
def files(draw: st.DrawFn) -> str:
    """Policies on routing, permits and forbids, that the schema takes."""
    found = []
    for _ in range(draw(st.integers(0, 4))):
        effect, condition = draw(st.sampled_from(["permit", "forbid"])), draw(st.sampled_from(CONDITIONS))
        scope = draw(st.sampled_from(SCOPES)) if not condition else SCOPES[1]
        found.append(f"{effect} (principal, {scope}, resource){condition};")
    return "\n".join(found)


CANDIDATES = st.builds(
    lambda tenant, status, capabilities, trust: AgentCandidate(
        agent(tenant=tenant, status=status, capabilities=capabilities), TrackRecord(0.5, 4.0), trust
    ),
    st.sampled_from(["default", "other"]),
    st.sampled_from(["active", "suspended", "quarantined"]),
    st.sampled_from([("sum",), ("sum", "tell"), ("tell",), ()]),
    st.one_of(st.none(), st.floats(0, 1)),
)


@requirement("policy.never-loosens")
@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(files(), CANDIDATES, st.sampled_from([0.0, 0.6]))
def test_no_policy_admits_what_the_built_in_checks_refuse(text: str, candidate: AgentCandidate, floor: float) -> None:
    request = RoutingRequest("default", "x", ("sum",))
    built_in = routing.find_denial(request, candidate, RoutingPolicy(trust_floor=floor))
    with_file = RoutingPolicy(trust_floor=floor, is_permitted=routing_policy_check(PolicySet(text)))
    if built_in is not None:
        assert routing.find_denial(request, candidate, with_file) is built_in


class CountedPolicies(PolicySet):
    """Counts its evaluations; they fail while `broken`."""

    evaluations, broken = 0, False

    def authorize(self, *args: Any, **options: Any) -> policy.PolicyDecision:
        self.evaluations += 1
        return policy.PolicyDecision(False, (), failed=True) if self.broken else super().authorize(*args, **options)


def candidate_of(known: Agent, trust: float | None) -> AgentCandidate:
    return AgentCandidate(known, TrackRecord(0.5, 4.0), trust)


@requirement("policy.route-answers-remembered")
def test_a_candidate_is_evaluated_again_only_after_a_change() -> None:
    rules = CountedPolicies(LOW_TRUST)
    check = routing_policy_check(rules)
    assert check is not None
    deploy, ann, bob = RoutingRequest("default", "deploy", ("sum",)), agent(), agent(agent_id="b")
    for _ in range(5):
        assert [check(deploy, candidate_of(ann, 0.9)), check(deploy, candidate_of(bob, 0.7))] == [True, False]
    assert rules.evaluations == 2
    assert [check(deploy, candidate_of(ann, 0.7)), check(deploy, candidate_of(bob, 0.9))] == [False, True]
    assert check(RoutingRequest("default", "sum", ("sum",)), candidate_of(ann, 0.7))
    assert rules.evaluations == 5


@requirement("policy.route-answers-remembered")
def test_a_failed_evaluation_is_repeated() -> None:
    rules = CountedPolicies(LOW_TRUST)
    check = routing_policy_check(rules)
    assert check is not None
    rules.broken = True
    deploy, candidate = RoutingRequest("default", "deploy", ("sum",)), candidate_of(agent(), 0.9)
    assert not check(deploy, candidate)
    rules.broken = False
    assert check(deploy, candidate)


QUESTIONS = st.tuples(
    st.sampled_from(["x", "y"]),
    st.sampled_from([("sum",), ("sum", "tell")]),
    st.sampled_from([None, "a"]),
    st.sampled_from(
        [
            agent(agent_id=agent_id, status=status, capabilities=capabilities)
            for agent_id in ("a", "b")
            for status in ("active", "suspended")
            for capabilities in [("sum",), ("sum", "tell")]
        ]
    ),
    st.sampled_from([None, 0.3, 0.49999, 0.5, 0.8]),
)


@requirement("policy.route-answers-remembered")
@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(files(), st.lists(QUESTIONS, max_size=40), st.sampled_from([3, 100]))
def test_remembered_answers_are_those_of_new_evaluations(
    text: str, questions: list[tuple[str, tuple[str, ...], str | None, Agent, float | None]], most: int
) -> None:
    rules = PolicySet(f'{text}\n{FORBID} when {{ resource == TaskType::"y" && context.preferred }};')
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(agents_part, "MAX_POLICY_ANSWERS", most)
        check = routing_policy_check(rules)
        for task_type, capabilities, preferred, known, trust in questions:
            request = RoutingRequest("default", task_type, capabilities, preferred_agent_id=preferred)
            new = routing_policy_check(rules)
            candidate = candidate_of(known, trust)
            assert check is not None
            assert new is not None
            assert check(request, candidate) == new(request, candidate)


def test_what_the_service_asks_fits_the_schema() -> None:
    rules = PolicySet("permit (principal, action, resource);")
    entity = agent_policy.to_policy_entity(agent())
    asked: list[tuple[str, PolicyEntity, PolicyEntity, dict[str, Any]]] = [
        (
            "route",
            entity,
            PolicyEntity("TaskType", 'x\n"y'),
            {"required_capabilities": ("sum",), "preferred": True, "trust": 0.123456},
        ),
        (
            "use_tool",
            entity,
            PolicyEntity("Tool", "files"),
            {"operation": "read", "path": "a", "host": None, "port": 443},
        ),
        (
            "propose_update",
            PolicyEntity("Principal", "admin"),
            entity,
            {
                "update_type": "prompt",
                "tier": 1,
                "trust": None,
                "ratio": 2.0**60,
                "lines_changed": 2**54,
                "breaking": None,
                "new_dependencies": True,
                "touches_policy": False,
                "files_modified": (),
                "patched_fields": ["runtime"],
            },
        ),
    ]
    for action, who, what, context in asked:
        ruling = rules.authorize(action, who, what, context, validate_schema=True)
        assert ruling.allowed, (action, ruling)
