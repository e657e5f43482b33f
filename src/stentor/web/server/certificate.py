"""The certificate that listeners serve, from files that may change while the service runs.

Stentor makes such files (`bootstrap.tls`), or the operator or a program like certbot does.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

from stentor.core.errors import StartRefused
from stentor.core.timers import sleep_until_tick

POLL_SECONDS = 5.0
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LoadedCertificate:
    """Files that fit together, as read at one moment. `chain` and `key` are PEM, the certificate itself comes first."""

    chain: bytes
    key: bytes
    certificate: x509.Certificate
    context: ssl.SSLContext

    @property
    def pem(self) -> str:
        """Only the certificate, without its key and its issuers."""
        return self.certificate.public_bytes(Encoding.PEM).decode()

    @property
    def expires_at(self) -> datetime:
        return self.certificate.not_valid_after_utc

    @property
    def fingerprint(self) -> str:
        return compute_fingerprint(self.certificate)


class ServedCertificate:
    """The certificate of all listeners of a process; new connections get the new one when the files change.

    `prepare` makes or renews the files before they are read, and may raise OSError.
    """

    def __init__(self, path: Path, key_path: Path, prepare: Callable[[], None] | None = None) -> None:
        """Raises StartRefused."""
        self.path = path
        self._key_path = key_path
        self._prepare = prepare
        self._problem = ""
        self.on_change: list[Callable[[], None]] = []
        """Called on the event loop after another certificate was loaded."""
        self.loaded = self._load(*self._read())

    @property
    def ssl_context(self) -> ssl.SSLContext:
        return self.loaded.context

    @property
    def pem(self) -> bytes:
        return self.loaded.pem.encode()

    async def watch(self) -> None:
        """Load the files whenever they have changed, forever. Files that cannot be used leave the old ones in place."""
        while True:
            await sleep_until_tick(POLL_SECONDS)
            try:
                if await asyncio.to_thread(self.reload):
                    for notify in self.on_change:
                        notify()
            except Exception:
                log.exception("tls: certificate not checked")

    def reload(self) -> bool:
        """Load the files if they have changed; return whether they have. Logs each problem once, and raises nothing."""
        try:
            chain, key = self._read()
            if (chain, key) == (self.loaded.chain, self.loaded.key):
                self._problem = ""
                return False
            self.loaded = self._load(chain, key)
        except StartRefused as error:
            if error.message != self._problem:
                log.error("tls: new certificate rejected, the old one stays reason=%s", error.message)
            self._problem = error.message
            return False
        self._problem = ""
        log.info("tls: certificate loaded sha256=%s expires=%s", self.loaded.fingerprint, self.loaded.expires_at)
        return True

    def _read(self) -> tuple[bytes, bytes]:
        try:
            if self._prepare is not None:
                self._prepare()
            return self.path.read_bytes(), self._key_path.read_bytes()
        except OSError as error:
            # A failure of `prepare` may name no file.
            raise StartRefused(
                f"The certificate file {error.filename or self.path} cannot be used for HTTPS: {error.strerror}. Check "
                "the path, and that the user of the service may read it."
            ) from None

    def _load(self, chain: bytes, key: bytes) -> LoadedCertificate:
        certificate = _check_chain(self.path, chain)
        _check_key(self.path, certificate, self._key_path, key)
        # A new context: one in use could hold certificates for several types of keys, and serve an old one.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            # Without a password argument OpenSSL would prompt for one on the terminal.
            context.load_cert_chain(self.path, self._key_path, password="")
        except OSError as error:
            reason = getattr(error, "reason", None) or error.strerror
            raise StartRefused(f"{self.path} and {self._key_path} cannot be used for HTTPS: {reason}.") from None
        return LoadedCertificate(chain, key, certificate, context)


def compute_fingerprint(certificate: x509.Certificate) -> str:
    """Return the SHA-256 of a certificate as browsers and openssl show it."""
    return certificate.fingerprint(hashes.SHA256()).hex(":").upper()


def _check_chain(path: Path, chain: bytes) -> x509.Certificate:
    """Return the certificate that the file is about. Raises StartRefused."""
    try:
        certificates = x509.load_pem_x509_certificates(chain)
    except ValueError:
        raise StartRefused(f"{path} cannot be used for HTTPS: it contains no valid certificate in PEM.") from None
    certificate, now = certificates[0], datetime.now(UTC)
    if certificate.not_valid_after_utc <= now:
        raise StartRefused(
            f"The HTTPS certificate {path} expired on {certificate.not_valid_after_utc:%Y-%m-%d}: renew it."
        )
    if certificate.not_valid_before_utc > now:
        start = f"{certificate.not_valid_before_utc:%Y-%m-%d %H:%M} UTC"
        raise StartRefused(f"The HTTPS certificate {path} is valid from {start} on: check the clock of this machine.")
    for signed, issuer in pairwise(certificates):
        if signed.issuer != issuer.subject:
            raise StartRefused(
                f"{path} cannot be used for HTTPS: its certificates are in the wrong order. The first must be that of "
                "the service, and each next one the issuer of the one before."
            )
    return certificate


def _check_key(path: Path, certificate: x509.Certificate, key_path: Path, key: bytes) -> None:
    """Raises StartRefused unless this is the private key of the certificate."""
    try:
        private_key = load_pem_private_key(key, password=None)
    except TypeError:
        raise StartRefused(f"{key_path} cannot be used for HTTPS: store the key without a password.") from None
    except (ValueError, UnsupportedAlgorithm):
        raise StartRefused(f"{key_path} cannot be used for HTTPS: it contains no private key in PEM.") from None
    try:
        public_keys = (private_key.public_key(), certificate.public_key())
    except (ValueError, UnsupportedAlgorithm):
        raise StartRefused(f"{path} cannot be used for HTTPS: the type of its key is unknown.") from None
    own, certified = (key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo) for key in public_keys)
    if own != certified:
        raise StartRefused(
            f"{key_path} is not the private key of the HTTPS certificate {path}: name two files that belong together."
        )
