"""`stentor webhook ...`: subscribe URLs to events, test them, list deliveries, replay them."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
import typer

from stentor.cli import output
from stentor.cli.client.client import ServiceClient, quote_segment
from stentor.cli.client.responses import Response
from stentor.cli.command import ServiceTarget, with_service
from stentor.cli.output import console
from stentor.cli.record_lookup import on_record, resolve_id

app = typer.Typer(help="Subscribe other services to events; test and replay deliveries.", no_args_is_help=True)

WebhookId = Annotated[str, typer.Argument(metavar="ID", help="Its id, or the beginning or end of the id.")]
State = Literal["waiting", "sending", "delivered", "failed"]
Scope = Literal["undelivered", "all"]
BASE = "/webhooks"


class WebhookState(msgspec.Struct, frozen=True):
    id: str
    enabled: bool


class FailureTime(msgspec.Struct, frozen=True):
    created_at: str


class WebhookRow(WebhookState, frozen=True):
    url: str
    events: list[str]
    disabled_reason: str | None
    description: str
    failed: int = 0
    last_failure: FailureTime | None = None


class WebhookPage(msgspec.Struct, frozen=True):
    webhooks: list[WebhookRow]

    @property
    def labels(self) -> dict[str, str]:
        return {webhook.id: webhook.url for webhook in self.webhooks}


class SigningSecret(msgspec.Struct, frozen=True):
    """A new secret; until `old_secret_until` the old one signs as well."""

    secret: str
    old_secret_until: str | None = None


class AddedWebhook(SigningSecret, frozen=True, kw_only=True):
    id: str
    events: list[str]


class DeletedWebhook(msgspec.Struct, frozen=True):
    id: str


class ListedDelivery(msgspec.Struct, frozen=True):
    """A delivery with the outcome of its last attempt; without an attempt both outcomes are None."""

    id: str
    created_at: str
    event: str
    status: str
    attempts: int
    error: str | None
    status_code: int | None


class DeliveryPage(msgspec.Struct, frozen=True):
    deliveries: list[ListedDelivery]
    next_cursor: str | None

    @property
    def labels(self) -> dict[str, str]:
        return {delivery.id: delivery.event for delivery in self.deliveries}


class WebhookReplay(msgspec.Struct, frozen=True):
    """The replay of one delivery, or of `queued` deliveries up to `next_since`."""

    queued: int = 1
    next_since: str | None = None


@app.command("list")
@with_service
def list_webhooks(service: ServiceTarget) -> None:
    """List webhooks, oldest first."""
    service.call(lambda api: api.get(BASE, WebhookPage), _show_list)


@app.command()
@with_service
def add(
    service: ServiceTarget,
    address: Annotated[str, typer.Argument(metavar="ADDRESS", help="URL that receives the events.")],
    event: Annotated[list[str], typer.Option(help="An event, a group of events (task.*), or * for all; repeatable.")],
    description: Annotated[str, typer.Option(help="Purpose of the webhook.")] = "",
) -> None:
    """Subscribe a URL to events; the signing secret is shown only once."""
    body = {"url": address, "events": list(event), "description": description}

    def show_added(webhook: AddedWebhook) -> None:
        output.print_line(f"Created webhook {webhook.id} for {', '.join(webhook.events)}.")
        _print_secret(webhook)

    service.call(lambda api: api.post(BASE, AddedWebhook, body), show_added, access="create")


@app.command()
@with_service
def remove(service: ServiceTarget, webhook_id: WebhookId) -> None:
    """Delete a webhook with its delivery log; pending deliveries are dropped."""
    service.call(
        on_record(BASE, WebhookPage, webhook_id, lambda api, path: api.request("DELETE", path, DeletedWebhook)),
        lambda webhook: output.print_line(f"Deleted webhook {webhook.id}."),
        access="change",
    )


@app.command()
@with_service
def enable(service: ServiceTarget, webhook_id: WebhookId) -> None:
    """Enable a disabled webhook."""
    _set_enabled(service, webhook_id, enabled=True)


@app.command()
@with_service
def disable(service: ServiceTarget, webhook_id: WebhookId) -> None:
    """Disable a webhook: it gets no events until it is enabled again."""
    _set_enabled(service, webhook_id, enabled=False)


@app.command()
@with_service
def rotate(
    service: ServiceTarget,
    webhook_id: WebhookId,
    overlap: Annotated[int, typer.Option(min=0, max=604_800, help="Seconds that the old secret also signs.")] = 86_400,
) -> None:
    """Generate a new signing secret, which is shown only once."""

    def show_rotated(secret: SigningSecret) -> None:
        _print_secret(secret)
        if secret.old_secret_until:
            output.print_line(f"The old secret also signs until {secret.old_secret_until}.")

    service.call(
        on_record(
            BASE,
            WebhookPage,
            webhook_id,
            lambda api, path: api.post(f"{path}/rotate", SigningSecret, {"overlap_seconds": overlap}),
        ),
        show_rotated,
        access="change",
    )


@app.command("test")
@with_service
def ping(service: ServiceTarget, webhook_id: WebhookId) -> None:
    """Deliver webhook.ping immediately; the exit code is 1 if the receiver does not accept it."""
    service.call(
        on_record(BASE, WebhookPage, webhook_id, lambda api, path: api.post(f"{path}/test", ListedDelivery)),
        lambda delivery: output.print_line(f"Ping {delivery.status}: {_last_outcome(delivery)}."),
        access="change",
        is_success=lambda delivery: delivery.status == "delivered",
    )


@app.command()
@with_service
def deliveries(
    service: ServiceTarget,
    webhook_id: WebhookId,
    status: Annotated[State | None, typer.Option(help="Only deliveries with this status.")] = None,
    event: Annotated[str | None, typer.Option(help="Only deliveries of this event.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Maximum number of deliveries.")] = 20,
) -> None:
    """Show the delivery log, newest first."""
    service.call(
        on_record(
            BASE,
            WebhookPage,
            webhook_id,
            lambda api, path: api.get(f"{path}/deliveries", DeliveryPage, status=status, event=event, limit=limit),
        ),
        _show_deliveries,
    )


@app.command()
@with_service
def replay(
    service: ServiceTarget,
    webhook_id: WebhookId,
    delivery: Annotated[
        str | None, typer.Option(help="Delivery to send again: its id, or the beginning or end of the id.")
    ] = None,
    since: Annotated[str | None, typer.Option(help="A time such as 2026-11-20T21:45:00Z.")] = None,
    scope: Annotated[Scope, typer.Option(help="With --since: only undelivered events, or all.")] = "undelivered",
) -> None:
    """Replay one delivery, or the events since a time."""
    if (delivery is None) == (since is None):
        raise typer.BadParameter("Pass either --delivery or --since.")

    async def work(api: ServiceClient, path: str) -> Response[WebhookReplay]:
        if delivery is not None:
            log = f"{path}/deliveries"
            delivery_id = await resolve_id(api, log, DeliveryPage, delivery)
            return await api.post(f"{log}/{quote_segment(delivery_id)}/replay", WebhookReplay)
        return await api.post(f"{path}/replay", WebhookReplay, {"since": since, "scope": scope})

    def show_replayed(replay: WebhookReplay) -> None:
        output.print_line(f"Queued deliveries: {replay.queued}.")
        if replay.next_since:
            output.print_line(f"There are more: continue with --since {replay.next_since}")

    service.call(on_record(BASE, WebhookPage, webhook_id, work), show_replayed, access="change")


def _set_enabled(service: ServiceTarget, webhook_id: str, *, enabled: bool) -> None:
    service.call(
        on_record(
            BASE,
            WebhookPage,
            webhook_id,
            lambda api, path: api.request("PATCH", path, WebhookState, {"enabled": enabled}),
        ),
        lambda webhook: output.print_line(f"Webhook {webhook.id} is {_state(webhook)}."),
        access="change",
    )


def _print_secret(response: SigningSecret) -> None:
    output.print_line(f"Signing secret (not shown again): {response.secret}")


def _state(webhook: WebhookState) -> str:
    return "enabled" if webhook.enabled else "disabled"


def _last_outcome(delivery: ListedDelivery) -> str:
    """Describe the outcome of the last attempt."""
    if delivery.error:
        return delivery.error.rstrip(".")
    return "no attempt yet" if delivery.status_code is None else f"receiver returned {delivery.status_code}"


def _show_list(page: WebhookPage) -> None:
    rows = [
        (
            output.shorten_id(w.id),
            w.url,
            ", ".join(w.events),
            w.disabled_reason or _state(w),
            _describe_failures(w),
            w.description,
        )
        for w in page.webhooks
    ]
    columns = ("id", "address", "events", "state", "failed", "description")
    # An empty column would take space that the URL needs.
    shown = len(columns) if any(w.description for w in page.webhooks) else -1
    console.print(output.render_table(columns[:shown], (row[:shown] for row in rows)))


def _describe_failures(webhook: WebhookRow) -> str:
    """Return the number of failed deliveries, and the time of the last one; `webhook deliveries` has the reasons."""
    last = webhook.last_failure
    return f"{webhook.failed}, last {output.format_age(last.created_at)}" if last else "0"


def _show_deliveries(page: DeliveryPage) -> None:
    rows = [
        (output.shorten_id(d.id), output.format_age(d.created_at), d.event, d.status, str(d.attempts), _last_outcome(d))
        for d in page.deliveries
    ]
    console.print(output.render_table(("id", "created", "event", "status", "attempts", "last"), rows))
    if page.next_cursor:
        console.print("Older deliveries exist; use --limit for more.", style="dim")
