"""How a command reaches a service over the network: its address, the key, the certificates and the proxy."""

from __future__ import annotations

import os
import ssl
from contextlib import suppress
from ipaddress import ip_address

import httpx

from stentor.auth.api_keys import admin_key_file
from stentor.cli.output import EXIT_FAILED, EXIT_USAGE, CommandFailed
from stentor.core.security import pinning
from stentor.core.settings import Settings

TIMEOUT_SECONDS = 30.0
"""For each wait of a request. That for a connection includes the TLS handshake, with which a busy service is late."""


def create_http_client(settings: Settings, url: httpx.URL, key: str) -> httpx.AsyncClient:
    """Create the client for a service at this address. Raises CommandFailed for an unusable proxy or certificate."""
    trust = find_trust(settings, url)
    try:
        return httpx.AsyncClient(
            base_url=url,
            headers={"X-API-Key": key} if key else {},
            timeout=TIMEOUT_SECONDS,
            verify=trust,
            # HTTP_PROXY and the like must not redirect calls to this machine, which carry its admin key.
            trust_env=not is_loopback(url),
        )
    # SOCKS needs another package; a scheme may be unknown, an address malformed.
    except (ImportError, ValueError, httpx.InvalidURL) as error:
        reason = str(error).rstrip(". ")
        message = f"The proxy of HTTP_PROXY, HTTPS_PROXY or ALL_PROXY cannot be used: {reason}. Unset the variable."
        raise CommandFailed(message, EXIT_USAGE) from None


def parse_service_url(address: str) -> httpx.URL:
    """Parse an http or https URL, which may end with /api/v1. Raises CommandFailed."""
    try:
        url = httpx.URL(address.rstrip("/").removesuffix("/api/v1").rstrip("/"))
    except httpx.InvalidURL:
        url = httpx.URL("")
    is_address = url.host and "%" not in url.host and (url.port or 0) < 65_536
    if url.scheme not in ("http", "https") or not is_address:
        message = "The address of the service (--url or SERVICE_URL) must be a URL such as http://127.0.0.1:8080."
        raise CommandFailed(message, EXIT_USAGE)
    return url


def is_loopback(url: httpx.URL) -> bool:
    try:
        return ip_address(url.host).is_loopback
    except ValueError:
        return url.host == "localhost"


def find_trust(settings: Settings, url: httpx.URL) -> ssl.SSLContext | bool:
    """Return what the certificate of the service is verified with. Raises CommandFailed.

    The service of the data folder must have the certificate that its lock file names. The certificate of any other
    service must be from an authority in SSL_CERT_FILE or, if that is unset as on most machines, from a public one.
    """
    if url.scheme != "https":
        return pinning.trust_nothing()
    # A folder that this user may not read belongs to another service.
    with suppress(OSError):
        if own := pinning.find_trust(settings.storage.data_dir, str(url)):
            return own
    path = os.environ.get("SSL_CERT_FILE")
    if not path:
        return True
    try:
        return ssl.create_default_context(cafile=path)
    except OSError as error:
        raise CommandFailed(f"The file {path} of SSL_CERT_FILE cannot be used: {error.strerror}.", EXIT_USAGE) from None


def find_key(settings: Settings, url: httpx.URL) -> tuple[str, str]:
    """Return the API key to send and where it came from, or two empty strings without a key.

    The order is --key or SERVICE_CLIENT_KEY, the admin key of the data folder, MCP_API_KEY. The admin key is sent only
    to a service on this machine.
    """
    path = admin_key_file(settings.storage.data_dir)
    if settings.client.key:
        source = "--key" if settings.sources["SERVICE_CLIENT_KEY"] == "option" else "SERVICE_CLIENT_KEY"
        key = settings.client.key
    # Never sent to another machine: an address from SERVICE_URL could belong to anybody.
    # Path.exists would raise an error for a folder that this user may not read.
    elif is_loopback(url) and os.path.exists(path):  # noqa: PTH110
        key, source = _read_key_file(path), str(path)
    else:
        key, source = settings.auth.shared_key, "MCP_API_KEY" if settings.auth.shared_key else ""
    # httpx would raise an error that shows the key.
    if not (key.isascii() and key.isprintable()):
        message = f"The key from {source} contains characters that are not allowed in an HTTP header."
        raise CommandFailed(message, EXIT_USAGE)
    return key, source


def _read_key_file(path: os.PathLike[str]) -> str:
    try:
        with open(path, encoding="utf-8") as file:  # noqa: PTH123 - any path-like
            return file.read().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise CommandFailed(f"The key file {path} cannot be read ({type(error).__name__}).", EXIT_FAILED) from None
