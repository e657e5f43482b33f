"""The gRPC status of each error code. Statuses are names, so that the table can be read without the gRPC package.

UNAVAILABLE is only for errors that may be retried unchanged, because clients retry it by themselves.
FAILED_PRECONDITION: the call is valid but the state forbids it. ABORTED: a concurrent change came first. UNKNOWN:
another service failed. Source: docs/decisions, 0025.
"""

from __future__ import annotations

from stentor.core.errors import StentorError

STATUSES = {
    "INVALID_ARGUMENT": ("INVALID_REQUEST",),
    "UNAUTHENTICATED": ("UNAUTHORIZED", "AUTHORITY_REFUSED"),
    "PERMISSION_DENIED": (
        "FORBIDDEN",
        "AUTHORITY_DENIED",
        "SIGN_IN_FAILED",
        "SIGN_IN_REFUSED",
        "TOOL_DENIED",
        "GOVERNANCE_SELF_APPROVAL",
        "ROUTING_TENANT_DENIED",
        "ROUTING_AUTHORITY_DENIED",
        "ROUTING_POLICY_DENIED",
    ),
    "NOT_FOUND": ("NOT_FOUND", "MODEL_NOT_FOUND", "TASK_ARCHIVED"),
    "FAILED_PRECONDITION": (
        "CONFLICT",
        "IDEMPOTENCY_KEY_REUSED",
        "APPROVAL_PENDING",
        "STEP_MISMATCH",
        "STEP_UNKNOWN",
        "PARENT_CANCELLED",
        "CAGE_UNAVAILABLE",
        "GOVERNANCE_RISK_NOT_OVERRIDDEN",
        "TRUST_NOT_COMPUTABLE",
        "ROUTING_CAPABILITY_UNAVAILABLE",
        "ROUTING_AGENT_UNAVAILABLE",
        "ROUTING_TRUST_FLOOR",
        "ROUTING_AGENT_INELIGIBLE",
    ),
    "ABORTED": ("LEASE_LOST", "NOTE_CHANGED", "PRECONDITION_FAILED"),
    "RESOURCE_EXHAUSTED": ("PAYLOAD_TOO_LARGE", "RATE_LIMITED", "BUDGET_EXCEEDED"),
    "UNIMPLEMENTED": ("METHOD_NOT_ALLOWED", "NOT_IMPLEMENTED"),
    "UNAVAILABLE": ("SERVICE_UNAVAILABLE",),
    "DEADLINE_EXCEEDED": ("TIMEOUT",),
    "UNKNOWN": (
        "AGENT_FAILED",
        "PROVIDER_ERROR",
        "TOOL_FAILED",
        "VAULT_UNREACHABLE",
        "VAULT_KEY_REFUSED",
        "VAULT_BROKEN",
    ),
    "DATA_LOSS": ("RECORD_CORRUPT", "REGISTRY_RECORD_INVALID", "RUN_LOG_DAMAGED", "CHECKPOINT_CORRUPT"),
    "INTERNAL": ("INTERNAL_ERROR", "START_REFUSED", "POLICY_INVALID", "RESTORE_FAILED"),
}
BY_CODE = {code: status for status, codes in STATUSES.items() for code in codes}


def status_of(error: StentorError | type[StentorError]) -> str:
    """Return the gRPC status name of an error; INTERNAL for an unmapped code. A test ensures that all are mapped."""
    return BY_CODE.get(error.code, "INTERNAL")
