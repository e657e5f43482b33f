"""Settings: deliveries of webhooks."""

from __future__ import annotations

from dataclasses import dataclass

from stentor.core.settings import kinds
from stentor.core.settings.kinds import setting


@dataclass(frozen=True)
class WebhookSettings:
    webhook_timeout: float = setting(
        "SERVICE_WEBHOOK_TIMEOUT_SECONDS",
        15.0,
        "How long the receiver of a webhook may take to answer.",
        kinds.number(0.05, 30, float),
    )
    webhook_retention: int = setting(
        "SERVICE_WEBHOOK_RETENTION_DAYS",
        30,
        "How long the delivery log of webhooks is kept.",
        kinds.number(7, 3650, int),
    )
