"""`stentor webhook ...`: subscribe URLs to events, test them, see what was delivered, send it again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from stentor.cli import output
from stentor.cli.command import AsJson, DataDir, Key, ServiceTarget, Url, run_command
from stentor.cli.output import EXIT_FAILED, console

if TYPE_CHECKING:
    from stentor.cli.client import ServiceClient

app = typer.Typer(help="Tell other services what happens: subscribe, test, replay.", no_args_is_help=True)

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
    address: Annotated[str, typer.Argument(metavar="ADDRESS", help="Where events are posted to.")],
    event: Annotated[list[str], typer.Option(help="An event, all of a kind (task.*), or *; repeatable.")],
    description: Annotated[str, typer.Option(help="What it is for.")] = "",
    data_dir: DataDir = None,
    url: Url = None,
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Subscribe an address to events; its secret is shown once."""
    body = {"url": address, "events": list(event), "description": description}

    async def work(api: ServiceClient) -> dict[str, Any]:
        return dict(await api.post(BASE, body))

    def added(answer: dict[str, Any]) -> None:
        output.print_line(f"Webhook {answer['id']} gets {', '.join(answer['events'])}.")
        _say_secret(answer)

    run_command(ServiceTarget(data_dir, url, key), work, added, as_json=as_json, access="create")


@app.command()
def remove(
    webhook_id: WebhookId, data_dir: DataDir = None, url: Url = None, key: Key = None, as_json: AsJson = False
) -> None:
    """Delete a webhook with its log; what still waits for it is not sent."""

    async def work(api: ServiceClient) -> dict[str, Any]:
        return dict(await api.delete(_path(webhook_id)))

    def removed(answer: dict[str, Any]) -> None:
        output.print_line(f"Webhook {answer['id']} is deleted.")

    run_command(ServiceTarget(data_dir, url, key), work, removed, as_json=as_json, access="change")


@app.command()
def enable(
    webhook_id: WebhookId, data_dir: DataDir = None, url: Url = None, key: Key = None, as_json: AsJson = False
) -> None:
    """Send events to a webhook again that was disabled."""
    _switch(ServiceTarget(data_dir, url, key), webhook_id, enabled=True, as_json=as_json)


@app.command()
def disable(
    webhook_id: WebhookId, data_dir: DataDir = None, url: Url = None, key: Key = None, as_json: AsJson = False
) -> None:
    """Send a webhook nothing until it is enabled."""
    _switch(ServiceTarget(data_dir, url, key), webhook_id, enabled=False, as_json=as_json)


@app.command()
def rotate(
    webhook_id: WebhookId,
    overlap: Annotated[int, typer.Option(min=0, max=604_800, help="Seconds that the old secret signs too.")] = 86_400,
    data_dir: DataDir = None,
    url: Url = None,
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Make a new secret, which is shown once."""

    async def work(api: ServiceClient) -> dict[str, Any]:
        return dict(await api.post(f"{_path(webhook_id)}/rotate", {"overlap_seconds": overlap}))

    def rotated(answer: dict[str, Any]) -> None:
        _say_secret(answer)
        if answer["old_secret_until"]:
            output.print_line(f"The old secret signs too until {answer['old_secret_until']}.")

    run_command(ServiceTarget(data_dir, url, key), work, rotated, as_json=as_json, access="change")


@app.command("test")
def ping(
    webhook_id: WebhookId, data_dir: DataDir = None, url: Url = None, key: Key = None, as_json: AsJson = False
) -> None:
    """Deliver webhook.ping now; exit code 1 when the receiver does not take it."""

    async def work(api: ServiceClient) -> dict[str, Any]:
        return dict(await api.post(f"{_path(webhook_id)}/test"))

    def tested(answer: dict[str, Any]) -> None:
        output.print_line(f"The ping was {answer['status']}: {_met(answer)}.")

    answer = run_command(ServiceTarget(data_dir, url, key), work, tested, as_json=as_json, access="change")
    if answer["status"] != "delivered":
        raise typer.Exit(EXIT_FAILED)


@app.command()
def deliveries(
    webhook_id: WebhookId,
    status: Annotated[State | None, typer.Option(help="Only deliveries in this state.")] = None,
    event: Annotated[str | None, typer.Option(help="Only deliveries of this event.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Deliveries at most.")] = 20,
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
    delivery: Annotated[str | None, typer.Option(help="A delivery's id, to send that one again.")] = None,
    since: Annotated[str | None, typer.Option(help="A time such as 2026-11-20T21:45:00Z.")] = None,
    scope: Annotated[Scope, typer.Option(help="Since then: what was never delivered, or everything.")] = "undelivered",
    data_dir: DataDir = None,
    url: Url = None,
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Send again: one delivery, or what happened since a time."""
    if (delivery is None) == (since is None):
        raise typer.BadParameter("give either --delivery or --since")

    async def work(api: ServiceClient) -> dict[str, Any]:
        if delivery is not None:
            return dict(await api.post(f"{_path(webhook_id)}/deliveries/{_segment(delivery)}/replay"))
        return dict(await api.post(f"{_path(webhook_id)}/replay", {"since": since, "scope": scope}))

    def replayed(answer: dict[str, Any]) -> None:
        output.print_line(f"{answer.get('queued', 1)} queued.")
        if answer.get("next_since"):
            output.print_line(f"There is more: go on with --since {answer['next_since']}")

    run_command(ServiceTarget(data_dir, url, key), work, replayed, as_json=as_json, access="change")


def _switch(target: ServiceTarget, webhook_id: str, *, enabled: bool, as_json: bool) -> None:
    async def work(api: ServiceClient) -> dict[str, Any]:
        return dict(await api.patch(_path(webhook_id), {"enabled": enabled}))

    def switched(answer: dict[str, Any]) -> None:
        output.print_line(f"Webhook {answer['id']} is {_state(answer)}.")

    run_command(target, work, switched, as_json=as_json, access="change")


def _segment(text: str) -> str:
    # Comes with the HTTP client: not for `stentor --help`.
    from stentor.cli.client import quote_segment

    return quote_segment(text)


def _path(webhook_id: str) -> str:
    return f"{BASE}/{_segment(webhook_id)}"


def _say_secret(answer: dict[str, Any]) -> None:
    output.print_line(f"Its secret, which is not shown again: {answer['secret']}")


def _state(webhook: dict[str, Any]) -> str:
    return "enabled" if webhook["enabled"] else "disabled"


def _met(delivery: dict[str, Any]) -> str:
    """What the last attempt met."""
    if delivery["error"]:
        return str(delivery["error"]).rstrip(".")
    return "not tried yet" if delivery["status_code"] is None else f"the receiver answered {delivery['status_code']}"


def _show_list(page: dict[str, Any]) -> None:
    rows = [
        (w["id"], w["url"], ", ".join(w["events"]), w["disabled_reason"] or _state(w), w["description"])
        for w in page["webhooks"]
    ]
    console.print(output.render_table(("id", "address", "events", "state", "description"), rows))


def _show_deliveries(page: dict[str, Any]) -> None:
    rows = [
        (d["id"], d["created_at"], d["event"], d["status"], str(d["attempts"]), _met(d)) for d in page["deliveries"]
    ]
    console.print(output.render_table(("id", "created", "event", "status", "attempts", "last"), rows))
    if page["next_cursor"]:
        console.print("There are older ones; --limit shows more.", style="dim")
