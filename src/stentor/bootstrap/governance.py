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
from stentor.domains.governance.checkpoints import CheckpointService
from stentor.domains.governance.deployment import Deployer, GovernanceRunner
from stentor.domains.governance.impact import AgentConfig
from stentor.domains.governance.review import ConfigBuilder, ProposalReviewer
from stentor.domains.governance.rollbacks import RollbackService
from stentor.domains.governance.service import TrustScoringService, UpdateService
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

    updates: UpdateService
    checkpoints: CheckpointService
    rollbacks: RollbackService
    deployer: Deployer
    scoring: TrustScoringService
    runner: GovernanceRunner


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
    checkpoints = CheckpointService(db, runlog, registry, trust, settings.checkpoint_days)
    registry.before_clear_hooks.append(checkpoints.before_clear)
    trust.before_set_hooks.append(checkpoints.before_trust_change)
    runner = GovernanceRunner(db, clock, checkpoints, int(max(settings.lease, 1.5 * probes.PROBE_SECONDS) * SECOND))
    judging = ProposalReviewer(configuration(check_runtime), rules)
    rollbacks = RollbackService(db, runlog, checkpoints, runner.wake)
    reach = {
        "builtin": probes.builtin_probe(builtins),
        "http": probes.http_probe(outbound),
        "worker": probes.probe_worker,
        "llm": probes.registration_probe(check_runtime),
        "command": probes.registration_probe(check_runtime),
    }
    deployer = Deployer(db, runlog, registry, checkpoints, judging, probes.probe_by_kind(reach))
    runner.set_handlers(deployer, rollbacks)
    updates = UpdateService(
        db, runlog, judging, checkpoints, rollbacks, runner.wake, roles, self_approval=settings.self_approval
    )
    return Governance(updates, checkpoints, rollbacks, deployer, TrustScoringService(db, trust, checkpoints), runner)


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


def configuration(check_runtime: CheckRuntime) -> ConfigBuilder:
    """What the registry's route would make of an agent with this configuration."""

    def configured(agent: Agent, document: dict[str, Any]) -> AgentConfig:
        try:
            draft = Register.model_validate({"name": agent.name, **document}).to_draft()
        except ValidationError as error:
            found = field_errors(error.errors())["fields"]
            fields = {f"changes.agent_patch.{name}": reason for name, reason in found.items()}
            first, reason = next(iter(fields.items()))
            raise InvalidRequest(f"{first}: {reason}", {"fields": fields}) from None
        check_runtime(draft.runtime)
        return AgentConfig(draft.capabilities, draft.runtime, draft.sandbox_whitelist)

    return configured
