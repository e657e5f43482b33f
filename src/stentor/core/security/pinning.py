"""The trust of clients of this machine's own service: only its certificate, whatever name or address they use.

The service writes its certificate into the lock file of its data folder (`core.filesystem`). A client that reads it
there needs no certificate authority, and no name in the certificate that fits the loopback address.
"""

from __future__ import annotations

import ssl
from functools import lru_cache
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from stentor.core.filesystem import read_lock_holder


def find_trust(folder: Path, address: str) -> ssl.SSLContext | None:
    """Return what accepts the service that runs on a data folder, if this is its gateway's address, else None.

    Raises OSError if the folder cannot be read.
    """
    owner = read_lock_holder(folder)
    if owner is None or owner.gateway is None or owner.certificate is None:
        return None
    return trust_only(owner.certificate) if _is_same_service(urlsplit(owner.gateway), urlsplit(address)) else None


def _is_same_service(owner: SplitResult, other: SplitResult) -> bool:
    is_same_host = owner.hostname == other.hostname or (_is_loopback(owner) and _is_loopback(other))
    return owner.scheme == other.scheme and is_same_host and owner.port == (other.port or 443)


def _is_loopback(address: SplitResult) -> bool:
    try:
        return ip_address(address.hostname or "").is_loopback
    except ValueError:
        return address.hostname == "localhost"


@lru_cache(maxsize=1)
def trust_nothing() -> ssl.SSLContext:
    """Return a client's context for addresses without TLS: httpx would read all authorities of the machine, 20 ms."""
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


@lru_cache(maxsize=4)
def trust_only(certificate: str) -> ssl.SSLContext:
    """Return a client's context that accepts one certificate in PEM and no other. Fails closed, also when it expires.

    Cached: connection pools reuse a connection only for the same context.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # Only the owner of this certificate's key can complete the handshake, so checking the names would add nothing.
    context.check_hostname = False
    # Accept it as the end of a chain, although an authority may have signed it.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.load_verify_locations(cadata=certificate)
    return context
