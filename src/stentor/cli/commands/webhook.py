"""`stentor webhook ...`: subscribe URLs to events, test them, list deliveries, replay them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer

from stentor.cli import output
from stentor.cli.client import ServiceClient, quote_segment
from stentor.cli.command import AsJson, DataDir, Key, ServiceTarget, Url, run_command
from stentor.cli.output import EXIT_FAILED, console

app = typer.Typer(help="Subscribe other services to events; test and replay deliveries.", no_args_is_help=True)

WebhookId = Annotated[str, typer.Argument(metavar="ID", help="The webhook's id.")]
State = Literal["waiting", "sending", "delivered", "failed"]
Scope = Literal["undelivered", "all"]
BASE = "/webhooks"


@app.command("list")
def list_webhooks(data_dir: DataDir = None, url: Url = None, key: Key = None, as_json: AsJson = False) -> None:
    """List webhooks, oldest first."""

    async def work(api: ServiceClient) -> dict[str, Any]:
        return dict(await api.get(BASE))

    run_command(ServiceTarget(data_dir, url, key), work, _show_list, as_json=as_json)


@app.command()
def add(
    address: Annotated[str, typer.Argument(metavar="ADDRESS", help="URL that receives the events.")],
    event: Annotated[list[str], typer.Option(help="An event, a group of events (task.*), or * for all; repeatable.")],
    description: Annotated[str, typer.Option(help="Purpose of the webhook.")] = "",
    data_dir: DataDir = None,
    url: Url = None,
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Subscribe a URL to events; the signing secret is shown only once."""
    body = {"url": address, "events": list(event), "description": description}

    async def work(api: ServiceClient) -> dict[str, Any]:
        return dict(await api.post(BASE, body))

    def show_added(response: dict[str, Any]) -> None:
        output.print_line(f"Created webhook {response['id']} for {', '.join(response['events'])}.")
        _print_secret(response)

    run_command(ServiceTarget(data_dir, url, key), work, show_added, as_json=as_json, access="create")


@app.command()
def remove(
    webhook_id: WebhookId, data_dir: DataDir = None, url: Url = None, key: Key = None, as_json: AsJson = False
) -> None:
    """Delete a webhook with its delivery log; pending deliveries are dropped."""

    async def work(api: ServiceClient) -> dict[str, Any]:
        return dict(await api.delete(_path(webhook_id)))

    def show_removed(response: dict[str, Any]) -> None:
        output.print_line(f"Deleted webhook {response['id']}.")

    run_command(ServiceTarget(data_dir, url, key), work, show_removed, as_json=as_json, access="change")


@app.command()
def enable(
    webhook_id: WebhookId, data_dir: DataDir = None, url: Url = None, key: Key = None, as_json: AsJson = False
) -> None:
    """Enable a disabled webhook."""
    _set_enabled(ServiceTarget(data_dir, url, key), webhook_id, enabled=True, as_json=as_json)


@app.command()
def disable(
    webhook_id: WebhookId, data_dir: DataDir = None, url: Url = None, key: Key = None, as_json: AsJson = False
) -> None:
    """Disable a webhook: it gets no events until it is enabled again."""
    _set_enabled(ServiceTarget(data_dir, url, key), webhook_id, enabled=False, as_json=as_json)


@app.command()
def rotate(
    webhook_id: WebhookId,
    overlap: Annotated[int, typer.Option(min=0, max=604_800, help="Seconds that the old secret also signs.")] = 86_400,
    data_dir: DataDir = None,
    url: Url = None,
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Generate a new signing secret, which is shown only once."""

    async def work(api: ServiceClient) -> dict[str, Any]:
        return dict(await api.post(f"{_path(webhook_id)}/rotate", {"overlap_seconds": overlap}))

    def show_rotated(response: dict[str, Any]) -> None:
        _print_secret(response)
        if response["old_secret_until"]:
            output.print_line(f"The old secret also signs until {response['old_secret_until']}.")

    run_command(ServiceTarget(data_dir, url, key), work, show_rotated, as_json=as_json, access="change")


@app.command("test")
def ping(
    webhook_id: WebhookId, data_dir: DataDir = None, url: Url = None, key: Key = None, as_json: AsJson = False
) -> None:
    """Deliver webhook.ping immediately; the exit code is 1 if the receiver does not accept it."""

    async def work(api: ServiceClient) -> dict[str, Any]:
        return dict(await api.post(f"{_path(webhook_id)}/test"))

    def show_tested(response: dict[str, Any]) -> None:
        output.print_line(f"Ping {response['status']}: {_last_outcome(response)}.")

    response = run_command(ServiceTarget(data_dir, url, key), work, show_tested, as_json=as_json, access="change")
    if response["status"] != "delivered":
        raise typer.Exit(EXIT_FAILED)


@app.command()
def deliveries(
    webhook_id: WebhookId,
    status: Annotated[State | None, typer.Option(help="Only deliveries with this status.")] = None,
    event: Annotated[str | None, typer.Option(help="Only deliveries of this event.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Maximum number of deliveries.")] = 20,
    data_dir: DataDir = None,
    url: Url = None,
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Show the delivery log, newest first."""

    async def work(api: ServiceClient) -> dict[str, Any]:
        return dict(await api.get(f"{_path(webhook_id)}/deliveries", status=status, event=event, limit=limit))

    run_command(ServiceTarget(data_dir, url, key), work, _show_deliveries, as_json=as_json)


@app.command()
def replay(
    webhook_id: WebhookId,
    delivery: Annotated[str | None, typer.Option(help="Id of one delivery to send again.")] = None,
    since: Annotated[str | None, typer.Option(help="A time such as 2026-11-20T21:45:00Z.")] = None,
    scope: Annotated[Scope, typer.Option(help="With --since: only undelivered events, or all.")] = "undelivered",
    data_dir: DataDir = None,
    url: Url = None,
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Replay one delivery, or the events since a time."""
    if (delivery is None) == (since is None):
        raise typer.BadParameter("Pass either --delivery or --since.")

    async def work(api: ServiceClient) -> dict[str, Any]:
        if delivery is not None:
            return dict(await api.post(f"{_path(webhook_id)}/deliveries/{_segment(delivery)}/replay"))
        return dict(await api.post(f"{_path(webhook_id)}/replay", {"since": since, "scope": scope}))

    def show_replayed(response: dict[str, Any]) -> None:
        output.print_line(f"Queued deliveries: {response.get('queued', 1)}.")
        if response.get("next_since"):
            output.print_line(f"There are more: continue with --since {response['next_since']}")

    run_command(ServiceTarget(data_dir, url, key), work, show_replayed, as_json=as_json, access="change")


def _set_enabled(target: ServiceTarget, webhook_id: str, *, enabled: bool, as_json: bool) -> None:
    async def work(api: ServiceClient) -> dict[str, Any]:
        return dict(await api.patch(_path(webhook_id), {"enabled": enabled}))

    def show_switched(response: dict[str, Any]) -> None:
        output.print_line(f"Webhook {response['id']} is {_state(response)}.")

    run_command(target, work, show_switched, as_json=as_json, access="change")


def _segment(text: str) -> str:
    return quote_segment(text)


def _path(webhook_id: str) -> str:
    return f"{BASE}/{_segment(webhook_id)}"


def _print_secret(response: dict[str, Any]) -> None:
    output.print_line(f"Signing secret (not shown again): {response['secret']}")


def _state(webhook: dict[str, Any]) -> str:
    return "enabled" if webhook["enabled"] else "disabled"


def _last_outcome(delivery: dict[str, Any]) -> str:
    """Describe the outcome of the last attempt."""
    if delivery["error"]:
        return str(delivery["error"]).rstrip(".")
    return "no attempt yet" if delivery["status_code"] is None else f"receiver returned {delivery['status_code']}"


def _show_list(page: dict[str, Any]) -> None:
    rows = [
        (w["id"], w["url"], ", ".join(w["events"]), w["disabled_reason"] or _state(w), w["description"])
        for w in page["webhooks"]
    ]
    console.print(output.render_table(("id", "address", "events", "state", "description"), rows))


def _show_deliveries(page: dict[str, Any]) -> None:
    rows = [
        (d["id"], d["created_at"], d["event"], d["status"], str(d["attempts"]), _last_outcome(d))
        for d in page["deliveries"]
    ]
    console.print(output.render_table(("id", "created", "event", "status", "attempts", "last"), rows))
    if page["next_cursor"]:
        console.print("Older deliveries exist; use --limit for more.", style="dim")
