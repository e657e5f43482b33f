"""Checks of the parts of a service: vault, embedding model, sandbox, the running service itself, certificate, and
identity provider.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import httpx
from cryptography import x509

from stentor.auth.oidc.provider import OidcProvider
from stentor.bootstrap import tls
from stentor.bootstrap.parts.command_agents import process_sandbox
from stentor.cli.client import connection
from stentor.cli.client.connection import find_trust, is_loopback, parse_service_url
from stentor.cli.inspection import CheckContext, CheckFinding
from stentor.cli.output import CommandFailed
from stentor.cli.service import runner as service_runner
from stentor.core.clock import SystemClock
from stentor.core.errors import SandboxUnavailable, ServiceUnavailable, StartRefused, StentorError
from stentor.core.filesystem import read_lock_holder
from stentor.core.settings import Settings
from stentor.core.settings.installation import SignInSettings
from stentor.domains.memory.embedding import local
from stentor.domains.sandbox.broker import command_tools
from stentor.domains.sandbox.process_sandbox import ProcessSandbox, check_folder
from stentor.web.server.certificate import compute_fingerprint


def check_vault(context: CheckContext) -> Iterator[CheckFinding]:
    settings = context.settings
    if not settings.memory.enabled:
        yield CheckFinding("ok", "memory", "Disabled (SERVICE_MEMORY).")
        return
    if settings.memory.plugin_url:
        yield CheckFinding("ok", "memory", f"The vault is behind the plugin at {settings.memory.plugin_url}.")
        return
    folder = settings.memory.vault_dir or settings.storage.data_dir / "vault"
    if not folder.exists():
        yield CheckFinding("ok", "memory", f"The vault {folder} does not exist yet; it is created at the first start.")
    elif not folder.is_dir() or not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        yield CheckFinding("problem", "memory", f"The vault {folder} is not a folder that this user can write to.")
    else:
        yield CheckFinding("ok", "memory", f"The vault {folder} is writable.")


def check_embeddings(context: CheckContext) -> Iterator[CheckFinding]:
    settings = context.settings
    if not settings.memory.enabled:
        return
    if settings.memory.embedding_url:
        yield CheckFinding("ok", "embeddings", f"Vectors come from {settings.memory.embedding_url}.")
    elif settings.memory.embedding_model == "none":
        yield CheckFinding("ok", "embeddings", "Keyword search only (SERVICE_EMBEDDING_MODEL=none).")
    else:
        yield _check_local_model(settings.memory.embedding_model)


def _check_local_model(folder: str) -> CheckFinding:
    # Check for the files only: loading the model takes a second and 150 MB.
    try:
        model = local.find_model_files(Path(folder) if folder else None)
    except StentorError as error:
        return CheckFinding("warning", "embeddings", error.message)
    return CheckFinding("ok", "embeddings", f"The model {model.name} is on this machine.")


def check_sandbox(context: CheckContext) -> Iterator[CheckFinding]:
    """Run a program in a sandbox in a temporary folder, so that the sandbox of a running service is not touched."""
    settings = context.settings
    is_used = settings.sandbox.command_agents and settings.sandbox.enabled
    try:
        # A start reads it even if command agents are disabled.
        cage_settings = process_sandbox(settings)
        command_tools.load_command_tools(settings.sandbox.tools, cage_settings)
        if is_used:
            check_folder(cage_settings.folder)
    except (StartRefused, SandboxUnavailable) as error:
        yield CheckFinding("problem", "sandbox", error.message)
    if not settings.sandbox.command_agents:
        yield CheckFinding("ok", "sandbox", "Command agents are disabled (SERVICE_COMMAND_AGENTS).")
        return
    if not settings.sandbox.enabled:
        message = "SERVICE_CAGE=off: programs of agents run with all rights of the service's user. Unset it."
        yield CheckFinding("warning", "sandbox", message)
        return
    with tempfile.TemporaryDirectory(prefix="stentor-") as folder:
        # If this runs as root, the program in the sandbox runs as nobody, who must be able to enter the folder.
        Path(folder).chmod(0o711)
        trial = ProcessSandbox(Path(folder) / "cage", {})
        trial.open()
    if trial.problem is not None:
        yield CheckFinding("problem", "sandbox", f"Command agents cannot run: {trial.problem}")
    else:
        yield CheckFinding("ok", "sandbox", "A test program ran in the sandbox.")


def check_folder_owner(context: CheckContext) -> Iterator[CheckFinding]:
    folder = context.settings.storage.data_dir
    holder = read_lock_holder(folder)
    if holder is None:
        yield _check_port(context)
    elif holder.gateway is None:
        yield CheckFinding(
            "warning",
            "service",
            f"Process {holder.pid} has locked {folder} but has not published an address yet: try again.",
        )
    else:
        yield CheckFinding("ok", "service", f"Process {holder.pid} has been running on {folder} since {holder.since}.")
        yield check_health(context, "service", holder.gateway)


def _check_port(context: CheckContext) -> CheckFinding:
    """Bind the gateway's port for a moment. The other ports are replaced by free ones unless somebody chose them."""
    stopped = f"No service is running on {context.settings.storage.data_dir}."
    try:
        with service_runner.bind_gateway(context.settings, None):
            return CheckFinding("ok", "service", f"{stopped} Start one with `stentor serve`.")
    except StartRefused as error:
        return CheckFinding("warning", "service", f"{stopped} None can start: {error.message}")


def check_service_url(context: CheckContext) -> Iterator[CheckFinding]:
    if context.settings.client.url:
        yield check_health(context, "SERVICE_URL", context.settings.client.url)


def check_health(context: CheckContext, check: str, address: str) -> CheckFinding:
    """Query the detailed health of the service at an address."""
    try:
        url = parse_service_url(address)
        trust = find_trust(context.settings, url)
    except CommandFailed as error:
        return CheckFinding("problem", check, str(error))
    shown_url = url.copy_with(userinfo=b"")
    try:
        with httpx.Client(
            base_url=url, timeout=connection.TIMEOUT_SECONDS, verify=trust, trust_env=not is_loopback(url)
        ) as http:
            response = http.get("/api/v1/health/detailed")
            components = response.json()["components"]
            down = [name for name, component in components.items() if component["status"] == "unavailable"]
    except httpx.TimeoutException:
        text = f"{shown_url} did not respond within {connection.TIMEOUT_SECONDS:g} s: it may be overloaded."
        return CheckFinding("problem", check, text)
    except httpx.TransportError as error:
        return CheckFinding(
            "problem", check, f"No response from {shown_url} ({type(error).__name__}): is the service running there?"
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return CheckFinding("problem", check, f"The server at {shown_url} is not Stentor: check the address.")
    if down:
        return CheckFinding("problem", check, f"{shown_url} is degraded, unavailable: {', '.join(down)}. See its log.")
    return CheckFinding("ok", check, f"{shown_url} is healthy.")


def check_tls(context: CheckContext) -> Iterator[CheckFinding]:
    """Make nothing: a start makes the certificate."""
    settings = context.settings
    owner = read_lock_holder(settings.storage.data_dir)
    if owner is not None and owner.certificate is not None:
        certificate = x509.load_pem_x509_certificate(owner.certificate.encode())
        day, digest = certificate.not_valid_after_utc, compute_fingerprint(certificate)
        text = f"The service serves a certificate that expires on {day:%Y-%m-%d}, SHA-256 {digest}."
        yield CheckFinding("ok", "TLS", text)
    elif not settings.tls.is_on:
        yield CheckFinding("ok", "TLS", "Off (SERVICE_TLS).")
    elif settings.tls.cert is None and not tls.certificate_file(settings).exists():
        yield CheckFinding("ok", "TLS", "A certificate is made at the first start.")
        return
    if settings.tls.is_on:
        yield from _check_files(settings)


def _check_files(settings: Settings) -> Iterator[CheckFinding]:
    try:
        served = tls.load_certificate(settings)
    except StartRefused as error:
        yield CheckFinding("problem", "TLS", error.message)
        return
    for finding in tls.certificate_findings(settings, SystemClock().now(), served):
        yield CheckFinding("warning", "TLS", finding.message)
    key = settings.tls.key
    # Only the rights of all users: a group such as ssl-cert may read keys.
    if key is not None and key.stat().st_mode & 0o007:
        yield CheckFinding("warning", "TLS", f"All users of this machine can read {key}: `chmod o= {key}`.")
    file = tls.certificate_file(settings)
    yield CheckFinding("ok", "TLS", f"{file} can be used, SHA-256 {served.loaded.fingerprint}.")


def check_provider(context: CheckContext) -> Iterator[CheckFinding]:
    settings = context.settings.oidc
    if not settings.issuer:
        yield CheckFinding("ok", "sign-in", "People sign in with keys. SERVICE_OIDC_ISSUER adds an identity provider.")
        return
    try:
        keys = asyncio.run(_count_keys(settings))
    except ServiceUnavailable as error:
        yield CheckFinding("problem", "sign-in", error.message)
        return
    if not keys:
        yield CheckFinding("problem", "sign-in", f"{settings.issuer} has no key with which it could sign ID tokens.")
    else:
        text = f"{settings.issuer} responds. Redirect URI to register there: <URL of the dashboard>/sign-in/callback"
        yield CheckFinding("ok", "sign-in", text)


async def _count_keys(settings: SignInSettings) -> int:
    provider = OidcProvider(settings, SystemClock())
    try:
        return await provider.count_keys()
    finally:
        await provider.close()
