"""Wires governance: updates, checkpoints, rollbacks, computed trust, and the runner behind them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import partial

from pydantic import ValidationError

from stentor.bootstrap.infrastructure import Infrastructure
from stentor.bootstrap.parts.agents import AgentServices
from stentor.core.clock import SECOND
from stentor.core.errors import InvalidRequest
from stentor.core.jsontext import JsonObject
from stentor.core.validation.validation_errors import field_errors, list_errors
from stentor.domains.governance import probes
from stentor.domains.governance.checkpoints import CheckpointService
from stentor.domains.governance.deployment import Deployer, GovernanceRunner
from stentor.domains.governance.impact import AgentConfig
from stentor.domains.governance.review import ConfigBuilder, ProposalReviewer
from stentor.domains.governance.rollbacks import RollbackService
from stentor.domains.governance.service import TrustScoringService, UpdateService
from stentor.domains.registry.model import Agent
from stentor.domains.registry.operations import CheckRuntime
from stentor.domains.registry.wire import Register


@dataclass
class GovernanceParts:
    """`runner` deploys and rolls back in the background."""

    updates: UpdateService
    checkpoints: CheckpointService
    rollbacks: RollbackService
    deployer: Deployer
    scoring: TrustScoringService
    runner: GovernanceRunner


def open_governance(
    infra: Infrastructure,
    agents: AgentServices,
    builtins: Collection[str],
    check_runtime: CheckRuntime,
    probe_cluster: probes.Probe,
) -> GovernanceParts:
    """`builtins` are the names of the built-in agents; `check_runtime` checks the runtime of a registration,
    `probe_cluster` an agent on a cluster.
    """
    settings, db, runlog = infra.settings, infra.db, infra.runlog
    registry, trust = agents.registry, agents.trust
    checkpoints = CheckpointService(db, runlog, registry, trust, settings.governance.checkpoint_days)
    registry.before_clear_hooks.append(partial(checkpoints.take_before, "clear_violations"))
    trust.before_set_hooks.append(partial(checkpoints.take_before, "trust_change"))
    # Longer than a probe may take: otherwise another process would take over a deployment that still waits for one.
    lease_us = int(max(settings.tasks.lease_seconds, 1.5 * probes.PROBE_SECONDS) * SECOND)
    runner = GovernanceRunner(db, infra.clock, checkpoints, lease_us)
    reviewer = ProposalReviewer(_config_builder(check_runtime), agents.policies)
    rollbacks = RollbackService(db, runlog, checkpoints, runner.wake, infra.roles)
    by_kind = {
        "builtin": probes.builtin_probe(builtins),
        "http": probes.http_probe(infra.outbound),
        "worker": probes.probe_worker,
        "llm": probes.registration_probe(check_runtime),
        "command": probes.registration_probe(check_runtime),
        "ray": probe_cluster,
        "kubernetes": probe_cluster,
    }
    deployer = Deployer(db, runlog, registry, checkpoints, reviewer, probes.probe_by_kind(by_kind))
    # After construction: the rollbacks need the runner's `wake`, and the runner needs the rollbacks.
    runner.set_handlers(deployer, rollbacks)
    updates = UpdateService(
        db,
        runlog,
        reviewer,
        checkpoints,
        rollbacks,
        runner.wake,
        infra.roles,
        self_approval=settings.governance.self_approval,
    )
    return GovernanceParts(
        updates, checkpoints, rollbacks, deployer, TrustScoringService(db, trust, checkpoints), runner
    )


def _config_builder(check_runtime: CheckRuntime) -> ConfigBuilder:
    """Return a function that validates a patched configuration as the registration of an agent is validated."""

    def build(agent: Agent, document: JsonObject) -> AgentConfig:
        try:
            draft = Register.model_validate({"name": agent.name, **document}).to_draft()
        except ValidationError as error:
            reasons = field_errors(list_errors(error))["fields"]
            fields = {f"changes.agent_patch.{name}": reason for name, reason in reasons.items()}
            first, reason = next(iter(fields.items()))
            raise InvalidRequest(f"{first}: {reason}", {"fields": fields}) from None
        check_runtime(draft.runtime)
        return AgentConfig(draft.capabilities, draft.runtime, draft.sandbox_whitelist)

    return build
