"""All errors of the service. The code and status of each class are fixed by the contract.

Domains raise them without knowing HTTP; each surface renders them in its own format (`web.errors` for HTTP).
Sources: core contract, "Errors"; docs/decisions for the routing codes.
"""

from __future__ import annotations

from typing import Any, Self

# The base and the errors that notes raise too belong to the vault's package, which does not know this one.
from stentor_vault.errors import (
    Conflict,
    InvalidRequest,
    NotFound,
    PreconditionFailed,
    ServiceUnavailable,
    StentorError,
    Timeout,
)

__all__ = [
    "Conflict",
    "InvalidRequest",
    "NotFound",
    "PreconditionFailed",
    "ServiceUnavailable",
    "StentorError",
    "Timeout",
]


class PayloadTooLarge(StentorError):
    code, status = "PAYLOAD_TOO_LARGE", 413


class Unauthorized(StentorError):
    code, status = "UNAUTHORIZED", 401


class Forbidden(StentorError):
    code, status = "FORBIDDEN", 403


class SignInFailed(Forbidden):
    """What the sign-in provider sent cannot be trusted, or it did not sign the person in."""

    code = "SIGN_IN_FAILED"


class SignInRefused(Forbidden):
    """The provider has identified the person, who may not sign in here."""

    code = "SIGN_IN_REFUSED"


class AuthorityRefused(Unauthorized):
    """A receipt, its proof or its chain is invalid. Only the service's log has the reason."""

    code = "AUTHORITY_REFUSED"

    def __init__(self) -> None:
        super().__init__("The receipt was refused.")


class AuthorityDenied(Forbidden):
    """The caller's authority is blank, or does not cover the request."""

    code = "AUTHORITY_DENIED"


class MethodNotAllowed(StentorError):
    code, status = "METHOD_NOT_ALLOWED", 405


class LeaseLost(Conflict):
    """The epoch is outdated: the task was claimed by another worker, or has ended."""

    code = "LEASE_LOST"


class StepMismatch(Conflict):
    """The journal of the task has another step at this place: the program has changed since the task began."""

    code = "STEP_MISMATCH"


class StepUnknown(Conflict):
    """An effect must begin before its outcome is recorded."""

    code = "STEP_UNKNOWN"


class ParentCancelled(Conflict):
    """The task that should be the parent was cancelled: it gets no more subtasks."""

    code = "PARENT_CANCELLED"


class SandboxUnavailable(Conflict):
    """There is no sandbox for command agents, because of the host or the settings; they do not run without one."""

    code = "CAGE_UNAVAILABLE"


class IdempotencyMismatch(StentorError):
    """The Idempotency-Key was already used with a different body."""

    code, status = "IDEMPOTENCY_KEY_REUSED", 422


class RateLimited(StentorError):
    code, status = "RATE_LIMITED", 429


class FeatureNotImplemented(StentorError):
    """The contract defines this route, but this version does not implement it."""

    code, status = "NOT_IMPLEMENTED", 501


class StoreUnavailable(ServiceUnavailable):
    """The database failed or is unreachable. Nothing was written, unless the message says that it may have been."""

    is_silent = False
    """Whether the server did not answer a connect at all, so that waiting for another connection is pointless."""

    @classmethod
    def of_driver(cls, text: str) -> Self:
        """Return an error that has the text, which may name tables and addresses, only as `str()`: for the log."""
        error = cls(text)
        error.message = "The database is not available. The service's log has the reason."
        return error


class StoreConflict(StoreUnavailable):
    """The transaction conflicted with another one, or lost its connection before the commit; it can be retried."""


class CorruptRecord(StentorError):
    """A stored record is malformed."""

    code = "RECORD_CORRUPT"


class CorruptRow(CorruptRecord):
    """A row that jobs read is malformed. The part that owns the table sets it aside, so that the jobs continue.

    `key` identifies the row in its table.
    """

    def __init__(self, message: str, table: str, key: tuple[str, ...]) -> None:
        super().__init__(message)
        self.table, self.key = table, key


class RegistryRecordError(CorruptRecord):
    """A stored agent is malformed; it is never returned as raw data."""

    code = "REGISTRY_RECORD_INVALID"

    def __init__(self, message: str, agent_id: str, tenant: str) -> None:
        super().__init__(message, {"agent_id": agent_id})
        self.agent_id, self.tenant = agent_id, tenant


class RunLogDamaged(CorruptRecord):
    """The run log does not match its hashes; no event is numbered or signed until an operator accepts it."""

    code = "RUN_LOG_DAMAGED"


class StartRefused(StentorError):
    """The service must not start with this configuration or state. The message says what to change."""

    code = "START_REFUSED"


class TaskArchived(NotFound):
    """The task ended long ago and has left the database; the message says when, and where it is now."""

    code, status = "TASK_ARCHIVED", 410


class ModelNotFound(NotFound):
    """No configured provider offers the model."""

    code = "MODEL_NOT_FOUND"


class BudgetExceeded(RateLimited):
    """A key, an agent or a team has used up its budget of tokens or money for this period."""

    code = "BUDGET_EXCEEDED"
    is_outage = True
    """Whether calls of all other keys fail too; not for the budget of a key or team, or one that open calls reserve."""


class AgentFault(StentorError):
    """The agent behind a model failed, or its answer is incomplete."""

    code, status = "AGENT_FAILED", 502


class ApprovalPending(Conflict):
    """The task waits for a person's approval; its result will be available at the task."""

    code = "APPROVAL_PENDING"


class ProviderFault(StentorError):
    """A provider of language models failed; never counted against an agent."""

    code, status = "PROVIDER_ERROR", 502
    upstream_status: int | None = None
    """The provider's HTTP status; 401 also for a 400 about the configured key or its account."""
    reported_code: str | None = None
    reported_param: str | None = None
    """What the provider named as the code and the parameter of its error, in OpenAI's format."""
    has_retry_after = False
    """Whether `retry_after` came from the provider."""
    was_called = True
    """False if no call was made because the circuit breaker of the provider is open."""
    usage: Any = None
    """The `TokenUsage` that the provider reported for a reply that it ended early."""


class ProviderError(ProviderFault):
    """The provider returned an error or an unusable response."""


class ProviderBusy(ProviderFault, RateLimited):
    """The provider returned 429."""

    code, status = "RATE_LIMITED", 429


class ProviderUnreachable(ProviderFault, ServiceUnavailable):
    """The provider is unreachable, or its circuit breaker is open."""

    code, status = "SERVICE_UNAVAILABLE", 503


class ProviderTimeout(ProviderFault, Timeout):
    """The provider did not respond in time."""

    code, status = "TIMEOUT", 504
    is_repeatable = False
    """The provider may have carried out the call, and bills it."""


# Routing denials, in the order of the checks.


class RoutingDenied(StentorError):
    """No agent may take the task. Fails closed: it is not routed to a less suitable one."""

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
    """The operator's policy file denies what the built-in checks allow."""

    code, status = "ROUTING_POLICY_DENIED", 403


class PreferredAgentIneligible(RoutingDenied):
    code = "ROUTING_AGENT_INELIGIBLE"


def all_errors() -> list[type[StentorError]]:
    """Return all error classes, for the generated reference and the tests."""
    classes: list[type[StentorError]] = []
    pending = [StentorError]
    while pending:
        cls = pending.pop(0)
        if cls in classes:
            continue  # a class with two bases is reached twice
        classes.append(cls)
        pending.extend(cls.__subclasses__())
    return classes


def drop_tracebacks(error: BaseException | None) -> None:
    """Drop the tracebacks of an error that is answered, and of those that led to it.

    Their frames hold the request's body, and often the error itself: only the rare garbage collection would free both.
    """
    while error is not None:
        error.__traceback__ = None
        cause, error.__cause__, error.__context__ = error.__cause__ or error.__context__, None, None
        error = cause
