"""`stentor keys ...`: make, limit, rotate and revoke API keys; `make` generates the key files of an installation."""

from __future__ import annotations

import os
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import typer

from stentor.auth.authority import keys as authority_keys
from stentor.auth.principal import ROLE_PERMISSIONS, Role
from stentor.cli import output
from stentor.cli.client.client import quote_segment
from stentor.cli.command import AsJson, DataDir, ServiceTarget, with_service
from stentor.cli.output import EXIT_USAGE, CommandFailed, console, print_json, report_errors
from stentor.core import settings
from stentor.core.errors import StartRefused
from stentor.core.security.sealing import Sealer
from stentor.domains.provenance.signing import keyfile

app = typer.Typer(help="Create, limit, rotate and revoke API keys.", no_args_is_help=True)

BASE = "/keys"
DURATION = re.compile(r"(\d{1,5})([hdw])")
HOURS = {"h": 1, "d": 24, "w": 168}
KeyName = Annotated[str, typer.Argument(metavar="NAME", help="The key's name.")]
KeyRole = Literal["viewer", "operator", "approver", "admin", "agent"]
Permission = Annotated[
    list[str] | None,
    typer.Option(help="read, write, delete, propose, approve or admin; repeatable. Default: those of the role."),
]
Description = Annotated[str | None, typer.Option(help="Whose key it is, or what for.")]
Memory = Annotated[
    str | None, typer.Option(help="Namespaces of the governed memory: <namespace>:r or :rw, comma separated.")
]
Budget = Annotated[list[str] | None, typer.Option(help="Limit of its model calls, such as usd/month=20; repeatable.")]
Model = Annotated[
    list[str] | None,
    typer.Option(help="Model or group that it may call, such as 'openai/gpt-*'; repeatable. '*' alone is every model."),
]
Team = Annotated[str | None, typer.Option(help="Team whose budgets its model calls count to; '' for none.")]
Expires = Annotated[str | None, typer.Option(help="In 12h, 30d or 8w, at 2027-01-31T00:00:00Z, or never.")]


class ListedKey(msgspec.Struct, frozen=True):
    """A key without its secret; those of the environment are `configured` and have no times."""

    name: str
    role: Role
    permissions: list[str]
    status: str
    configured: bool
    description: str
    hint: str | None
    expires_at: str | None
    last_used_at: str | None
    budgets: list[str] = []
    models: list[str] = []
    team: str = ""


class MadeKey(ListedKey, frozen=True, kw_only=True):
    key: str


class KeyPage(msgspec.Struct, frozen=True):
    keys: list[ListedKey]


@app.command()
@with_service
def create(
    service: ServiceTarget,
    name: KeyName,
    role: Annotated[KeyRole, typer.Option(help="What the key may do; `agent` for programs that work as agents.")],
    permission: Permission = None,
    description: Description = None,
    memory: Memory = None,
    budget: Budget = None,
    model: Model = None,
    team: Team = None,
    expires: Expires = None,
) -> None:
    """Create a key, valid at once; it is shown only once."""
    with report_errors(as_json=service.as_json):
        body = {"name": name, "role": role} | _limits(permission, description, memory, budget, model, team, expires)
    service.call(lambda api: api.post(BASE, MadeKey, body), _show_secret, access="create")


@app.command("list")
@with_service
def list_keys(service: ServiceTarget) -> None:
    """List the keys of the environment and those made at runtime, revoked ones included; never the keys themselves."""
    service.call(lambda api: api.get(BASE, KeyPage), _show_list)


@app.command()
@with_service
def change(
    service: ServiceTarget,
    name: KeyName,
    role: Annotated[KeyRole | None, typer.Option(help="A new role, with its permissions.")] = None,
    permission: Permission = None,
    description: Description = None,
    memory: Memory = None,
    budget: Budget = None,
    model: Model = None,
    team: Team = None,
    expires: Expires = None,
) -> None:
    """Change what a key may do and until when; it applies to its next request."""
    with report_errors(as_json=service.as_json):
        body = ({"role": role} if role else {}) | _limits(permission, description, memory, budget, model, team, expires)
    service.call(
        lambda api: api.request("PATCH", f"{BASE}/{quote_segment(name)}", ListedKey, body),
        lambda changed: _show_list(KeyPage([changed])),
        access="change",
    )


@app.command()
@with_service
def rotate(service: ServiceTarget, name: KeyName) -> None:
    """Give a key a new secret, which is shown only once; the old one is invalid at once."""
    service.call(lambda api: api.post(f"{BASE}/{quote_segment(name)}/rotate", MadeKey), _show_secret, access="change")


@app.command()
@with_service
def revoke(service: ServiceTarget, name: KeyName) -> None:
    """Revoke a key, at once and for good."""
    service.call(
        lambda api: api.post(f"{BASE}/{quote_segment(name)}/revoke", ListedKey),
        lambda revoked: output.print_line(f"Revoked key {revoked.name}."),
        access="change",
    )


def _limits(
    permission: list[str] | None,
    description: str | None,
    memory: str | None,
    budget: list[str] | None,
    model: list[str] | None,
    team: str | None,
    expires: str | None,
) -> dict[str, Any]:
    """Return the fields that were given. Raises CommandFailed for an expiry that is neither a duration nor a time."""
    given = {
        "permissions": permission or None,
        "description": description,
        "memory": memory,
        "budgets": budget or None,
        "models": model or None,
        "team": team,
    }
    fields: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if expires is not None:
        fields["expires_at"] = None if expires == "never" else _expiry(expires, datetime.now(UTC))
    return fields


def _expiry(text: str, now: datetime) -> str:
    if found := DURATION.fullmatch(text):
        return (now + timedelta(hours=int(found[1]) * HOURS[found[2]])).isoformat()
    try:
        moment = datetime.fromisoformat(text)
        # Without a time zone it is a time of the user's clock; the service requires one.
        return (moment if moment.tzinfo else moment.astimezone()).isoformat()
    except (ValueError, OverflowError):
        raise CommandFailed(
            f"--expires {text!r}: use 12h, 30d or 8w, a time such as 2027-01-31T00:00:00Z, or never.", EXIT_USAGE
        ) from None


def _show_secret(made: MadeKey) -> None:
    output.print_line(made.key)
    until = f", until {made.expires_at[:19]}Z" if made.expires_at else ""
    budget = f", budget {', '.join(made.budgets)}" if made.budgets else ""
    models = f", models {', '.join(made.models)}" if made.models else ""
    team = f", team {made.team}" if made.team else ""
    permissions = ", ".join(made.permissions)
    output.print_notice(
        f"Key {made.name}: {made.role} ({permissions}){team}{budget}{models}{until}. It is not shown again."
    )


def _show_list(page: KeyPage) -> None:
    rows = [
        (
            key.name,
            _describe_role(key),
            key.team,
            "configured" if key.configured else key.status,
            key.expires_at and key.expires_at[:10],
            output.format_age(key.last_used_at),
            "\n".join(key.budgets),
            "\n".join(key.models),
            key.description,
        )
        for key in page.keys
    ]
    columns = ("name", "role", "team", "status", "expires", "used", "budget", "models", "about")
    console.print(output.render_table(columns, rows))


def _describe_role(key: ListedKey) -> str:
    """Return the role, with the permissions only if they are not those of the role; `admin` includes all others."""
    usual = ROLE_PERMISSIONS[key.role]
    if set(key.permissions) == set(usual) or ("admin" in key.permissions and "admin" in usual):
        return key.role
    return "\n".join([f"{key.role}:", *key.permissions])


@app.command()
def make(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Generate the missing key files of an installation; existing ones are kept.

    A single instance generates each key when it first needs it. Several instances on one database must share their
    keys: generate them once, and copy the folder `keys` to the data folder of each instance.
    """
    with report_errors(as_json=as_json):
        chosen = settings.load(os.environ, {"SERVICE_DATA_DIR": data_dir})
        existing = _list_key_files(chosen.storage.data_dir)
        _ensure_keys(chosen)
        generated = sorted(_list_key_files(chosen.storage.data_dir) - existing)
        if as_json:
            print_json({"folder": str(chosen.storage.data_dir / "keys"), "made": generated, "kept": sorted(existing)})
            return
        for name in sorted(existing | set(generated)):
            note = "" if name in existing else "  generated"
            console.print(f"{chosen.storage.data_dir / 'keys' / name}{note}", soft_wrap=True)


def _list_key_files(data_dir: Path) -> set[str]:
    return {path.name for path in (data_dir / "keys").glob("*") if not path.name.startswith(".")}


def _ensure_keys(chosen: settings.Settings) -> None:
    keyfile.ensure_signer(keyfile.key_path(chosen), chosen.provenance.origin)
    authority_keys.ensure_signing_key(chosen.storage.data_dir)
    try:
        Sealer(chosen.storage.data_dir, chosen.llm.master_key).ensure_master_key()
    except OSError as error:
        raise StartRefused(f"{error.filename} cannot be created: {error.strerror}.") from None
