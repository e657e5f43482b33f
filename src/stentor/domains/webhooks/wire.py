"""Request and response bodies of the webhook operations."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, StringConstraints

from stentor.core.validation.text_checks import check_printable
from stentor.domains.webhooks.model import DeliveryStatus
from stentor.web.routes import RequestModel, example_config
from stentor.web.wire import ResponseModel, Time, Timestamp

WEEK_SECONDS = 7 * 86_400


def _check_url_characters(text: str) -> str:
    if not text.isprintable() or " " in text:
        raise ValueError("must be a URL without spaces and control characters")
    return text


Address = Annotated[str, StringConstraints(min_length=1, max_length=2000), AfterValidator(_check_url_characters)]
EventName = Annotated[str, StringConstraints(min_length=1, max_length=100), AfterValidator(check_printable)]
EventNames = Annotated[list[EventName], Field(min_length=1, max_length=100)]
Description = Annotated[str, StringConstraints(max_length=500), AfterValidator(check_printable)]


class Subscribe(RequestModel):
    """`events` are names, `*` for all, or all of a kind such as `task.*`."""

    model_config = example_config(
        url="https://hooks.example.com/stentor", events=["task.completed", "agent.quarantined"]
    )

    url: Address
    events: EventNames
    description: Description = ""


class Change(RequestModel):
    """Omitted fields stay unchanged."""

    model_config = example_config(enabled=True)

    url: Address | None = None
    events: EventNames | None = None
    description: Description | None = None
    enabled: bool | None = None


class Rotate(RequestModel):
    model_config = example_config(overlap_seconds=3600)

    overlap_seconds: Annotated[int, Field(ge=0, le=WEEK_SECONDS)] = 86_400


class ReplaySince(RequestModel):
    """From `since` up to `until`; default: now."""

    model_config = example_config(since="2026-11-20T21:45:00Z", scope="undelivered")

    since: Time
    until: Time | None = None
    scope: Literal["undelivered", "all"] = "undelivered"


class WebhookOut(ResponseModel):
    id: Annotated[str, Field(validation_alias="subscription_id")]
    url: str
    events: list[str]
    description: str
    enabled: bool
    disabled_reason: str | None
    old_secret_until: Annotated[Timestamp | None, Field(validation_alias="old_until")]
    created_by: str
    created_at: Timestamp
    updated_at: Timestamp


class Subscribed(ResponseModel):
    """Includes the secret, as does only the response of a rotation."""

    id: Annotated[str, Field(validation_alias="subscription_id")]
    url: str
    events: list[str]
    secret: str
    enabled: bool
    created_at: Timestamp


class Rotated(ResponseModel):
    id: str
    secret: str
    old_secret_until: Timestamp | None


class LastFailure(ResponseModel):
    """The newest delivery whose last attempt failed."""

    delivery_id: str
    created_at: Timestamp
    status_code: Annotated[int | None, Field(validation_alias="last_status")]
    error: Annotated[str | None, Field(validation_alias="last_error")]


class ListedWebhook(WebhookOut):
    """`failed` counts the deliveries whose last attempt failed, among the newest 1,000."""

    failed: int
    last_failure: LastFailure | None


class Webhooks(ResponseModel):
    webhooks: list[ListedWebhook]
    total: int


class Deleted(ResponseModel):
    id: str
    deleted: bool


class DeliveryOut(ResponseModel):
    """`message_id` is the header webhook-id of the receiver. `next_attempt_at` is set while the delivery waits."""

    id: Annotated[str, Field(validation_alias="delivery_id")]
    webhook_id: Annotated[str, Field(validation_alias="subscription_id")]
    message_id: Annotated[str, Field(validation_alias="event_id")]
    event: str
    status: DeliveryStatus
    attempts: int
    created_at: Timestamp
    next_attempt_at: Timestamp | None
    ended_at: Timestamp | None
    status_code: Annotated[int | None, Field(validation_alias="last_status")]
    error: Annotated[str | None, Field(validation_alias="last_error")]
    replay_of: str | None


class AttemptOut(ResponseModel):
    attempt: int
    started_at: Timestamp
    duration_ms: int
    status_code: int | None
    error: str | None
    response: str | None


class DeliveryDetail(DeliveryOut):
    """A delivery with all attempts."""

    log: list[AttemptOut]


class Deliveries(ResponseModel):
    deliveries: list[DeliveryOut]
    limit: int
    next_cursor: str | None


class ReplayedOut(ResponseModel):
    """`next_since` is set if there are more events: replay again from there."""

    queued: int
    next_since: Timestamp | None
