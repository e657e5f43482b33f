"""The one error tree. A class is a fact; its code and status are the contract's and never change.

Domains raise these and know no HTTP; each surface renders them in its own dialect.
Source: core contract, "Errors"; the routing codes are decided in docs/decisions.
"""

from __future__ import annotations

from typing import Any, ClassVar


class StentorError(Exception):
    """Base of all errors with a stable code. `details` is safe to show to the caller."""

    code: ClassVar[str] = "INTERNAL_ERROR"
    status: ClassVar[int] = 500
    retry_after: int = 1
    """Seconds that the answers 429 and 503 tell the caller to wait."""

    def __init__(self, message: str, details: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.details = details


class InvalidRequest(StentorError):
    code, status = "INVALID_REQUEST", 400


class PayloadTooLarge(StentorError):
    code, status = "PAYLOAD_TOO_LARGE", 413


class Unauthorized(StentorError):
    code, status = "UNAUTHORIZED", 401


class Forbidden(StentorError):
    code, status = "FORBIDDEN", 403


class AuthorityRefused(Unauthorized):
    """A receipt, its proof or its chain does not hold; only the service's log says why."""

    code = "AUTHORITY_REFUSED"

    def __init__(self) -> None:
        super().__init__("The receipt was refused.")


class AuthorityDenied(Forbidden):
    """The evidence of the caller is blank, or its scope does not reach what was asked for."""

    code = "AUTHORITY_DENIED"


class NotFound(StentorError):
    code, status = "NOT_FOUND", 404


class MethodNotAllowed(StentorError):
    code, status = "METHOD_NOT_ALLOWED", 405


class Conflict(StentorError):
    code, status = "CONFLICT", 409


class LeaseLost(Conflict):
    """The epoch is not the task's current one: somebody else holds the task, or it has ended."""

    code = "LEASE_LOST"


class SandboxUnavailable(Conflict):
    """This host or the operator's settings give command agents no cage, and without one they are not run."""

    code = "CAGE_UNAVAILABLE"


class PreconditionFailed(StentorError):
    """The state that the caller's If-Match names is not the present one."""

    code, status = "PRECONDITION_FAILED", 412


class IdempotencyMismatch(StentorError):
    """The Idempotency-Key was used before with another body."""

    code, status = "IDEMPOTENCY_KEY_REUSED", 422


class RateLimited(StentorError):
    code, status = "RATE_LIMITED", 429


class FeatureNotImplemented(StentorError):
    """The contract names this route; this version does not have it yet."""

    code, status = "NOT_IMPLEMENTED", 501


class ServiceUnavailable(StentorError):
    code, status = "SERVICE_UNAVAILABLE", 503


class StoreUnavailable(ServiceUnavailable):
    """The database could not take or answer a statement. Nothing was written."""


class StoreConflict(StoreUnavailable):
    """The transaction lost against another one, or its connection before the commit: it may be tried again."""


class Timeout(StentorError):
    code, status = "TIMEOUT", 504


class CorruptRecord(StentorError):
    """A stored record does not have the shape that its store writes."""

    code = "RECORD_CORRUPT"


class RegistryRecordError(CorruptRecord):
    """A stored agent is malformed; it is never handed out as a raw dictionary."""

    code = "REGISTRY_RECORD_INVALID"

    def __init__(self, message: str, agent_id: str, tenant: str) -> None:
        super().__init__(message, {"agent_id": agent_id})
        self.agent_id, self.tenant = agent_id, tenant


class RunLogDamaged(CorruptRecord):
    """The run log does not fit its own hashes; nothing is numbered or signed until somebody has looked."""

    code = "RUN_LOG_DAMAGED"


class StartRefused(StentorError):
    """The service must not start like this; the message says what to change."""

    code = "START_REFUSED"


class ModelNotFound(NotFound):
    """No configured provider has the model."""

    code = "MODEL_NOT_FOUND"


class BudgetExceeded(RateLimited):
    """The tokens or the money that a key or an agent may spend in this period are spent."""

    code = "BUDGET_EXCEEDED"


class AgentFault(StentorError):
    """The agent that answers as a model failed, or nobody may say that it did not."""

    code, status = "AGENT_FAILED", 502


class ApprovalPending(Conflict):
    """The work waits for a person; its answer will be found at the task."""

    code = "APPROVAL_PENDING"


class ProviderFault(StentorError):
    """A provider of language models failed; never the fault of an agent. `upstream` is its HTTP status."""

    code, status = "PROVIDER_ERROR", 502
    upstream_status: int | None = None
    has_retry_after = False
    """Whether it said itself when it will take the request (`retry_after`)."""
    was_called = True
    """False when the gate kept the call back, because the provider is left alone for a while."""


class ProviderError(ProviderFault):
    """It answered with an error, or with what is no answer."""


class ProviderBusy(ProviderFault, RateLimited):
    """It answered 429."""

    code, status = "RATE_LIMITED", 429


class ProviderUnreachable(ProviderFault, ServiceUnavailable):
    """It cannot be connected to, or it failed so often that it is left alone for a while."""

    code, status = "SERVICE_UNAVAILABLE", 503


class ProviderTimeout(ProviderFault, Timeout):
    """It did not answer in time."""

    code, status = "TIMEOUT", 504


# Routing denials, in the order of the admission checks.


class RoutingDenied(StentorError):
    """No agent may take the task. Fail-closed: the request goes to nobody else."""

    status = 409


class CapabilityUnavailable(RoutingDenied):
    code, status = "ROUTING_CAPABILITY_UNAVAILABLE", 422


class TenantDenied(RoutingDenied):
    code, status = "ROUTING_TENANT_DENIED", 403


class AgentUnavailable(RoutingDenied):
    code = "ROUTING_AGENT_UNAVAILABLE"


class DelegationDenied(RoutingDenied):
    code, status = "ROUTING_AUTHORITY_DENIED", 403


class TrustFloorExcludedAll(RoutingDenied):
    code = "ROUTING_TRUST_FLOOR"


class PolicyDenied(RoutingDenied):
    """The operator's policy file refuses what the built-in checks let through."""

    code, status = "ROUTING_POLICY_DENIED", 403


class PreferredAgentIneligible(RoutingDenied):
    code = "ROUTING_AGENT_INELIGIBLE"


def all_errors() -> list[type[StentorError]]:
    """Every class of the tree, for the generated reference and the tests."""
    found: list[type[StentorError]] = []
    todo = [StentorError]
    while todo:
        cls = todo.pop(0)
        if cls in found:
            continue  # it has two bases
        found.append(cls)
        todo.extend(cls.__subclasses__())
    return found
