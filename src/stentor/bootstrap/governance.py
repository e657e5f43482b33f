"""Wires governance: updates, checkpoints, rollbacks, computed trust, the runner behind them, and the policy file."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from stentor.auth.principal import RoleRegistry
from stentor.core.clock import SECOND, Clock
from stentor.core.db import Database
from stentor.core.errors import InvalidRequest
from stentor.core.http_client.outbound import OutboundHttp
from stentor.core.runlog import RunLog
from stentor.core.security import policy as policy_files
from stentor.core.security.policy import PolicyEntity, PolicySet
from stentor.core.settings import Settings
from stentor.domains.governance import probes
from stentor.domains.governance.checkpoints import Checkpoints
from stentor.domains.governance.deployment import Deployer
from stentor.domains.governance.judging import Configuration, Judging
from stentor.domains.governance.patch import Config
from stentor.domains.governance.rollbacks import Rollbacks
from stentor.domains.governance.runner import Runner
from stentor.domains.governance.scoring import Scoring
from stentor.domains.governance.service import Updates
from stentor.domains.registry import authorization as agent_policy
from stentor.domains.registry.model import Agent
from stentor.domains.registry.operations import CheckRuntime
from stentor.domains.registry.service import AgentRegistry
from stentor.domains.registry.wire import Register
from stentor.domains.routing.model import PolicyCheck, RoutingRequest
from stentor.domains.routing.ranking import AgentCandidate
from stentor.domains.trust.service import TrustService
from stentor.web.errors import field_errors


@dataclass
class Governance:
    """The wired parts. `runner` runs on the event loop that serves."""

    updates: Updates
    checkpoints: Checkpoints
    rollbacks: Rollbacks
    deployer: Deployer
    scoring: Scoring
    runner: Runner


def open_governance(
    settings: Settings,
    db: Database,
    clock: Clock,
    runlog: RunLog,
    registry: AgentRegistry,
    trust: TrustService,
    roles: RoleRegistry,
    outbound: OutboundHttp,
    rules: PolicySet | None,
    builtins: Collection[str],
    check_runtime: CheckRuntime,
) -> Governance:
    """`builtins` are the names of the builtin agents that this service has; `check_runtime` refuses what a registration
    would be refused for.
    """
    checkpoints = Checkpoints(db, runlog, registry, trust, settings.checkpoint_days)
    registry.before_clear_hooks.append(checkpoints.before_clear)
    trust.before_set_hooks.append(checkpoints.before_trust)
    runner = Runner(db, clock, checkpoints, int(max(settings.lease, 1.5 * probes.PROBE_SECONDS) * SECOND))
    judging = Judging(configuration(check_runtime), rules)
    rollbacks = Rollbacks(db, runlog, checkpoints, runner.wake)
    reach = {
        "builtin": probes.builtin(builtins),
        "http": probes.http(outbound),
        "worker": probes.worker,
        "llm": probes.accepted(check_runtime),
        "command": probes.accepted(check_runtime),
    }
    deployer = Deployer(db, runlog, registry, checkpoints, judging, probes.by_kind(reach))
    runner.carries(deployer, rollbacks)
    updates = Updates(
        db, runlog, judging, checkpoints, rollbacks, runner.wake, roles, self_approval=settings.self_approval
    )
    return Governance(updates, checkpoints, rollbacks, deployer, Scoring(db, trust, checkpoints), runner)


def open_rules(settings: Settings) -> PolicySet | None:
    """The policy file, if one is set. Raises StartRefused."""
    return None if settings.policy_file is None else policy_files.load_policies(settings.policy_file)


def admission(rules: PolicySet | None) -> PolicyCheck | None:
    """The policy file's word on a candidate; None where it has none on routing."""
    if rules is None or not rules.covers_action("route"):
        return None

    def permitted(request: RoutingRequest, candidate: AgentCandidate) -> bool:
        context = {
            "required_capabilities": request.capabilities,
            "preferred": request.preferred_agent_id is not None,
            "trust": candidate.trust,
        }
        who, what = agent_policy.to_policy_entity(candidate.agent), PolicyEntity("TaskType", request.task_type)
        return rules.authorize("route", who, what, context).allowed

    return permitted


def configuration(check_runtime: CheckRuntime) -> Configuration:
    """What the registry's route would make of an agent with this configuration."""

    def configured(agent: Agent, document: dict[str, Any]) -> Config:
        try:
            draft = Register.model_validate({"name": agent.name, **document}).to_draft()
        except ValidationError as error:
            found = field_errors(error.errors())["fields"]
            fields = {f"changes.agent_patch.{name}": reason for name, reason in found.items()}
            first, reason = next(iter(fields.items()))
            raise InvalidRequest(f"{first}: {reason}", {"fields": fields}) from None
        check_runtime(draft.runtime)
        return Config(draft.capabilities, draft.runtime, draft.sandbox_whitelist)

    return configured
