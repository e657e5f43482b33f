"""`stentor receipt ...`: issue, inspect and verify receipts, the signed short-lived statements of authority.

Works on the key files; whether a receipt was used before, only the running service knows.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from stentor.auth.authority import keys, receipts
from stentor.auth.authority.claims import ReceiptError
from stentor.auth.authority.context import AuthorityContext
from stentor.auth.authority.delegation import decode_chain
from stentor.auth.authority.issuers import load_trusted_issuers
from stentor.auth.authority.keys import parse_public_key_file, thumbprint
from stentor.auth.authority.receipts import inspect_receipt
from stentor.cli.command import AsJson, DataDir, split_commas
from stentor.cli.input_files import read_start, reading
from stentor.cli.output import (
    EXIT_FAILED,
    EXIT_USAGE,
    CommandFailed,
    console,
    print_json,
    print_notice,
    print_result,
    report_errors,
    strip_controls,
)
from stentor.core import settings
from stentor.core.clock import SystemClock
from stentor.core.errors import AuthorityRefused
from stentor.core.jsontext import JsonObject
from stentor.core.security import redaction
from stentor.core.security.redaction import Redactor
from stentor.core.settings import Settings
from stentor.core.settings.listeners import MEMORY_CAPABILITIES

app = typer.Typer(help="Issue, inspect and verify receipts: signed, short-lived permissions.", no_args_is_help=True)
MAX_RECEIPT_BYTES = 100_000

Receipt = Annotated[
    str | None,
    typer.Argument(metavar="RECEIPT", help="The receipt (visible in the process list); default: --file, else stdin."),
]
File = Annotated[Path | None, typer.Option(help="File with the receipt.")]
Audience = Annotated[str | None, typer.Option(help="Service that it is for; default: SERVICE_AUTHORITY_AUDIENCE.")]


@app.command()
def issue(
    principal: Annotated[str, typer.Option(help="The principal that acts.")],
    namespace: Annotated[list[str], typer.Option(help="A namespace including all below it, or * for all; repeatable.")],
    capability: Annotated[
        list[str],
        typer.Option(callback=split_commas, help="A capability of the principal; repeatable, or with commas."),
    ],
    tenant: Annotated[str, typer.Option(help="Tenant whose records it may access.")] = "default",
    lifetime: Annotated[int, typer.Option(min=1, max=300, help="Seconds until it expires.")] = 300,
    audience: Audience = None,
    bind: Annotated[
        Path | None, typer.Option(help="Public Ed25519 key (JWK or PEM); each request must prove possession of it.")
    ] = None,
    data_dir: DataDir = None,
) -> None:
    """Issue a receipt signed with the service's own key; standard output contains nothing else."""
    with report_errors():
        chosen = _settings(data_dir, audience)
        jkt = None if bind is None else _thumbprint(bind)
        subject = {"sub": principal, "tenant": tenant, "aud": chosen.auth.authority_audience}
        now = SystemClock().now()
        claims = receipts.create_own_claims(subject, tuple(namespace), tuple(capability), lifetime, jkt, now=now)
        sys.stdout.write(receipts.issue_receipt(claims, keys.ensure_signing_key(chosen.storage.data_dir)) + "\n")
    if unknown := [name for name in capability if name not in MEMORY_CAPABILITIES]:
        print_notice(
            f"{unknown[0]!r} is not a capability of the memory. Known: {', '.join(MEMORY_CAPABILITIES)}.", "yellow"
        )
    if jkt is None:
        print_notice(
            "Anyone who has this receipt can use it once; with --bind, only the holder of a key can.", "yellow"
        )


@app.command()
def inspect(receipt: Receipt = None, file: File = None, as_json: AsJson = False) -> None:
    """Show the contents of a receipt without verifying it: it may be forged, expired or used."""
    with report_errors(as_json=as_json):
        links = decode_chain(_read(receipt, file))
        if as_json:
            print_json({"verified": False, "receipts": links})
            return
        console.print("[bold yellow]Not verified.[/] Contents of the receipt:")
        for link in links:
            for name, value in {**link["header"], **link["claims"]}.items():
                console.print(
                    f"  {_visible(str(name)):8} {_visible(_format_value(value))}", markup=False, soft_wrap=True
                )


@app.command()
def verify(
    receipt: Receipt = None,
    file: File = None,
    audience: Audience = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Verify signatures, claims and chain; the exit code is 1 if invalid. Does not use up the receipt."""
    with report_errors(as_json=as_json):
        chosen = _settings(data_dir, audience)
        text = _read(receipt, file)
        try:
            authority = inspect_receipt(
                text, load_trusted_issuers(chosen), chosen.auth.authority_audience, SystemClock().now()
            )
        except AuthorityRefused as error:
            if as_json:
                print_json({"valid": False, "error": error.message})
            else:
                print_notice(error.message, "red")
            raise typer.Exit(EXIT_FAILED) from None
        print_result(authority, lambda found: {"valid": True, **receipt_document(found)}, _show, as_json=as_json)


def receipt_document(authority: AuthorityContext) -> JsonObject:
    """Return the authority as plain values."""
    return {
        "principal": authority.principal,
        "tenant": authority.tenant,
        "namespaces": list(authority.namespaces),
        "capabilities": sorted(authority.capabilities),
        "issuer": authority.issuer,
        "receipt_id": authority.receipt_id,
        "expires_at": None if authority.expires_at is None else authority.expires_at.isoformat().replace("+00:00", "Z"),
        "delegated_by": list(authority.delegated_by),
    }


def _show(authority: AuthorityContext) -> None:
    console.print("[green]The receipt is valid.[/] Only the service knows whether it was already used.")
    for name, value in receipt_document(authority).items():
        console.print(f"  {name:13} {strip_controls(_format_value(value))}", markup=False, soft_wrap=True)


def _format_value(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _visible(text: str) -> str:
    """Replace unprintable characters: in a forged receipt they could reverse or hide the text around them."""
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)


def _settings(data_dir: Path | None, audience: str | None) -> Settings:
    chosen = settings.load(os.environ, {"SERVICE_DATA_DIR": data_dir, "SERVICE_AUTHORITY_AUDIENCE": audience})
    redaction.configure_logging(chosen.server.log_level, Redactor())
    return chosen


def _read(receipt: str | None, file: Path | None) -> str:
    """Read the receipt from the argument, the file or standard input, without surrounding whitespace."""
    if receipt is not None and file is not None:
        raise CommandFailed("Pass the receipt as an argument or with --file, not both.", EXIT_USAGE)
    if receipt is not None and receipt != "-":
        return receipt.strip()
    if file is None and sys.stdin.isatty():
        raise CommandFailed("No receipt: pipe it to standard input, or pass --file or an argument.", EXIT_USAGE)
    try:
        with reading("Standard input"):
            data = sys.stdin.buffer.read(MAX_RECEIPT_BYTES) if file is None else read_start(file, MAX_RECEIPT_BYTES)
        return data.decode("ascii").strip()
    except UnicodeDecodeError:
        raise CommandFailed("The input is not a receipt: it is not plain ASCII.", EXIT_USAGE) from None


def _thumbprint(path: Path) -> str:
    try:
        return thumbprint(parse_public_key_file(read_start(path, MAX_RECEIPT_BYTES)))
    except ReceiptError as error:
        raise CommandFailed(f"--bind {path}: {error}.", EXIT_USAGE) from None
