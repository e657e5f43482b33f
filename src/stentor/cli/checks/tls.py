"""Check of the certificate: the files that a start would load, and what the running service serves."""

from __future__ import annotations

from collections.abc import Iterator

from cryptography import x509

from stentor.bootstrap import tls
from stentor.cli.inspection import CheckContext, CheckFinding
from stentor.core.clock import SystemClock
from stentor.core.errors import StartRefused
from stentor.core.filesystem import read_lock_holder
from stentor.core.settings import Settings
from stentor.web.server.certificate import compute_fingerprint


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
    if key is not None and key.stat().st_mode & 0o007:
        yield CheckFinding("warning", "TLS", f"All users of this machine can read {key}: `chmod o= {key}`.")
    file = tls.certificate_file(settings)
    yield CheckFinding("ok", "TLS", f"{file} can be used, SHA-256 {served.loaded.fingerprint}.")
