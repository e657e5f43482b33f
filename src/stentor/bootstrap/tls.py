"""The certificate of a process whose ports speak TLS: the operator's own, or one that is made in the data folder."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from stentor.core import filesystem
from stentor.core.clock import Clock, micros_from_datetime
from stentor.core.settings import Settings
from stentor.domains.alerts import model as alerts
from stentor.domains.alerts.model import AlertKey, Finding
from stentor.domains.alerts.service import Check

if TYPE_CHECKING:
    from stentor.web.server.certificate import ServedCertificate

MADE_FILE = "tls.pem"
"""The made certificate with its private key, in the folder of the keys."""
PUBLIC_FILE = "tls.crt"
"""The certificate that was made, without its key, for clients to trust."""


def certificate_file(settings: Settings) -> Path:
    """Return the file that clients elsewhere trust, or whose issuer they trust."""
    return settings.tls.cert or _keys_folder(settings) / PUBLIC_FILE


def open_certificate(settings: Settings) -> ServedCertificate | None:
    """Load the certificate, and make it at the first start; None with TLS off. Raises StartRefused."""
    if not settings.tls.is_on:
        return None
    return load_certificate(settings, _make_certificate(settings) if settings.tls.cert is None else None)


def load_certificate(settings: Settings, prepare: Callable[[], None] | None = None) -> ServedCertificate:
    """Load the certificate as it is; `prepare` is called before each time that it is read. Raises StartRefused."""
    # Here and below: without TLS nothing needs it.
    from stentor.web.server.certificate import ServedCertificate

    made = _keys_folder(settings) / MADE_FILE
    return ServedCertificate(settings.tls.cert or made, settings.tls.key or made, prepare)


def certificate_check(settings: Settings, clock: Clock, served: ServedCertificate) -> Check:
    """Return the check that opens an alert before the certificate expires."""

    async def check(_: frozenset[AlertKey]) -> list[Finding]:
        return certificate_findings(settings, clock.now(), served)

    return check


def certificate_findings(settings: Settings, now: int, served: ServedCertificate) -> list[Finding]:
    """Return what is wrong with the certificate that is served now, at a time in microseconds."""
    advice = f"Renew {served.path}: it is read again when it changes."
    if settings.tls.cert is None:
        advice = f"The service could not renew {served.path}: its log says why."
    return alerts.certificate_findings(micros_from_datetime(served.loaded.expires_at), now, advice)


def _make_certificate(settings: Settings) -> Callable[[], None]:
    """Return a function that creates or renews the certificate if necessary, for all names that clients use."""
    from stentor_vault.server.certificate import ServerCertificate

    folder = _keys_folder(settings)
    names = [socket.gethostname(), *settings.connections.allowed_hosts]
    made = ServerCertificate(folder, settings.server.host, file_name=MADE_FILE, common_name="Stentor", more_names=names)
    public = folder / PUBLIC_FILE

    def prepare() -> None:
        made.ensure()
        pem = made.pem or b""
        if not public.exists() or public.read_bytes() != pem:
            filesystem.write_atomically(public, pem.decode())

    return prepare


def _keys_folder(settings: Settings) -> Path:
    return settings.storage.data_dir / "keys"
